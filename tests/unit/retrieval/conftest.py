"""What is mined in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from raytriever.data.dataset import RetrievalDataset
from raytriever.retrieval.mine_scales import Embeddings

sys.path.append(str(Path(__file__).parents[2] / "support"))
from gardens import made_gardens


@pytest.fixture(scope="module")
def gardens() -> tuple[RetrievalDataset, Embeddings]:
    return made_gardens()
