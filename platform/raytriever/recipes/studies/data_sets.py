"""The data sets of studies: parts of pydocs at smoke, of packs at small, whole ones below `--data-root` at full.

A pack is a folder of any known format below `--data-root`. What a study trains on has a dev split: the pack's own, or
one lent from its training queries where the pack has none or is measured on it. No query is trained on that is
measured.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from raytriever.config.study import FULL, SMALL, SMOKE, Arm, Measured
from raytriever.data.dataset import Judgements, RetrievalDataset
from raytriever.data.open import open_dataset, with_lent_dev
from raytriever.data.pydocs import PYDOCS
from raytriever.data.records import SOURCES
from raytriever.errors import ConfigError
from raytriever.recipes.studies.cut import Cut, cut_to

STDLIB, PACKAGES = "stdlib", "packages"
# Where whole data sets are looked for when `--data-root` names no other folder.
DEFAULT_ROOT = Path("data")
# The splits of a pack that are trained on, looked at and measured; `` where there is none, or it is lent.
_SPLITS: Mapping[str, tuple[str, str, str]] = {
    "squad": ("train", "", "dev"),
    "scifact": ("train", "", "test"),
    "nfcorpus-filtered": ("train", "dev", "test"),
    "medquad": ("train", "dev", "test"),
    "snli": ("dev", "", "test"),
    "hotpotqa-mini": ("", "", "train"),
}
_SIBLINGS = 4
# Longest query and passage that encoders read, in tokens.
LENGTHS = {SMOKE: (16, 32), SMALL: (32, 64)}
UNTRAINED = "MiniLM, untrained"


@dataclass(frozen=True)
class DataSet:
    """A data set as it stands, ready to be trained and measured on.

    Args:
        name: in tables.
        place: path or name, as `--dataset` takes it.
        test: the split that is measured.
        level: the grade from which on a document counts as found.
        drop_own: whether a document with the query's own id is left out.
        about: what of it was kept, in a sentence; empty where it is whole.
        queries: that it has to train on, where it is not opened to be counted.
    """

    name: str
    place: str
    test: str = "test"
    level: int = 1
    drop_own: bool = True
    about: str = ""
    queries: int | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """What of it was kept, for a table's head."""
        return (f"{self.about}.",) if self.about else ()

    def measured(self, metrics: tuple[str, ...], extras: tuple[str, ...] = ()) -> Measured:
        """The data set as something to measure on."""
        return Measured(self.name, self.place, self.test, metrics, self.level, self.drop_own, extras)


def untrained(scale: str, measured: tuple[Measured, ...]) -> list[Arm]:
    """The encoder before any training, reading what the trained ones read; none at full, which trains from others."""
    if scale == FULL:
        return []
    return [Arm("before", UNTRAINED, measured, None, model="minilm", lengths=LENGTHS[scale])]


def smoke_set(folder: Path, part: str, groups: bool = False, train: int = 48, cut: Cut | None = None) -> DataSet:
    """A few hundred docstrings: of the standard library, or of the packages that are installed.

    Args:
        folder: of the study's data.
        part: `stdlib` or `packages`.
        groups: whether the passages of up to four siblings, of the same class or module, are relevant as well, of a
            lower grade.
        train: training queries.
        cut: another one.
    """
    cut = cut or Cut(train=train, dev=16, test=48, documents=300)
    name = f"pydocs-{part}"
    kind = f"{name}{'-groups' if groups else ''}"
    place = cut_to(folder / _folder_name(kind, cut), kind, cut, lambda: _pydocs(part, groups))
    return DataSet(name, place, about=_about(name, cut) + (_GROUPS if groups else ""))


_GROUPS = "; passages of the same class or module stand in for further positives"


def pack(data_root: Path | None, folder: Path, name: str, cut: Cut, title: str = "") -> DataSet:
    """A part of a pack.

    Args:
        data_root: the packs' folder.
        folder: of the study's data.
        name: of the pack.
        cut: what is kept.
        title: in tables; the pack's name where it is empty.

    Raises:
        ConfigError: there is no such folder.
        DataError: see `open_dataset`.
    """
    there = _pack_folder(data_root, name)
    splits = _SPLITS.get(name, ("", "", "test"))
    if not cut.train:
        splits = ("", "", splits[2])
    place = cut_to(folder / _folder_name(name, cut), name, cut, lambda: _opened(there, splits))
    found = DataSet(title or name, place, about=_about(title or name, cut, trained=bool(splits[0])))
    # Cranfield's queries and documents are both numbered, which means nothing.
    return replace(found, drop_own=name != "cranfield", level=2 if name.startswith("trec-dl") else 1)


def whole(data_root: Path | None, name: str, title: str, test: str = "test", queries: int | None = None) -> DataSet:
    """A whole data set, which is neither read nor looked for yet: `DATA_ROOT/NAME`, of any known format."""
    level = 2 if test.startswith("dl") else 1
    return DataSet(title, str((data_root or DEFAULT_ROOT) / name), test, level, queries=queries)


def _pack_folder(data_root: Path | None, name: str) -> Path:
    wanted = f"give a folder in which {name} and the other packs of the study stand"
    if data_root is None:
        raise ConfigError("is not given, and this scale measures on packs", "--data-root", wanted)
    if not (data_root / name).is_dir():
        raise ConfigError(f"holds no folder {name}", f"--data-root {data_root}", wanted)
    return data_root / name


def _opened(place: Path, splits: tuple[str, str, str]) -> RetrievalDataset:
    """A pack with its splits called as they are used."""
    train, dev, test = splits
    dataset = open_dataset(place, [split for split in splits if split])
    names = {ours: theirs for ours, theirs in (("train", train), ("dev", train and dev), ("test", test)) if theirs}
    renamed = replace(
        dataset,
        judgements={ours: dataset.judgements[theirs] for ours, theirs in names.items()},
        absent={ours: dataset.absent[theirs] for ours, theirs in names.items() if theirs in dataset.absent},
    )
    return with_lent_dev(renamed, str(place)) if train and not dev else renamed


def _pydocs(part: str, groups: bool) -> RetrievalDataset:
    """Pydocs with the queries of one part alone."""
    dataset = open_dataset(PYDOCS, ["train", "dev", "test"])
    of_stdlib = np.array([_is_stdlib(name.removeprefix("q:")) for name in dataset.queries.ids])
    kept = {
        split: rows.where(of_stdlib[rows.queries] == (part == STDLIB)) for split, rows in dataset.judgements.items()
    }
    if groups:
        kept = {split: _with_siblings(rows, dataset) for split, rows in kept.items()}
    return replace(dataset, judgements=kept)


def _with_siblings(rows: Judgements, dataset: RetrievalDataset) -> Judgements:
    """A query's own passage with grade 2, and those of up to four siblings with grade 1."""
    families: dict[str, list[int]] = {}
    for place, name in enumerate(dataset.documents.ids):
        families.setdefault(name.rpartition(".")[0], []).append(place)
    found = []
    for query, document in zip(rows.queries.tolist(), rows.documents.tolist(), strict=True):
        family = families[dataset.documents.ids[document].rpartition(".")[0]]
        at = family.index(document)
        # Those that follow it by name, the first ones again behind the last.
        near = [family[(at + step) % len(family)] for step in range(1, min(_SIBLINGS, len(family) - 1) + 1)]
        found += [(query, document, 2), *((query, sibling, 1) for sibling in near)]
    table = np.array(sorted(found), dtype=np.int64)
    return Judgements(table[:, 0], table[:, 1], table[:, 2])


def _is_stdlib(name: str) -> bool:
    return name.split(".")[0] in sys.stdlib_module_names


def _folder_name(kind: str, cut: Cut) -> str:
    """Cuts of one data set that stand beside each other differ in what their training queries have."""
    parts = [kind]
    if cut.by_llm:
        parts.append(f"one-{SOURCES[0]}")
    if cut.labels is not None:
        parts.append(f"{cut.labels}-of-{cut.share:.2f}")
    return "-".join(parts)


def _about(name: str, cut: Cut, trained: bool = True) -> str:
    told = f"{name}: at most {cut.test:,} test queries"
    if trained:
        told += f", {cut.train:,} training queries"
    return f"{told}, {cut.documents:,} documents (all that are judged for them, and others)"
