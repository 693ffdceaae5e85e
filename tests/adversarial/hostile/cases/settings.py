"""Files of settings: YAML that is broken, too much, ambiguous or says what no setting may."""

from __future__ import annotations

from hostile.case import Case, of_area
from hostile.making import fifo, folder, link, write

TRAIN = "train --config mine.yaml --dataset letters --model model --output out"


def yaml(name: str, content: str | bytes, line: str = "") -> Case:
    """A file of settings for training."""
    return Case(name, TRAIN, line, (write("mine.yaml", content),))


def space(name: str, content: str, line: str) -> Case:
    """A search space for tuning."""
    words = "tune --dataset letters --model model --search-space space.yaml --output out"
    return Case(name, words, f"space.yaml: {line}", (write("space.yaml", content),))


CASES = of_area(
    "settings",
    yaml("settings of no bytes", "", "holds no sections"),
    yaml("a batch of a date", "training: {batch_size: 2024-01-01}", "batch_size is"),
    yaml("a batch in base sixty", "training: {batch_size: 1:4}", "batch_size is '1:4'"),
    yaml("a batch of ten thousand digits", f"training: {{batch_size: {'9' * 10_000}}}", "mine.yaml: is not YAML"),
    yaml("a rate of NaN", "training: {learning_rate: .nan}", "learning_rate: nan"),
    yaml("a data set with a NUL", 'data: {extra_datasets: "a\\0b"}', "extra_datasets a\\x00b: no data set of this"),
    yaml("an object of Python", "loss: {loss: !!python/object/apply:os.system ['touch HACKED']}", "is not YAML"),
    yaml("bytes that are no UTF-8", b"loss: {loss: \xff}", "is not YAML"),
    yaml("a control character", "loss: {loss: 'm\x07w'}", "is not YAML"),
    yaml("a stage called by a path", "stages: [{name: ../x}]", "mine.yaml: stage 1 has the invalid name '../x'"),
    Case("settings that are a folder", TRAIN, "mine.yaml: a folder is in the way", (folder("mine.yaml"),)),
    Case("settings that are a pipe", TRAIN, "mine.yaml: is a pipe, a socket or a device", (fifo("mine.yaml"),)),
    Case("settings that link to themselves", TRAIN, "mine.yaml: symbolic links", (link("mine.yaml", "mine.yaml"),)),
    Case("settings that are not there", TRAIN, "cannot be read"),
    space("a search space of garbage", "{", "is not YAML"),
    space("a search space of nothing", "", "the file holds no sections"),
    space(
        "a range that is empty", "training: {learning_rate: {low: 1, high: 0}}", "training.learning_rate.high: 0.0 is"
    ),
    space("a search space of a Python object", "loss: !!python/name:os.system", "is not YAML"),
)
