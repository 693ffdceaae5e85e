"""Model files that are missing, broken or of wrong shapes and types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile.case import Case, Maker, of_area
from hostile.making import change, cut, document, fifo, folder, removed, write

SEARCH = "search x --dataset letters --model model"
WEIGHTS, CONFIG, TOKENIZER = "model/model.safetensors", "model/config.json", "model/tokenizer.json"


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


def poisoned(content: dict[str, Any]) -> None:
    for tensor in content.values():
        tensor.fill_(float("nan"))


def without(content: dict[str, Any]) -> None:
    del content[first(content, "query.weight")]


def setting(name: str, value: Any, line: str = "", fast: bool = False) -> Case:
    """A value in config.json."""
    return Case(
        f"a config with {name} {value!r}",
        SEARCH,
        line,
        (document(CONFIG, lambda c: c.update({name: value})),),
        fast=fast,
    )


def with_file(name: str, path: str, content: str | bytes, line: str = "", fast: bool = False) -> Case:
    """A file of the model replaced."""
    return Case(name, SEARCH, line, (write(path, content),), fast=fast)


CASES = of_area(
    "models",
    Case("a model without config", SEARCH, "has no config.json", (removed(CONFIG),), fast=True),
    Case("a model without weights", SEARCH, "model: cannot be loaded", (removed(WEIGHTS),), fast=True),
    Case(
        "a model without tokenizer",
        SEARCH,
        "model: has no tokenizer; copy tokenizer.json and tokenizer_config.json next to config.json",
        (removed(TOKENIZER), removed("model/tokenizer_config.json")),
    ),
    Case(
        "a model of pickled weights",
        SEARCH,
        "model: cannot be loaded",
        (removed(WEIGHTS), write("model/pytorch_model.bin", b"\x80\x04.")),
        fast=True,
    ),
    Case(
        "weights that are cut",
        SEARCH,
        "model/model.safetensors: is damaged or changed: Error while deserializing header: incomplete ",
        (cut(WEIGHTS, 5000),),
        fast=True,
    ),
    Case("weights that are a pipe", SEARCH, "model: cannot be loaded", (fifo(WEIGHTS),)),
    Case("weights with a tensor missing", SEARCH, "query.weight", (tensors(without),), fast=True),
    Case(
        "weights of NaN",
        SEARCH,
        "passage encoder: 160 embeddings are not finite, the first of text 'jggifh is hfiggj'",
        (tensors(poisoned),),
    ),
    Case(
        "missing tensors at evaluation",
        "evaluate --datasets letters --model model --output out",
        "model: has no trained weights for encoder.layer.0.attention.self.query.weight, and would use ",
        (tensors(without),),
    ),
    Case(
        "missing tensors at training",
        "train --dataset letters --model model --output out --max-steps 2",
        "model: has no trained weights for encoder.layer.0.attention.self.query.weight, and would use ",
        (tensors(without),),
    ),
    Case(
        "missing tensors at export",
        "export --model model --output out",
        "model: has no trained weights for encoder.layer.0.attention.self.query.weight, and would use ",
        (tensors(without),),
    ),
    setting("hidden_size", "abc", fast=True),
    Case(
        "a config that names code of its own, which is not run",
        SEARCH,
        make=(document(CONFIG, lambda c: c.update(auto_map={"AutoModel": "evil.Model", "AutoConfig": "evil.Config"})),),
        code=0,
    ),
    with_file("a config that is empty", CONFIG, "", fast=True),
    with_file("a config nested deeply", CONFIG, "[" * 100_000),
    with_file("a tokenizer of nothing", TOKENIZER, "{}", fast=True),
    with_file("a tokenizer config of another class", "model/tokenizer_config.json", '{"tokenizer_class": "os.system"}'),
    with_file(
        "modules of unknown kind", "model/modules.json", '[{"idx": 0, "name": "0", "path": "", "type": "os.system"}]'
    ),
    with_file(
        "modules that lead out",
        "model/modules.json",
        '[{"idx": 0, "name": "0", "path": "../../etc", "type": "sentence_transformers.models.Transformer"}]',
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
        fast=True,
    ),
    Case("a data set as model", SEARCH.replace("--model model", "--model letters"), "has no config.json"),
    Case(
        "a hub model while offline",
        SEARCH.replace("--model model", "--model no/such"),
        "no/such: the hub cannot be reached...or use 'minilm'",
        fast=True,
    ),
)
