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
    yaml("settings that are a text", "hello", "holds no sections"),
    yaml("settings that are null", "~", "holds no sections"),
    yaml("a section twice", "loss: {loss: mw}\nloss: {loss: infonce}\n", "is given twice", fast=True),
    yaml("a setting twice", "loss: {loss: mw, loss: infonce}\n", "is given twice"),
    yaml("a section that is not known", "optimizer: {lr: 1}", "unknown section 'optimizer'"),
    yaml("a setting that is not known", "training: {lr: 1}", "unknown setting 'lr'"),
    yaml("a number as section", "7: {a: 1}", "mine.yaml: unknown section 7"),
    yaml("a list as section", "? [a]\n: 1", "mine.yaml: is not YAML"),
    yaml("a section of null", "loss:", "mine.yaml: section 'loss' holds None"),
    yaml("a section of a list", "loss: [mw]", "mine.yaml: section 'loss' holds ['mw']"),
    yaml("a batch of a date", "training: {batch_size: 2024-01-01}", "batch_size is"),
    yaml("a batch in base sixty", "training: {batch_size: 1:4}", "batch_size is '1:4'"),
    yaml("a batch in octal", "training: {batch_size: 0o17}", "batch_size is"),
    yaml("a batch of a hundred digits", f"training: {{batch_size: {'9' * 100}}}", "--batch-size"),
    yaml("a batch of ten thousand digits", f"training: {{batch_size: {'9' * 10_000}}}", "mine.yaml: is not YAML"),
    yaml("a rate of infinity", "training: {learning_rate: .inf}", "--learning-rate: inf"),
    yaml("a rate of NaN", "training: {learning_rate: .nan}", "--learning-rate: nan"),
    yaml("a data set of a number", "data: {extra_datasets: 7}", "mine.yaml: extra_datasets: 7"),
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
    yaml("a name of Python", "loss: !!python/name:os.system", "is not YAML"),
    yaml("a tag that is not known", "loss: !evil {loss: mw}", "is not YAML"),
    yaml("a tab as indentation", "loss:\n\tloss: mw", "is not YAML"),
    yaml("a bracket that is open", "loss: {loss: mw", "is not YAML"),
    yaml("two documents", "loss: {loss: mw}\n---\nloss: {loss: infonce}\n", "is not YAML"),
    yaml("bytes that are no UTF-8", b"loss: {loss: \xff}", "is not YAML"),
    yaml("a control character", "loss: {loss: 'm\x07w'}", "is not YAML"),
    yaml("a picture", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "is not YAML"),
    yaml(
        "lists nested deeply",
        "[" * 20_000,
        "mine.yaml: line 1: lists and mappings are nested more than 100 deep",
        fast=True,
    ),
    yaml(
        "mappings nested deeply",
        "".join(f"{' ' * i}a:\n" for i in range(3000)),
        "mine.yaml: is larger than 1 MB, too large for a file of settings",
    ),
    yaml(
        "a billion laughs",
        f"a: &a [x]\n{LAUGHS}",
        "mine.yaml: line 6: there are more than 100,000 values, with aliases written out",
    ),
    yaml("an anchor that holds itself", "loss: &a {loss: *a}", "mine.yaml: line 1: *a is used inside of what it names"),
    yaml(
        "settings of 20 MB",
        "x: [" + "1, " * 7_000_000 + "1]",
        "mine.yaml: is larger than 1 MB, too large for a file of settings",
    ),
    yaml("stages that are no list", "stages: {a: 1}", "mine.yaml: `stages:` holds {'a': 1}"),
    yaml("a stage that is null", "stages: [~]", "mine.yaml: stage 1 holds None"),
    yaml("a stage called by a path", "stages: [{name: ../x}]", "mine.yaml: stage 1 has the invalid name '../x'"),
    yaml("two stages of one name", "stages: [{name: a}, {name: a}]", "mine.yaml: two stages have the name 'a'"),
    yaml("a metric that is not known", "training: {best_metric: nope}", "--best-metric nope: unknown metric 'nope'"),
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
        "a search space of nothing",
        "tune --dataset letters --model model --search-space space.yaml --output out",
        "space.yaml: the file holds no sections",
        (write("space.yaml", ""),),
    ),
    Case(
        "a range that is empty",
        "tune --dataset letters --model model --search-space space.yaml --output out",
        "space.yaml: training.learning_rate.high: 0.0 is out of range",
        (write("space.yaml", "training: {learning_rate: {low: 1, high: 0}}"),),
    ),
    Case(
        "a search space of unknown settings",
        "tune --dataset letters --model model --search-space space.yaml --output out",
        "space.yaml: unknown setting 'lr' in 'training'",
        (write("space.yaml", "training: {lr: [1, 2]}"),),
    ),
    Case(
        "a search space of a Python object",
        "tune --dataset letters --model model --search-space space.yaml --output out",
        "space.yaml: is not YAML",
        (write("space.yaml", "loss: !!python/name:os.system"),),
    ),
)
