"""Directories that raytriever writes encode alike in raytriever, sentence-transformers and transformers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import AutoModelForTextEncoding

from raytriever.models.config import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.models.writer import write_model

sys.path += [str(Path(__file__).parents[3] / folder) for folder in ("benchmarks", "tests/support")]
from cases import CASES, TEXTS, Case

import zoo

SOME = TEXTS[:6]
READ = [case for case in CASES if not case.refused]


def assert_equal(one: zoo.Encoded, other: zoo.Encoded) -> None:
    assert zoo.smallest_cosine(one, other) >= zoo.AGREES
    assert zoo.difference_of_scores(one, other) <= 1 - zoo.AGREES


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("case", READ, ids=lambda case: case.name)
def test_embeddings_stay_the_same(case: Case, tmp_path: Path) -> None:
    source, written, again = (tmp_path / name for name in ("source", "written", "again"))
    case.write(source)
    retriever = load_retriever(ModelConfig(str(source)))
    own = zoo.by_raytriever(retriever, SOME)
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


@pytest.mark.parametrize(
    "name", ["bert-cls", "modernbert-gte", "xlm-roberta-e5", "t5-sentence", "qwen3-embedding", "llama-bidirectional"]
)
def test_transformers_computes_the_same_states(name: str, tmp_path: Path) -> None:
    source, written = tmp_path / "source", tmp_path / "written"
    next(case for case in CASES if case.name == name).write(source)
    retriever = load_retriever(ModelConfig(str(source)))
    written.mkdir()
    write_model(retriever, written)
    model: nn.Module = AutoModelForTextEncoding.from_pretrained(written) if "t5" in name else auto_model(written)
    batch = retriever.pad(retriever.token_ids(SOME, "passage"))
    with torch.inference_mode():
        own, plain = (each.eval()(**batch).last_hidden_state for each in (retriever.passage.backbone, model))
    torch.testing.assert_close(plain, own, rtol=0, atol=0)


def auto_model(folder: Path) -> nn.Module:
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder)
