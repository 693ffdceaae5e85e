"""Truncated embeddings: in raytriever, on disk, in sentence-transformers, and in exported graphs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from raytriever.core.errors import ConfigError
from raytriever.experiments.export.export_model import export
from raytriever.experiments.export.export_settings import ExportConfig
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.models.save_model import write_model
from raytriever.retrieval.encoding.encode_texts import encode_texts

TEXTS = ["one", "two words", "", "a longer text, with punctuation"]


def cut(rows: np.ndarray, dim: int, similarity: str) -> np.ndarray:
    rows = rows[:, :dim]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if similarity == "cosine" else rows


@pytest.mark.slow
@pytest.mark.parametrize(("similarity", "towers"), [("cosine", "separate"), ("dot", "shared")])
def test_first_components_are_kept_and_stored(tiny_encoder: Path, tmp_path: Path, similarity: str, towers: str) -> None:
    config = ModelConfig(str(tiny_encoder), similarity=similarity, towers=towers)
    whole = encode_texts(load_retriever(config), TEXTS, "passage")
    retriever = load_retriever(ModelConfig(str(tiny_encoder), similarity=similarity, towers=towers, truncate_dim=12))
    ours = encode_texts(retriever, TEXTS, "passage")
    assert (retriever.dim, ours.shape[1], whole.shape[1]) == (12, 12, 32)
    np.testing.assert_allclose(ours, cut(whole, 12, similarity), atol=1e-6)

    write_model(retriever, tmp_path)
    again = load_retriever(ModelConfig(str(tmp_path)))
    assert np.array_equal(encode_texts(again, TEXTS, "passage"), ours)
    theirs = SentenceTransformer(str(tmp_path), device="cpu")
    read = theirs.encode_document(TEXTS, normalize_embeddings=similarity == "cosine")
    np.testing.assert_allclose(read, ours, atol=2e-6)
    poolings = [json.loads(path.read_text()) for path in tmp_path.rglob("*Pooling/config.json")]
    assert [pooling["word_embedding_dimension"] for pooling in poolings] == [32] * (2 if towers == "separate" else 1)
    # What is on disk is the whole encoder, so another dimension may be asked of it.
    more = encode_texts(load_retriever(ModelConfig(str(tmp_path), truncate_dim=32)), TEXTS, "passage")
    np.testing.assert_allclose(more, whole, atol=1e-6)


def test_more_components_than_the_dim_are_refused(tiny_encoder: Path) -> None:
    assert load_retriever(ModelConfig(str(tiny_encoder), truncate_dim=32)).dim == 32
    with pytest.raises(
        ConfigError, match=r"truncate_dim: 33 is out of range, embeddings of .* have 32 components; give at most 32"
    ):
        load_retriever(ModelConfig(str(tiny_encoder), truncate_dim=33))


@pytest.mark.slow
def test_graphs_and_the_model_card_contain_the_setting(tiny_encoder: Path, tmp_path: Path) -> None:
    config = ModelConfig(str(tiny_encoder), truncate_dim=12)
    [onnx, openvino] = export(config, ExportConfig(formats="onnx,openvino"), tmp_path / "out", lambda line: None)
    assert max(onnx.difference, openvino.difference) < 1e-5
    card = (tmp_path / "out" / "README.md").read_text()
    assert "vectors of 12 components" in card
    assert 'encode_query(["a question"], normalize_embeddings=True)' in card
