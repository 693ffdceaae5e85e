"""Files of settings: YAML that is broken, too much, ambiguous or says what no setting may."""

from __future__ import annotations

from hostile.case import Case, of_area
from hostile.making import fifo, folder, link, write

TRAIN = "train --config mine.yaml --dataset letters --model model --output out"
LAUGHS = "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def yaml(name: str, content: str | bytes, line: str = "", fast: bool = False) -> Case:
    """A file of settings for training."""
    return Case(name, TRAIN, line, (write("mine.yaml", content),), fast=fast)


CASES = of_area(
    "settings",
    yaml("settings of no bytes", "", "holds no sections", fast=True),
    yaml("a section twice", "loss: {loss: mw}\nloss: {loss: infonce}\n", "is given twice", fast=True),
    yaml("a batch of ten thousand digits", f"training: {{batch_size: {'9' * 10_000}}}", "mine.yaml: is not YAML"),
    yaml(
        "a data set with a NUL",
        'data: {extra_datasets: "a\\0b"}',
        "--extra-datasets a\\x00b: no data set of this name and no such folder",
    ),
    yaml(
        "an object of Python",
        "loss: {loss: !!python/object/apply:os.system ['touch HACKED']}",
        "is not YAML",
        fast=True,
    ),
    yaml("a control character", "loss: {loss: 'm\x07w'}", "is not YAML"),
    yaml(
        "lists nested deeply",
        "[" * 20_000,
        "mine.yaml: line 1: lists and mappings are nested more than 100 deep",
        fast=True,
    ),
    yaml(
        "a billion laughs",
        f"a: &a [x]\n{LAUGHS}",
        "mine.yaml: line 6: there are more than 100,000 values, with aliases written out",
    ),
    yaml(
        "settings of 20 MB",
        "x: [" + "1, " * 7_000_000 + "1]",
        "mine.yaml: is larger than 1 MB, too large for a file of settings",
    ),
    yaml("a stage called by a path", "stages: [{name: ../x}]", "mine.yaml: stage 1 has the invalid name '../x'"),
    Case("settings that are a folder", TRAIN, "mine.yaml: a folder is in the way", (folder("mine.yaml"),)),
    Case("settings that are a pipe", TRAIN, "mine.yaml: is a pipe, a socket or a device", (fifo("mine.yaml"),)),
    Case(
        "settings that link to themselves",
        TRAIN,
        "mine.yaml: symbolic links lead in a circle",
        (link("mine.yaml", "mine.yaml"),),
    ),
    Case("settings that are not there", TRAIN, "cannot be read", fast=True),
    Case(
        "settings with an endless name",
        f"train --config {'y' * 300}",
        "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy",
    ),
    Case(
        "a search space of garbage",
        "tune --dataset letters --model model --search-space space.yaml --output out",
        "space.yaml: is not YAML",
        (write("space.yaml", "{"),),
    ),
    Case(
        "a search space of a Python object",
        "tune --dataset letters --model model --search-space space.yaml --output out",
        "space.yaml: is not YAML",
        (write("space.yaml", "loss: !!python/name:os.system"),),
    ),
)
