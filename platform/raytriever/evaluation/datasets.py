"""Data sets of an evaluation: one by one, divided into parts, or the whole suite of BEIR.

A folder that is no data set, but whose folders are in BEIR layout, is one data set of several parts. Its metrics are
the means over the parts, as BEIR counts CQADupStack."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from raytriever.data.sources import IR_DATASETS
from raytriever.errors import ConfigError, UserError
from raytriever.evaluation.names import distinct_names, safe_name, unique_names
from raytriever.paths import expanded

CORPUS = ("corpus.jsonl", "corpus.jsonl.gz")


@dataclass(frozen=True)
class EvaluationDataset:
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

    def label(self, part: str) -> str:
        """The name of a part in file names: the data set's own where it is one whole."""
        return f"{self.name}-{part}" if self.is_divided else self.name

    @property
    def places(self) -> list[str]:
        """Where the parts are, as paths that do not depend on how they were written."""
        return [os.path.abspath(expanded(one)) if expanded(one).exists() else one for one in self.parts.values()]

    @property
    def folder(self) -> str:
        """Where the data set is, of a divided one the folder of its parts."""
        return os.path.dirname(self.places[0]) if self.is_divided else self.places[0]

    def called(self, name: str) -> EvaluationDataset:
        """Return the data set under another name."""
        return replace(
            self, name=name, parts=self.parts if self.is_divided else {name: next(iter(self.parts.values()))}
        )


def describe_datasets(sources: Sequence[str], split: str) -> list[EvaluationDataset]:
    """The data sets that were named, one by one; nothing is opened."""
    return [_set_of(source, split) for source in sources]


def rename_duplicates(sets: Sequence[EvaluationDataset]) -> list[EvaluationDataset]:
    """Return the data sets with names that differ in tables and file names.

    Of data sets with one name each has the folders before it in its name, as far as they differ, and a number where
    they do not. A name of a data set is also none of a part of another one.

    Raises:
        ConfigError: one of them was given twice.
    """
    for place, one in enumerate(sets):
        if any((one.places, one.split) == (other.places, other.split) for other in sets[:place]):
            raise ConfigError(
                f"two data sets are called {one.name!r}",
                "--datasets",
                "give them one by one, each with its own --output",
            )
    names = [one.name for one in sets]
    longer = distinct_names([one.folder for one in sets])
    wanted = [name if names.count(name) == 1 else other for name, other in zip(names, longer, strict=True)]
    parts = [f"{name}-{part}" for name, one in zip(wanted, sets, strict=True) if one.is_divided for part in one.parts]
    unique = unique_names([*parts, *wanted])[len(parts) :]
    return [one if one.name == name else one.called(name) for one, name in zip(sets, unique, strict=True)]


def check_file_names(models: Sequence[str], sets: Sequence[EvaluationDataset]) -> None:
    """Refuse names of which two different pairs would give one file: `a` on `b.c`, and `a.b` on `c`.

    Raises:
        ConfigError: naming the two pairs and the file.
    """
    writers: dict[str, str] = {}
    for one in sets:
        for model in models:
            files = [(f"runs/{model}.{label}.trec", label) for label in map(one.label, one.parts)]
            for file, label in [*files, (f"scores/{one.name}.{model}.npz", one.name)]:
                writer = f"{model!r} on {label!r}"
                if file in writers:
                    raise ConfigError(
                        f"{writers[file]} and {writer} would both be written to {file}",
                        "--model, --datasets",
                        "give one of them another name, a model by NAME=MODEL, or evaluate them one by one",
                    )
                writers[file] = writer


def find_parts(source: str) -> list[str]:
    """The places of a divided data set's parts: folders, or names of `ir_datasets`; none for one that is whole."""
    if source.startswith(IR_DATASETS):
        return _forums(source.removeprefix(IR_DATASETS))
    folder = expanded(source)
    if not folder.is_dir() or _is_beir(folder) or any(_is_data(one) for one in folder.iterdir()):
        return []
    return sorted(str(one) for one in folder.iterdir() if _counts(one) and _is_beir(one))


def _set_of(source: str, split: str) -> EvaluationDataset:
    there = expanded(source)
    if there.exists():
        name = safe_name(Path(os.path.abspath(there)).name)
    else:
        name = safe_name(source.rstrip("/").removeprefix(IR_DATASETS).split("/")[-1].split("@")[0])
    places = find_parts(source)
    if not places:
        return EvaluationDataset(name, {name: source}, split)
    return EvaluationDataset(name, dict(zip(unique_names(distinct_names(places)), places, strict=True)), split)


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


REASON_CHARACTERS = 160


@dataclass(frozen=True)
class _Member:
    """How a data set is called in MTEB, below `beir/` in `ir_datasets` and below `mteb/` on the hub, where that is
    another name than BEIR's own, and which split is judged."""

    task: str
    registered: str | None = None
    hub: str | None = None
    split: str = "test"


BEIR = {
    "msmarco": _Member("MSMARCO", split="dev"),
    "trec-covid": _Member("TRECCOVID"),
    "nfcorpus": _Member("NFCorpus"),
    "nq": _Member("NQ"),
    "hotpotqa": _Member("HotpotQA"),
    "fiqa": _Member("FiQA2018"),
    "arguana": _Member("ArguAna"),
    "webis-touche2020": _Member("Touche2020", "webis-touche2020/v2", "touche2020"),
    "cqadupstack": _Member("CQADupstackRetrieval"),
    "quora": _Member("QuoraRetrieval"),
    "dbpedia-entity": _Member("DBPedia", hub="dbpedia"),
    "scidocs": _Member("SCIDOCS"),
    "fever": _Member("FEVER"),
    "climate-fever": _Member("ClimateFEVER"),
    "scifact": _Member("SciFact"),
}


def with_mteb_task(one: EvaluationDataset) -> EvaluationDataset:
    """The same with its name in MTEB, where it bears that of a data set of the suite."""
    return replace(one, task=BEIR[one.name].task) if one.name in BEIR else one


def beir_suite(
    root: Path | None, opens: Callable[[EvaluationDataset], None]
) -> tuple[list[EvaluationDataset], list[str]]:
    """The data sets of the suite that are there, in the order of BEIR's tables.

    Args:
        root: the folder of local copies; None where there is none.
        opens: opens a data set, and raises a `UserError` where it is not to be had.

    Returns:
        The data sets, and for each that is missing its name and why.
    """
    found, missing = [], []
    for name, member in BEIR.items():
        reasons = [f"no folder {root / name}"] if root is not None and not (root / name).is_dir() else []
        for source in _places(root, name, member):
            try:
                [one] = describe_datasets([source], member.split)
                one = replace(one, name=name, task=member.task, parts=_renamed(one, name))
                opens(one)
            except UserError as error:
                reasons.append(textwrap.shorten(str(error), REASON_CHARACTERS, placeholder=" ..."))
            else:
                found.append(one)
                break
        else:
            missing.append(f"{name} ({'; '.join(dict.fromkeys(reasons))})")
    return found, missing


def _renamed(one: EvaluationDataset, name: str) -> dict[str, str]:
    return one.parts if one.is_divided else dict.fromkeys([name], next(iter(one.parts.values())))


def _places(root: Path | None, name: str, member: _Member) -> list[str]:
    """Where it may be, the nearest first; a folder that is there is the only place: what is wrong with it is told."""
    if root is not None and (root / name).is_dir():
        return [str(root / name)]
    hub = f"hf://datasets/mteb/{member.hub or name}"
    return [f"{IR_DATASETS}beir/{member.registered or name}", *([hub] if name != "cqadupstack" else [])]
