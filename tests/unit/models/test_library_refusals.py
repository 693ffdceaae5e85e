"""Directories of sentence-transformers that are not read: each ends in one line. Heads are trained like the encoder."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from changes import Change, only_pickle, settings, tensors, without
from directories import written
from sentence_transformers.base.modules import Dense

from raytriever.core.errors import ModelError
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import load_retriever

SBERT, LIBRARY, DENSE = "sentence_bert_config.json", "config_sentence_transformers.json", "2_Dense/config.json"
HEAD = "2_Dense/model.safetensors"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a Dense module, written by the library."""
    folder = tmp_path_factory.mktemp("library") / "model"
    written("bert", "mean", lambda: Dense(32, 12))(folder)
    return folder


def module(**values: str) -> Change:
    def change(folder: Path) -> None:
        modules = json.loads((folder / "modules.json").read_text())
        modules[2] |= values
        (folder / "modules.json").write_text(json.dumps(modules))

    return change


TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
CASES: dict[str, tuple[Change, str]] = {
    "euclidean": (settings(LIBRARY, similarity_fn_name="euclidean"), "'euclidean' is not supported; choose similarity"),
    "sparse": (settings(LIBRARY, model_type="SparseEncoder"), "is a SparseEncoder"),
    "a dimension that does not fit": (settings(DENSE, in_features=20), "has the shape .*asks for"),
    "no tensor": (
        without("bias", name=HEAD),
        "has no tensor linear.bias; save the model again with sentence-transformers",
    ),
    "another shape": (
        tensors(lambda held: {**held, "linear.weight": torch.zeros(3, 3)}, HEAD),
        r"linear.weight has the shape \[3, 3\], but config.json asks for \[12, 32\]",
    ),
    "a pickle": (
        partial(only_pickle, name=HEAD),
        "only pytorch_model.bin, a pickle.*; save the model again with sentence-transformers",
    ),
    "a custom activation": (settings(DENSE, activation_function="my.Tanh"), "activation function 'my.Tanh' is not"),
    "an activation with arguments": (
        settings(DENSE, activation_function="torch.nn.modules.activation.Threshold"),
        "Threshold' is not supported",
    ),
    "tokens as input": (settings(DENSE, module_input_name="token_embeddings"), "module_input_name 'token_embeddings'"),
    "a custom module": (module(type="modeling.Dense"), "has the module modeling.Dense, whose code"),
    "another module": (module(type="sentence_transformers.models.LSTM"), "has a LSTM module"),
    "query expansion": (
        settings(SBERT, query_expansion={"strategy": "fixed"}),
        "query_expansion .*fixed.* is not supported",
    ),
    "messages": (
        settings(SBERT, modality_config={"text": TEXT, "message": TEXT}),
        "modality_config .*message.* is not supported",
    ),
    "images": (settings(SBERT, modality_config={"text": TEXT, "image": TEXT}), "modality_config .*image.* is not"),
    "another output": (
        settings(SBERT, module_output_name="sentence_embedding"),
        "module_output_name sentence_embedding is",
    ),
    "another task": (settings(SBERT, transformer_task="fill-mask"), "transformer_task fill-mask is not supported"),
    "arguments of a model": (settings(SBERT, model_args={"default_task": "a"}), "model_args 'default_task' is not"),
    "arguments of a tokenizer": (settings(SBERT, tokenizer_args={"foo": 1}), "tokenizer_args 'foo' is not supported"),
    "arguments of a configuration": (settings(SBERT, config_args={"foo": 1}), "config_args 'foo' is not supported"),
    "quantized": (settings("config.json", quantization_config={"quant_method": "gptq"}), r"is quantized \(gptq\)"),
    "a pooling that is wider": (
        settings("1_Pooling/config.json", pooling_mode=["mean", "cls"]),
        "expects vectors of 32 components, but the modules before it return 64",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_read_is_refused_in_one_line(name: str, model: Path, tmp_path: Path) -> None:
    change, line = CASES[name]
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    change(folder)
    with pytest.raises(ModelError, match=line) as error:
        load_retriever(ModelConfig(str(folder)))
    assert "\n" not in str(error.value)


def test_the_flag_wins_over_an_unsupported_similarity(model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    settings(LIBRARY, similarity_fn_name="manhattan")(folder)
    assert load_retriever(ModelConfig(str(folder), similarity="dot")).description.similarity == "dot"


def test_a_dense_module_is_trained(model: Path) -> None:
    retriever = load_retriever(ModelConfig(str(model), similarity="dot"))
    tokens = retriever.pad(retriever.token_ids(["kaelbra loka"], "query"))
    retriever.encode(tokens, "query").sum().backward()
    (head,) = retriever.query.head
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in head.parameters())


def test_the_reading_of_a_model_is_one_line(model: Path) -> None:
    retriever = load_retriever(ModelConfig(str(model), query_prompt="query: ", query_length=32))
    assert retriever.summary() == ("mean pooling, Dense 32 to 12 (Tanh), cosine, 32 and 512 tokens, prompt query, fp32")
    np.testing.assert_equal(retriever.dim, 12)
