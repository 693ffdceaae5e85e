"""Data set and embeddings that several tests of mining share."""

from __future__ import annotations

import pytest
from mining_data import word_dataset

from raytriever.data.dataset import RetrievalDataset
from raytriever.retrieval.mining.candidate_search import Embeddings


@pytest.fixture(scope="module")
def word_data() -> tuple[RetrievalDataset, Embeddings]:
    return word_dataset()
