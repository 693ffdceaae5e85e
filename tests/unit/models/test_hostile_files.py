"""Damaged or hostile model directories, and those of sentence-transformers that are not read: each ends in one line."""

from __future__ import annotations

import json
import logging
import shutil
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from changes import Change, only_pickle, put, settings, tensors, without
from directories import written
from safetensors.torch import load_file
from sentence_transformers.base.modules import Dense
from tiny_models import write_cross_encoder

from raytriever.core.errors import ModelError
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.models.directory.model_files import load_weights
from raytriever.models.directory.modules import ModelFiles
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.save_model import write_model

LAST = "encoder.layer.1.output.dense.weight"
ST = "sentence_transformers.models."


def modules(*entries: Any, **files: Any) -> Change:
    """`modules.json` of a Transformer in the directory itself and a Pooling, or of the entries; and other files."""
    usual = [{"type": ST + "Transformer", "path": ""}, {"type": ST + "Pooling", "path": "1_Pooling"}]

    def change(folder: Path) -> None:
        put("modules.json", json.dumps(entries or usual))(folder)
        put("1_Pooling/config.json", '{"pooling_mode_mean_tokens": true}')(folder)
        for name, content in files.items():
            file = {"pooling": "1_Pooling/config.json", "own": "config_sentence_transformers.json"}.get(name)
            put(file or "sentence_bert_config.json", json.dumps(content))(folder)

    return change


def index(content: Any) -> Change:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        put("model.safetensors.index.json", json.dumps(content))(folder)

    return change


def vocabulary(**words: int) -> Change:
    def change(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        content["model"]["vocab"].update(words)
        put("tokenizer.json", json.dumps(content))(folder)

    return change


def header(length: int) -> Change:
    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(struct.pack("<Q", length) + file.read_bytes()[8:])

    return change


def remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def no_padding(folder: Path) -> None:
    content = json.loads((folder / "tokenizer_config.json").read_text())
    del content["pad_token"], content["unk_token"]
    put("tokenizer_config.json", json.dumps(content))(folder)


def config(**values: Any) -> Change:
    return settings("config.json", **values)


def tokens(**values: Any) -> Change:
    return settings("tokenizer_config.json", **values)


# Changes of a valid directory, and text of the error line, much of which is that of the libraries.
CASES: list[tuple[str, Change, str]] = [
    ("a size that is text", config(hidden_size="abc"), r"cannot be loaded \(.*'hidden_size' expected int, got str"),
    ("a negative size", config(hidden_size=-32), r"cannot be loaded \(.* negative dimension -32"),
    ("a large wrong size", config(hidden_size=100_000), r"has the shape \[192, 32\], but config.json asks for"),
    ("a billion layers", config(num_hidden_layers=10**9), "has 1,000,000,000 layers, more than 1,000"),
    ("a layer too many", config(num_hidden_layers=3), r"no trained weights for encoder\.layer\.2\..*\(16 tensors\)"),
    ("heads that do not divide", config(num_attention_heads=3), "not a multiple of the number of attention heads"),
    ("another vocabulary", config(vocab_size=10), r"has the shape \[192, 32\], but config.json asks for \[10, 32\]"),
    ("an unknown activation", config(hidden_act="nope"), "cannot be loaded .*nope"),
    ("an unknown model type", config(model_type="nope"), "cannot be loaded .*`nope`"),
    ("an encoder with a decoder", lambda f: put("config.json", '{"model_type": "bart"}')(f), "encoder with a decoder"),
    ("no text encoder", lambda f: put("config.json", '{"model_type": "vit_mae"}')(f), 'not a text encoder .vit_mae.'),
    ("padding outside", config(pad_token_id=10**6), "Padding_idx must be within num_embeddings"),
    ("dropout above 1", config(hidden_dropout_prob=7), "dropout probability"),
    ("an unknown dtype", config(dtype="nope"), "cannot be loaded .*nope"),
    ("a config.json of nothing", put("config.json", "{}"), "model_type"),
    ("a damaged config.json", put("config.json", '{"a": '), "config.json: is damaged or changed: it is not JSON"),
    ("a deep config.json", put("config.json", "[" * 100_000), "config.json: .*nested more than 100 deep"),
    ("no config.json", remove("config.json"), "has no config.json"),
    ("tokenizer.json of {}", put("tokenizer.json", "{}"), "has a tokenizer that cannot be loaded"),
    ("tokenizer.json of null", put("tokenizer.json", "null"), "has a tokenizer that cannot be loaded"),
    ("an unknown model of tokens", settings("tokenizer.json", model={"type": "Q"}), "tokenizer that cannot be loaded"),
    ("no tokenizer", remove("tokenizer.json"), "has no tokenizer"),
    ("a list as tokenizer_config.json", put("tokenizer_config.json", "[]"), "tokenizer_config.json: .* a list"),
    ("added tokens of null", put("added_tokens.json", "null"), "has a tokenizer that cannot be loaded"),
    ("a length that is text", tokens(model_max_length="x"), "model_max_length is 'x', expected a whole number"),
    ("a negative length", tokens(model_max_length=-1), "invalid value of query_length: -1 is out of range"),
    ("padding without content", tokens(pad_token={"a": 1}), "pad_token has to be either str or AddedToken"),
    ("padding on no side", tokens(padding_side="up"), "has a tokenizer that cannot be loaded"),
    ("no token for padding", no_padding, "the tokenizer has no padding token"),
    ("a token more than embeddings", vocabulary(zz=192), r"the token 'zz' with the id 192, but .* has 192 embeddings"),
    ("a new padding token", tokens(pad_token="[NEW]"), r"the token '\[NEW\]' with the id 192"),
    ("modules.json of []", put("modules.json", "[]"), "does not name a Transformer module"),
    ("a module without a type", modules({"path": ""}), "modules.json: .*'0.type' is missing"),
    ("an unknown module", modules({"type": "os.system", "path": ""}), "has the module os.system, whose code"),
    ("a path that leaves", modules({"type": ST + "Transformer", "path": "../.."}), "'../..' leaves the model's direc"),
    ("an absolute path", modules({"type": ST + "Transformer", "path": "/etc"}), "'/etc' leaves the model's directory"),
    ("a path with a zero byte", modules({"type": ST + "Transformer", "path": "a\0b"}), "which is missing"),
    ("a missing sub-folder", modules({"type": ST + "Transformer", "path": "0_T"}), "names the directory '0_T', which"),
    ("a module twice", modules(*[{"type": ST + "Transformer", "path": ""}] * 2), "names two Transformer modules"),
    ("an unknown pooling mode", modules(pooling={"pooling_mode": "zz"}), "pooling mode 'zz' is not supported"),
    ("a pooling of numbers", modules(pooling={"pooling_mode": 7}), "1_Pooling/config.json: .*'pooling_mode' is 7"),
    ("a length of text", modules(sbert={"max_seq_length": "x"}), "'max_seq_length' is a text"),
    ("a length of zero", modules(sbert={"max_seq_length": 0}), "invalid value of query_length: 0 is out of range"),
    ("more tokens than positions", modules(sbert={"max_seq_length": 65}), "has 64 positions, but texts may have 65"),
    ("a prompt that is a number", modules(own={"prompts": {"query": 3}}), "'prompts.query' is 3, expected a text"),
    ("a cut that is text", modules(own={"truncate_dim": "x"}), "'truncate_dim' is a text"),
    ("our pooling, unknown", settings("raytriever.json", pooling="zz"), "invalid value of pooling: 'zz' is invalid"),
    ("our length, too long", settings("raytriever.json", query_length=9999), "has 64 positions, but .* 9999 tokens"),
    ("our file with more", settings("raytriever.json", query_length=9, foo=1), "'foo' is unknown"),
    ("no weights", remove("model.safetensors"), r"cannot be loaded \(no model.safetensors\)"),
    ("a pickle alone", only_pickle, r"only pytorch_model.bin, a pickle, which may run code and is never read"),
    ("half weights", lambda f: put("model.safetensors", (f / "model.safetensors").read_bytes()[:-1])(f), "damaged or"),
    ("a header too large", header(2**40), "is damaged or changed"),
    ("a missing tensor", without(LAST), f"has no trained weights for {LAST}, and would use random numbers"),
    ("a missing layer", without("layer.1."), r"no trained weights for encoder\.layer\.1\..*, \.\.\. \(16 tensors\)"),
    ("half a pooler", without("pooler.dense.bias"), "has no trained weights for pooler.dense.bias"),
    ("a tensor of nothing", tensors(lambda held: {"a": torch.zeros(1)}), "no trained weights for"),
    ("another shape", tensors(lambda held: {**held, LAST: torch.zeros(3, 3)}),
     rf"{LAST} has the shape \[3, 3\], but config.json asks for \[32, 64\]"),
    ("whole numbers", tensors(lambda held: {**held, LAST: torch.zeros(32, 64, dtype=torch.int64)}),
     f"{LAST} is stored as I64, not as a float"),
    ("quantized", tensors(lambda held: {**held, LAST: torch.zeros(32, 64, dtype=torch.int8)}), "is stored as I8"),
    ("a missing shard", index({"weight_map": {"a": "model-1.safetensors"}}), "names model-1.safetensors, which is mis"),
    ("a shard outside", index({"weight_map": {"a": "../../x.safetensors"}}), "not a safetensors file next"),
    ("an index of nothing", index({"weight_map": {}}), "names no file"),
    ("adapters", put("adapter_config.json", '{"base_model_name_or_path": "/nowhere"}'), "holds adapters of type None"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "line"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_broken_model_ends_in_one_line(tiny_encoder: Path, tmp_path: Path, change: Change, line: str) -> None:
    folder = Path(shutil.copytree(tiny_encoder, tmp_path / "model"))
    change(folder)
    with pytest.raises(ModelError, match=line) as error:
        load_retriever(ModelConfig(str(folder)))
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_defect_of_the_project_keeps_its_traceback(tiny_encoder: Path) -> None:
    from transformers import AutoModel

    def check(model: Any, directory: Path) -> None:
        raise KeyError("a defect")

    transformer = ModelFiles.read(tiny_encoder).sides["passage"].transformer
    with pytest.raises(KeyError, match="a defect"):
        load_weights(AutoModel, transformer.config, tiny_encoder, torch.float32, check)


def test_a_file_is_not_a_model(tiny_encoder: Path) -> None:
    with pytest.raises(ModelError, match="is a file, not a directory"):
        load_retriever(ModelConfig(str(tiny_encoder / "config.json")))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_code_of_a_model_never_runs(tiny_encoder: Path, tmp_path: Path, name: str, monkeypatch: Any) -> None:
    folder = Path(shutil.copytree(tiny_encoder, tmp_path / "model"))
    auto = dict.fromkeys(["AutoConfig", "AutoModel"], "evil.Evil")
    tokenizer = {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, "tokenizer_class": "Evil"}
    settings(name, **({"auto_map": auto, "model_type": "evil"} if name == "config.json" else tokenizer))(folder)
    put("evil.py", f"open({str(tmp_path / 'evil')!r}, 'w')\nclass Evil: pass\n")(folder)
    # transformers asks at the terminal unless running code is forbidden.
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a person was asked to run code"))
    if name == "config.json":
        with pytest.raises(ModelError, match="cannot be loaded"):
            load_retriever(ModelConfig(str(folder)))
    else:
        load_retriever(ModelConfig(str(folder)))  # the tokenizer that the files describe, without the code
    assert not (tmp_path / "evil").exists()


def embedding(retriever: Retriever) -> np.ndarray:
    with torch.no_grad():
        return retriever.encode(retriever.pad(retriever.token_ids(["what is ab"], "query")), "query").numpy()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    with caplog.at_level(logging.WARNING):
        yield lambda: [record.getMessage() for record in caplog.records if record.name.startswith("raytriever")]


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (without("pooler"), []),
        (
            tensors(
                lambda held: {f"bert.{name}": value for name, value in held.items()} | {"cls.bias": torch.zeros(3)}
            ),
            ["contains cls.bias, which BertModel does not use."],
        ),
        (tensors(lambda held: held | {"embeddings.position_ids": torch.arange(64)}), []),
        (
            tensors(lambda held: held | {f"more.{i}": torch.zeros(1) for i in range(5)}),
            ["contains more.0, more.1, more.2, ... (5 tensors), which BertModel does not use."],
        ),
    ],
    ids=["no pooler", "a masked language model", "position ids", "more tensors"],
)
def test_usual_directories_load_unchanged(
    tiny_encoder: Path, tmp_path: Path, change: Change, reported: list[str], lines: Callable[[], list[str]]
) -> None:
    folder = Path(shutil.copytree(tiny_encoder, tmp_path / "model"))
    change(folder)
    loaded = load_retriever(ModelConfig(str(folder)))
    load_retriever(ModelConfig(str(folder)))
    np.testing.assert_array_equal(embedding(loaded), embedding(load_retriever(ModelConfig(str(tiny_encoder)))))
    assert lines() == [f"{folder}: {line}" for line in reported]


def test_a_model_without_a_pooler_is_written_without_one(tiny_encoder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_encoder, tmp_path / "model"))
    without("pooler")(folder)
    (tmp_path / "written").mkdir()
    write_model(load_retriever(ModelConfig(str(folder))), tmp_path / "written")
    assert not any("pooler" in name for name in load_file(tmp_path / "written" / "model.safetensors"))
    load_retriever(ModelConfig(str(tmp_path / "written")))


def test_the_second_of_two_towers_is_checked(tiny_encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "two"
    folder.mkdir()
    write_model(load_retriever(ModelConfig(str(tiny_encoder), towers="separate")), folder)
    without(LAST)(folder / "document_0_Transformer")
    with pytest.raises(ModelError, match=f"document_0_Transformer: has no trained weights for {LAST}"):
        load_retriever(ModelConfig(str(folder)))


def test_a_transformer_may_be_in_a_folder_of_its_own(tiny_encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_encoder, folder / "0_Transformer")
    entries = [{"type": ST + "Transformer", "path": "0_Transformer"}, {"type": ST + "Pooling", "path": "1_Pooling"}]
    modules(*entries)(folder)
    np.testing.assert_allclose(
        embedding(load_retriever(ModelConfig(str(folder), similarity="cosine"))),
        embedding(load_retriever(ModelConfig(str(tiny_encoder)))),
    )


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (tokens(model_max_length=-1), "reads at most -1 tokens of a pair, fewer than 8"),
        (put("modules.json", "[null]"), "modules.json: .* '0' is null"),
        (without(f"bert.{LAST}"), f"has no trained weights for bert.{LAST}"),
        (tensors(lambda held: {**held, "classifier.weight": torch.zeros(3, 3)}), r"classifier.weight has the shape \["),
        (only_pickle, "a pickle, which may run code and is never read"),
    ],
)
def test_a_broken_cross_encoder_ends_in_one_line(tiny_encoder: Path, tmp_path: Path, change: Change, line: str) -> None:
    folder = write_cross_encoder(tiny_encoder, tmp_path / "judge")
    change(folder)
    with pytest.raises(ModelError, match=line):
        CrossEncoder(folder, torch.device("cpu"), "fp32")


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
REFUSALS: dict[str, tuple[Change, str]] = {
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


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_not_read_is_refused_in_one_line(name: str, model: Path, tmp_path: Path) -> None:
    change, line = REFUSALS[name]
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
