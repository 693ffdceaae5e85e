from __future__ import annotations

from pathlib import Path

import pytest
from encoding_case import Case

from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import load_retriever


@pytest.fixture
def case(tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """The tiny encoder and data set, with a cache of their own."""
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    config = ModelConfig(str(tiny_encoder))
    return Case(config, load_retriever(config), open_dataset(tiny_dataset, []), tmp_path)
