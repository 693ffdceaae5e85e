"""A data set with vectors and a cross-encoder for composed systems."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_models import write_cross_encoder

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.retrieval.encoding.vectors_of_others import PASSAGES, QUERIES


@pytest.fixture(scope="module")
def dataset(tiny_dataset: Path) -> RetrievalDataset:
    return open_dataset(tiny_dataset, ["dev", "test"])


@pytest.fixture(scope="module")
def vectors(dataset: RetrievalDataset) -> dict[str, np.ndarray]:
    """Vectors in which a query is near its passage, of unit length."""
    rng = np.random.default_rng(5)
    passages = rng.normal(size=(len(dataset.documents), 8))
    queries = passages + rng.normal(size=passages.shape)  # query i is answered by passage i
    unit = {PASSAGES: passages, QUERIES: queries}
    return {side: (v / np.linalg.norm(v, axis=1, keepdims=True)).astype(np.float32) for side, v in unit.items()}


@pytest.fixture(scope="module")
def cross_encoder(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cross_encoder(tiny_encoder, tmp_path_factory.mktemp("judge") / "judge")
