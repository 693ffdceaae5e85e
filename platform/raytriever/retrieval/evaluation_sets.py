"""Which data sets an evaluation is over, and what one of them consists of.

A folder that is no data set, but whose folders are in BEIR layout, is one data set of several parts: its metrics are
the means over the parts, as BEIR counts CQADupStack.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raytriever.data.source import IR_DATASETS
from raytriever.errors import ConfigError
from raytriever.paths import expanded
from raytriever.retrieval.file_names import distinct_names, safe_name

CORPUS = ("corpus.jsonl", "corpus.jsonl.gz")


@dataclass(frozen=True)
class EvaluationSet:
    """One row of an evaluation.

    Args:
        name: in tables and file names.
        parts: where each part is, by its name; a data set that is one whole has one part, of its own name.
        split: the judged split.
        task: its name in MTEB, where it has one.
    """

    name: str
    parts: dict[str, str]
    split: str
    task: str | None = None

    @property
    def is_divided(self) -> bool:
        """Whether metrics are means over parts."""
        return list(self.parts) != [self.name]


def sets_of(sources: Sequence[str], split: str) -> list[EvaluationSet]:
    """The data sets that were named, one by one; nothing is opened."""
    return [_set_of(source, split) for source in sources]


def check_names(sets: Sequence[EvaluationSet]) -> None:
    """Refuse data sets that could not be told apart in tables and file names.

    Raises:
        ConfigError: two of them have the same name.
    """
    names = [one.name for one in sets]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"two data sets are called {name!r}", "--datasets", "give them one by one, each with its own --output"
            )


def parts_of(source: str) -> list[str]:
    """The places of a divided data set's parts: folders, or names of `ir_datasets`; none for one that is whole."""
    if source.startswith(IR_DATASETS):
        return _forums(source.removeprefix(IR_DATASETS))
    folder = expanded(source)
    if not folder.is_dir() or _is_beir(folder) or any(_is_data(one) for one in folder.iterdir()):
        return []
    return sorted(str(one) for one in folder.iterdir() if _counts(one) and _is_beir(one))


def _set_of(source: str, split: str) -> EvaluationSet:
    there = expanded(source)
    if there.exists():
        name = safe_name(Path(os.path.abspath(there)).name)
    else:
        name = safe_name(source.rstrip("/").removeprefix(IR_DATASETS).split("/")[-1].split("@")[0])
    places = parts_of(source)
    if not places:
        return EvaluationSet(name, {name: source}, split)
    return EvaluationSet(name, dict(zip(distinct_names(places), places, strict=True)), split)


def _forums(name: str) -> list[str]:
    """What is below a name of `ir_datasets` that has no documents itself, as `beir/cqadupstack`."""
    try:
        import ir_datasets
    except ImportError:
        return []  # opening it tells what is missing
    registry = set(ir_datasets.registry)
    if name in registry:
        return []
    return [f"{IR_DATASETS}{one}" for one in sorted(registry) if one.startswith(f"{name}/")]


def _is_beir(folder: Path) -> bool:
    return any((folder / name).is_file() for name in CORPUS)


def _is_data(path: Path) -> bool:
    """Whether a file may hold rows; notes beside the parts may not."""
    return path.is_file() and _counts(path) and path.suffix not in ("", ".md", ".txt")


def _counts(path: Path) -> bool:
    return not path.name.startswith((".", "_"))
