"""Models that a whole command meets; broken files of one are cases of `unit/models/test_hostile_files.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile.case import Case, Maker, of_area
from hostile.making import change, document, fifo, folder, link, write

SEARCH = "search x --dataset letters --model model"
WEIGHTS, CONFIG = "model/model.safetensors", "model/config.json"
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


def poisoned(content: dict[str, Any]) -> None:
    for tensor in content.values():
        tensor.fill_(float("nan"))


def without(content: dict[str, Any]) -> None:
    del content["encoder.layer.0.attention.self.query.weight"]


CASES = of_area(
    "models",
    Case("weights that are a folder", SEARCH, "model: cannot be loaded", (folder(WEIGHTS),)),
    Case("weights that are a pipe", SEARCH, "model: cannot be loaded", (fifo(WEIGHTS),)),
    Case("weights that link to themselves", SEARCH, "model: cannot be loaded", (link(WEIGHTS, "model.safetensors"),)),
    Case(
        "weights of NaN",
        SEARCH,
        "passage encoder: 160 embeddings are not finite, the first of text 'jggifh is hfiggj'",
        (tensors(poisoned),),
    ),
    *[
        Case(f"missing tensors for {words.split()[0]}", words, UNTRAINED, (tensors(without),))
        for words in (
            "evaluate --datasets letters --model model --output out",
            "encode --dataset letters --model model --output out",
            "index --dataset letters --model model --output out",
            "mine --dataset letters --model model --method dense --output out",
            "export --model model --output out",
        )
    ],
    Case(  # a training reads the weights in its worker: the same command continues with a whole model
        "missing tensors for train",
        "train --dataset letters --model model --output out --max-steps 2",
        UNTRAINED,
        (tensors(without),),
        leaves=("out*",),
    ),
    Case(
        "a config that names code of its own, which is not run",
        SEARCH,
        make=(document(CONFIG, lambda c: c.update(auto_map={"AutoModel": "evil.Model", "AutoConfig": "evil.Config"})),),
        code=0,
    ),
    Case("a config of garbage", SEARCH, CONFIG, (write(CONFIG, b"\xff\xfe\x00"),)),
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
    Case("a data set as model", SEARCH.replace("--model model", "--model letters"), "has no config.json"),
    Case("a hub model while offline", SEARCH.replace("--model model", "--model no/such"), "the hub cannot be reached"),
)
