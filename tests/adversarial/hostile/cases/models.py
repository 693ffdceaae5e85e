"""Model files that are missing, broken or of wrong shapes and types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile.case import Case, Maker, of_area
from hostile.making import change, document, fifo, folder, link, removed, write

SEARCH = "search x --dataset letters --model model"
WEIGHTS, CONFIG, TOKENIZER = "model/model.safetensors", "model/config.json", "model/tokenizer.json"
DAMAGED = f"{WEIGHTS}: is damaged or changed: Error while deserializing header: "
UNTRAINED = "model: has no trained weights for encoder.layer.0.attention.self.query.weight, and would use "


def tensors(alter: Callable[[dict[str, Any]], Any]) -> Maker:
    """Alter the weights; what the function returns replaces them where that is not None."""

    def action(file: Path) -> None:
        from safetensors.torch import load_file, save_file

        content = load_file(file)
        replacement = alter(content)
        file.unlink()
        save_file(content if replacement is None else replacement, file, {"format": "pt"})

    return change(WEIGHTS, action)


def first(content: dict[str, Any], suffix: str) -> str:
    """The first tensor whose name ends so."""
    return next(name for name in sorted(content) if name.endswith(suffix))


def half(content: dict[str, Any]) -> None:
    name = first(content, "word_embeddings.weight")
    content[name] = content[name][:20].clone()


def whole(content: dict[str, Any]) -> None:
    import torch

    name = first(content, "query.weight")
    content[name] = content[name].to(torch.int32)


def poisoned(content: dict[str, Any]) -> None:
    for tensor in content.values():
        tensor.fill_(float("nan"))


def without(content: dict[str, Any]) -> None:
    del content[first(content, "query.weight")]


def setting(name: str, value: Any, line: str = "") -> Case:
    """A value in config.json."""
    return Case(f"a config with {name} {value!r}", SEARCH, line, (document(CONFIG, lambda c: c.update({name: value})),))


def with_file(name: str, path: str, content: str | bytes, line: str = "") -> Case:
    """A file of the model replaced."""
    return Case(name, SEARCH, line, (write(path, content),))


CASES = of_area(
    "models",
    Case("a model without config", SEARCH, "has no config.json", (removed(CONFIG),)),
    Case("a model without weights", SEARCH, "model: cannot be loaded", (removed(WEIGHTS),)),
    Case(
        "a model without tokenizer",
        SEARCH,
        "model: has no tokenizer",
        (removed(TOKENIZER), removed("model/tokenizer_config.json")),
    ),
    Case(
        "a model of pickled weights",
        SEARCH,
        "model: cannot be loaded",
        (removed(WEIGHTS), write("model/pytorch_model.bin", b"\x80\x04.")),
    ),
    with_file("weights that are cut", WEIGHTS, bytes(8), DAMAGED),
    with_file("weights of no bytes", WEIGHTS, b"", f"{DAMAGED}header too"),
    with_file("weights that are a pickle", WEIGHTS, b"\x80\x04\x95" + bytes(100), DAMAGED),
    with_file(
        "weights with a header of a terabyte", WEIGHTS, b"\xff\xff\xff\xff\xff\x00\x00\x00{}", f"{DAMAGED}header too"
    ),
    Case("weights that are a folder", SEARCH, "model: cannot be loaded", (folder(WEIGHTS),)),
    Case("weights that are a pipe", SEARCH, "model: cannot be loaded", (fifo(WEIGHTS),)),
    Case("weights that link to themselves", SEARCH, "model: cannot be loaded", (link(WEIGHTS, "model.safetensors"),)),
    Case("weights with a tensor missing", SEARCH, "query.weight", (tensors(without),)),
    Case(
        "weights with a tensor of another shape",
        SEARCH,
        "model: embeddings.word_embeddings.weight has the shape [20, 32], but config.json asks for ",
        (tensors(half),),
    ),
    Case(
        "weights of whole numbers",
        SEARCH,
        "model: encoder.layer.0.attention.self.query.weight is stored as I32, not as a float of 16 ",
        (tensors(whole),),
    ),
    Case(
        "weights of NaN",
        SEARCH,
        "passage encoder: 160 embeddings are not finite, the first of text 'jggifh is hfiggj'",
        (tensors(poisoned),),
    ),
    Case(
        "weights of no tensors",
        SEARCH,
        "model: has no trained weights for embeddings.word_embeddings.weight, embeddings.position_e",
        (tensors(lambda content: {}),),
    ),
    *[
        Case(f"missing tensors for {words.split()[0]}", words, UNTRAINED, (tensors(without),))
        for words in (
            "evaluate --datasets letters --model model --output out",
            "train --dataset letters --model model --output out --max-steps 2",
            "encode --dataset letters --model model --output out",
            "index --dataset letters --model model --output out",
            "mine --dataset letters --model model --method dense --output out",
            "export --model model --output out",
        )
    ],
    setting("hidden_size", "abc"),
    setting("hidden_size", -1),
    setting("hidden_size", 10**12),
    setting("num_hidden_layers", 10**9),
    setting("num_attention_heads", 0),
    setting("vocab_size", 5),
    setting("model_type", "unknown-model"),
    setting("model_type", 7),
    setting("max_position_embeddings", 0),
    Case(
        "a config that names code of its own, which is not run",
        SEARCH,
        make=(document(CONFIG, lambda c: c.update(auto_map={"AutoModel": "evil.Model", "AutoConfig": "evil.Config"})),),
        code=0,
    ),
    setting("hidden_act", "explode"),
    setting("pad_token_id", 10**6),
    with_file("a config that is empty", CONFIG, ""),
    with_file("a config of garbage", CONFIG, b"\xff\xfe\x00"),
    with_file("a config nested deeply", CONFIG, "[" * 100_000),
    with_file("a tokenizer of nothing", TOKENIZER, "{}"),
    with_file("a tokenizer config that is an array", "model/tokenizer_config.json", "[]"),
    with_file("a tokenizer config of another class", "model/tokenizer_config.json", '{"tokenizer_class": "os.system"}'),
    with_file("modules that are null", "model/modules.json", "[null]"),
    with_file(
        "modules of unknown kind", "model/modules.json", '[{"idx": 0, "name": "0", "path": "", "type": "os.system"}]'
    ),
    with_file(
        "modules that lead out",
        "model/modules.json",
        '[{"idx": 0, "name": "0", "path": "../../etc", "type": "sentence_transformers.models.Transformer"}]',
    ),
    with_file("our description of garbage", "model/raytriever.json", "{"),
    with_file("our description of wrong types", "model/raytriever.json", '{"pooling": 7, "similarity": []}'),
    Case(
        "a tokenizer larger than the table of embeddings",
        SEARCH,
        "model: the tokenizer has the token '丱' with the number 241, but the model embeds 192 token",
        (document(TOKENIZER, lambda c: c["model"]["vocab"].update({chr(0x4E00 + i): 192 + i for i in range(50)})),),
    ),
    Case(
        "a cross-encoder of three labels",
        "score --dataset letters --model cross --negatives negatives --output out",
        "cross: classifier.weight has the shape [1, 32], but config.json asks for [3, 32]",
        (
            document(
                "cross/config.json",
                lambda c: c.update(
                    num_labels=3, id2label={"0": "a", "1": "b", "2": "c"}, label2id={"a": 0, "b": 1, "c": 2}
                ),
            ),
        ),
    ),
    Case(
        "a cross-encoder without its head",
        "score --dataset letters --model model --negatives negatives --output out",
        "classifier",
    ),
    Case(
        "a model folder of nothing",
        SEARCH.replace("--model model", "--model nothing"),
        "nothing: has no config.json and no modules.json",
        (folder("nothing"),),
    ),
    Case(
        "a model that is a file",
        SEARCH.replace("--model model", "--model letters/corpus.jsonl"),
        "is a file, not a directory",
    ),
    Case("a data set as model", SEARCH.replace("--model model", "--model letters"), "has no config.json"),
    Case("a hub model while offline", SEARCH.replace("--model model", "--model no/such"), "the hub cannot be reached"),
)
