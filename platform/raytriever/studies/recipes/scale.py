"""Scale of a study, and its data there: docstrings at smoke, subsets of packs at small, whole data sets at full.

A pack is a folder of any known format below `--data-root`. No evaluated query is used in training.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from raytriever.data.dataset import Judgements, RetrievalDataset
from raytriever.data.prepare.open import open_dataset, with_lent_dev
from raytriever.data.pydocs.builder import PYDOCS
from raytriever.errors import ConfigError, setting
from raytriever.studies.definition import FULL, SMALL, SMOKE, Arm, MeasuredDataset
from raytriever.studies.subsets import Subset, folder_of_subset, write_subset

STDLIB, PACKAGES = "stdlib", "packages"
SMOKE_SUBSET = Subset(train=48, dev=16, test=48, documents=300)
# Packs by their names in tables: folder, and splits for training, validation and measuring. A split is empty if there
# is none, or if validation uses training queries.
_ONLY_TEST = ("", "", "test")
PACKS: Mapping[str, tuple[str, tuple[str, str, str]]] = {
    "SQuAD": ("squad", ("train", "", "dev")),
    "SciFact": ("scifact", ("train", "", "test")),
    "NFCorpus": ("nfcorpus-filtered", ("train", "dev", "test")),
    "MedQuAD": ("medquad", ("train", "dev", "test")),
    "SNLI": ("snli", ("dev", "", "test")),
    "HotpotQA-mini": ("hotpotqa-mini", ("", "", "train")),
    "Climate-FEVER-evidence": ("climate-fever-evidence", _ONLY_TEST),
    "TREC-DL19-mini": ("trec-dl19-mini", _ONLY_TEST),
    "Cranfield": ("cranfield", _ONLY_TEST),
}
# Folder of whole data sets if `--data-root` is not given.
DEFAULT_ROOT = Path("data")
NQ, MS_MARCO = "nq", "msmarco"
# Whole data sets to train on: folder and number of training queries. NLI of SimCSE (Gao et al., 2021), NQ of DPR, SQuAD
# 1.1, MS MARCO passages.
WHOLE_SETS: Mapping[str, tuple[str, int]] = {
    "NLI": ("nli", 275_601),
    "NQ": (NQ, 58_880),
    "SQuAD": ("squad", 87_599),
    "MS MARCO": (MS_MARCO, 502_939),
}
# Names of the folders in the archives of BEIR.
BEIR_FOLDERS = {
    "ArguAna": "arguana",
    "Climate-FEVER": "climate-fever",
    "CQADupStack": "cqadupstack",
    "DBPedia": "dbpedia-entity",
    "FEVER": "fever",
    "FiQA": "fiqa",
    "HotpotQA": "hotpotqa",
    "NFCorpus": "nfcorpus",
    "NQ": "beir-nq",
    "Quora": "quora",
    "SciDocs": "scidocs",
    "SciFact": "scifact",
    "SQuAD": "squad",
    "Touche-2020": "webis-touche2020",
    "TREC-COVID": "trec-covid",
}
# Longest query and passage of the encoders, in tokens.
LENGTHS = {SMOKE: (16, 32), SMALL: (32, 64)}
UNTRAINED = "MiniLM, untrained"
_SIBLINGS = 4
_GROUPS = "; passages of the same class or module serve as further positives"
T = TypeVar("T")


@dataclass(frozen=True)
class StudyScale:
    """Scale of a study, and the folders of its data.

    Args:
        name: `smoke`, `small` or `full`.
        data_root: folder of the data packs; None if it is not given.
        folder: folder that subsets are written to. Each is written completely or not at all, and used again by the next
            call. At full nothing is written or read.
    """

    name: str
    data_root: Path | None
    folder: Path

    @property
    def is_full(self) -> bool:
        """Return whether the study has the size of the paper."""
        return self.name == FULL

    @property
    def is_smoke(self) -> bool:
        """Return whether the study only shows that it runs."""
        return self.name == SMOKE

    @property
    def seeds(self) -> int:
        """Default number of trainings of each arm."""
        return self.choose(1, 3, 1)

    def choose(self, smoke: T, small: T, full: T) -> T:
        """Return the value for this scale."""
        return {SMOKE: smoke, FULL: full}.get(self.name, small)

    def sets(
        self, full: Sequence[str], small: Mapping[str, Subset], smoke: Sequence[str] = (STDLIB, PACKAGES)
    ) -> list[MeasuredDataset]:
        """Return the data sets of a study: names of `WHOLE_SETS` at full, subsets of `PACKS`, or parts of pydocs."""
        if self.is_full:
            return [self.whole(WHOLE_SETS[name][0], name, queries=WHOLE_SETS[name][1]) for name in full]
        if self.is_smoke:
            return [self.pydocs(part) for part in smoke]
        return [self.pack(name, subset) for name, subset in small.items()]

    def untrained(self, measured: Sequence[MeasuredDataset]) -> list[Arm]:
        """Return the arm of the untrained encoder, with the lengths of the trained ones.

        At full there is none, because those trainings start from other encoders.
        """
        if self.is_full:
            return []
        return [Arm("before", UNTRAINED, tuple(measured), None, model="minilm", lengths=LENGTHS[self.name])]

    def pydocs(self, part: str, groups: bool = False, subset: Subset = SMOKE_SUBSET) -> MeasuredDataset:
        """Return a subset of pydocs: docstrings of `stdlib` or of other `packages`.

        With groups, passages of up to four siblings of the same class or module are relevant too, with a lower grade.
        """
        name = f"pydocs-{part}"
        kind = f"{name}{'-groups' if groups else ''}"
        folder = folder_of_subset(self.folder, kind, subset)
        location = write_subset(folder, kind, subset, lambda: open_pydocs(part, groups))
        return MeasuredDataset(name, location, about=_about(name, subset) + (_GROUPS if groups else ""))

    def pack(self, name: str, subset: Subset) -> MeasuredDataset:
        """Return a subset of a pack, one of `PACKS`."""
        pack, splits = PACKS[name]
        source = self.pack_folder(pack)
        if not subset.train:
            splits = ("", "", splits[2])
        folder = folder_of_subset(self.folder, pack, subset)
        return MeasuredDataset(
            name,
            write_subset(folder, pack, subset, lambda: _open_pack(source, splits)),
            level=2 if pack.startswith("trec-dl") else 1,
            # In Cranfield queries and documents are numbered, so equal ids mean nothing.
            drop_own=pack != "cranfield",
            about=_about(name, subset, trained=bool(splits[0])),
        )

    def whole(self, folder: str, name: str, split: str = "test", queries: int | None = None) -> MeasuredDataset:
        """Return the whole data set `DATA_ROOT/FOLDER`, of any known format; it is not opened here."""
        location = str((self.data_root or DEFAULT_ROOT) / folder)
        return MeasuredDataset(name, location, split, level=2 if split.startswith("dl") else 1, queries=queries)

    def pack_folder(self, pack: str) -> Path:
        """Return the folder of a pack; raises `ConfigError` if it does not exist."""
        remedy = f"give the folder that holds {pack} and the other packs of the study"
        if self.data_root is None:
            raise ConfigError("is missing, and this scale measures on packs", setting("data_root"), remedy)
        if not (self.data_root / pack).is_dir():
            raise ConfigError(f"holds no folder {pack}", setting("data_root", self.data_root), remedy)
        return self.data_root / pack


def lines_of(sets: Sequence[MeasuredDataset]) -> list[str]:
    """Return a line about each subset, printed above a table."""
    return [f"{one.about}." for one in sets if one.about]


def _about(name: str, subset: Subset, trained: bool = True) -> str:
    text = f"{name}: at most {subset.test:,} test queries"
    if trained:
        text += f", {subset.train:,} training queries"
    return f"{text}, {subset.documents:,} documents (all that are judged for them, and others)"


def _open_pack(path: Path, splits: tuple[str, str, str]) -> RetrievalDataset:
    """Open a pack and name its splits `train`, `dev` and `test`."""
    train, dev, test = splits
    dataset = open_dataset(path, [split for split in splits if split])
    names = {role: split for role, split in (("train", train), ("dev", train and dev), ("test", test)) if split}
    renamed = replace(
        dataset,
        judgements={role: dataset.judgements[split] for role, split in names.items()},
        absent={role: dataset.absent[split] for role, split in names.items() if split in dataset.absent},
        unanswerable={
            role: rows for role, split in names.items() if (rows := dataset.unanswerable.get(split)) is not None
        },
    )
    return with_lent_dev(renamed, str(path)) if train and not dev else renamed


def open_pydocs(part: str, groups: bool = False) -> RetrievalDataset:
    """Open pydocs with the queries of one part only."""
    dataset = open_dataset(PYDOCS, ["train", "dev", "test"])
    modules = [name.removeprefix("q:").split(".")[0] for name in dataset.queries.ids]
    of_stdlib = np.isin(modules, list(sys.stdlib_module_names))
    judgements = {
        split: rows.where(of_stdlib[rows.queries] == (part == STDLIB)) for split, rows in dataset.judgements.items()
    }
    if groups:
        judgements = {split: with_siblings(rows, dataset) for split, rows in judgements.items()}
    return replace(dataset, judgements=judgements)


def with_siblings(rows: Judgements, dataset: RetrievalDataset) -> Judgements:
    """Return each query's own passage with grade 2, and passages of up to four siblings with grade 1."""
    families: dict[str, list[int]] = {}
    for row, name in enumerate(dataset.documents.ids):
        families.setdefault(name.rpartition(".")[0], []).append(row)
    judgements = []
    for query, document in zip(rows.queries.tolist(), rows.documents.tolist(), strict=True):
        family = families[dataset.documents.ids[document].rpartition(".")[0]]
        at = family.index(document)
        # The siblings that follow it by name; after the last one the first ones follow.
        siblings = [family[(at + step) % len(family)] for step in range(1, min(_SIBLINGS, len(family) - 1) + 1)]
        judgements += [(query, document, 2), *((query, sibling, 1) for sibling in siblings)]
    table = np.array(sorted(judgements), dtype=np.int64)
    return Judgements(table[:, 0], table[:, 1], table[:, 2])
