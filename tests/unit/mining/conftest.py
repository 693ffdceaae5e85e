"""Data set and embeddings that several tests of mining share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from raytriever.data.dataset import RetrievalDataset
from raytriever.mining.finders import Embeddings

sys.path.append(str(Path(__file__).parents[2] / "support"))
from mining_data import word_dataset


@pytest.fixture(scope="module")
def word_data() -> tuple[RetrievalDataset, Embeddings]:
    return word_dataset()
