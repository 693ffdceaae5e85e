"""Data sets of studies: parts of pydocs at smoke, of packs at small, whole ones below `--data-root` at full.

A pack is a folder of any known format below `--data-root`. A part (`Subset`) is written as a folder in BEIR layout. It
keeps the queries and further documents whose ids have the smallest SHA-256, and all documents judged for these
queries. No seed is involved: the same cut of the same data set gives the same bytes. No query is trained on that is
evaluated."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy import ndarray

from raytriever.data.dataset import Judgements, RetrievalDataset
from raytriever.data.formats.beir import QRELS_HEADER
from raytriever.data.prepare.open import open_dataset, with_lent_dev
from raytriever.data.pydocs.builder import PYDOCS
from raytriever.data.records import ORIGINS, SOURCES
from raytriever.data.statistics import plain_text
from raytriever.errors import ConfigError, DataError, StorageError
from raytriever.storage import committed_directory, read_manifest
from raytriever.studies.definition import FULL, SMALL, SMOKE, Arm, MeasuredDataset

_VERSION = 2
HUMAN, LLM = SOURCES


@dataclass(frozen=True)
class Subset:
    """What is kept.

    Args:
        train, dev, test: queries of each split, at most.
        documents: of the corpus, at most, but never fewer than are judged for the queries.
        share: of the training queries that `train` leaves, 0 to 1.
        labels: positives of a training query, those of the lowest ranks; None for all.
        by_llm: whether all positives of a training query but the first stand for a language model's.
    """

    train: int
    dev: int
    test: int
    documents: int
    share: float = 1.0
    labels: int | None = None
    by_llm: bool = False


def write_subset(folder: Path, source: str, cut: Subset, opened: Callable[[], RetrievalDataset]) -> str:
    """Write a part of a data set, or find it written.

    Args:
        folder: where it shall stand; another cut that stands there is replaced.
        source: what is cut, as its name in this study: part of what tells whether the folder is of this cut.
        cut: what is kept.
        opened: opens the data set, its splits called `train`, `dev` and `test`, or some of these; asked only where it
            must be.

    Returns:
        The folder, as `--dataset` takes it.

    Raises:
        DataError: a split has no query.
        StorageError: it cannot be written.
    """
    meta = {"kind": "cut", "version": _VERSION, "source": source, **asdict(cut)}
    if not _stands(folder, meta):
        dataset = opened()
        with committed_directory(folder, meta, replace=folder.exists()) as aside:
            _write(dataset, cut, aside)
    return str(folder)


def _stands(folder: Path, meta: dict[str, object]) -> bool:
    try:
        return bool(read_manifest(folder)["meta"] == meta)
    except StorageError:
        return False


def _write(dataset: RetrievalDataset, cut: Subset, aside: Path) -> None:
    kept = {split: _kept(dataset, split, cut) for split in dataset.judgements}
    judged = np.unique(np.concatenate([rows.documents for rows in kept.values()]))
    ids = dataset.documents.ids
    others = _first(np.setdiff1d(np.arange(len(ids)), judged), ids.__getitem__, max(0, cut.documents - len(judged)))
    _lines(
        aside / "corpus.jsonl",
        (
            {"_id": ids[place], "title": dataset.documents.titles[place], "text": dataset.documents.texts[place]}
            for place in np.union1d(judged, others).tolist()
        ),
    )
    queries = np.unique(np.concatenate([rows.queries for rows in kept.values()])).tolist()
    names = dataset.queries.ids
    _lines(aside / "queries.jsonl", ({"_id": names[place], "text": dataset.queries.texts[place]} for place in queries))
    (aside / "qrels").mkdir()
    for split, rows in kept.items():
        with (aside / "qrels" / f"{split}.tsv").open("w", encoding="utf-8", newline="\n") as qrels:
            qrels.write("\t".join([*QRELS_HEADER, "source", "rank"]) + "\n")
            for query, document, score, source, rank in zip(
                rows.queries, rows.documents, rows.scores, rows.sources, rows.ranks, strict=True
            ):
                qrels.write(f"{names[int(query)]}\t{ids[int(document)]}\t{score}\t{SOURCES[source]}\t{rank}\n")
            if split in dataset.absent:
                lost = dataset.absent[split]
                lost = lost.where(np.isin(lost.queries, rows.queries))
                for query, absent, score in zip(lost.queries, lost.documents, lost.scores, strict=True):
                    qrels.write(f"{names[int(query)]}\t{absent}\t{score}\t{SOURCES[0]}\t0\n")


def _kept(dataset: RetrievalDataset, split: str, cut: Subset) -> Judgements:
    """The judgements of a split's queries that are kept, ranked; what the data set brings along as a hard negative of
    origin `gold` is judged 0."""
    rows = dataset.judgements[split]
    queries = np.unique(rows.queries[rows.scores > 0])
    if split != "test" and "test" in dataset.judgements:
        measured = {plain_text(dataset.queries.texts[int(query)]) for query in dataset.judgements["test"].queries}
        texts = [plain_text(dataset.queries.texts[int(query)]) for query in queries]
        queries = queries[np.array([text not in measured for text in texts], dtype=bool)]
    count = min({"train": cut.train, "dev": cut.dev, "test": cut.test}[split], len(queries))
    if split == "train":
        count = round(count * cut.share)
    if not count:
        raise DataError(f"split {split!r} has no query with a positive", dataset.name, "give another data set")
    chosen = _first(queries, dataset.queries.ids.__getitem__, count)
    rows = _with_gold(rows.where(np.isin(rows.queries, chosen)), dataset, chosen)
    ranked = _ranked(rows, dataset)
    if split != "train":
        return ranked
    if cut.by_llm:
        later = (ranked.scores > 0) & (ranked.ranks > 0)
        ranked = Judgements(ranked.queries, ranked.documents, ranked.scores, later.astype(np.int64), ranked.ranks)
    return ranked if cut.labels is None else ranked.where((ranked.scores <= 0) | (ranked.ranks < cut.labels))


def _with_gold(rows: Judgements, dataset: RetrievalDataset, chosen: ndarray) -> Judgements:
    """The judgements, and a 0 for each hard negative of origin `gold` that has none."""
    if dataset.negatives is None:
        return rows
    mine = (dataset.negatives.origins == ORIGINS.index("gold")) & np.isin(dataset.negatives.queries, chosen)
    pairs = np.stack([dataset.negatives.queries[mine], dataset.negatives.documents[mine]], axis=1)
    known = set(zip(rows.queries.tolist(), rows.documents.tolist(), strict=True))
    fresh = np.array([pair for pair in dict.fromkeys(map(tuple, pairs.tolist())) if pair not in known], np.int64)
    if not len(fresh):
        return rows
    queries = np.concatenate([rows.queries, fresh[:, 0]])
    documents = np.concatenate([rows.documents, fresh[:, 1]])
    scores = np.concatenate([rows.scores, np.zeros(len(fresh), np.int64)])
    order = np.lexsort((documents, queries))
    return Judgements(queries[order], documents[order], scores[order])


def _ranked(rows: Judgements, dataset: RetrievalDataset) -> Judgements:
    """The same rows as people's, positives ranked within their query."""
    keys = np.array([_hash(dataset.documents.ids[int(place)]) for place in rows.documents], dtype=np.uint64)
    order = np.lexsort((keys, -rows.scores, rows.queries))
    starts = np.searchsorted(rows.queries, rows.queries)  # of each row's query
    ranks = np.empty(len(rows), np.int64)
    ranks[order] = np.arange(len(rows)) - starts[order]
    return Judgements(rows.queries, rows.documents, rows.scores, None, np.where(rows.scores > 0, ranks, 0))  # type: ignore[arg-type]


def _first(places: ndarray, name: Callable[[int], str], count: int) -> ndarray:
    """The places, `count` at most, of what has the names of the smallest hashes."""
    if len(places) <= count:
        return places
    keys = np.array([_hash(name(int(place))) for place in places], dtype=np.uint64)
    return places[np.argsort(keys, kind="stable")[:count]]


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])


def _lines(path: Path, rows: Iterable[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


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
class StudyDataset:
    """A data set as it stands, ready to be trained and measured on.

    Args:
        name: in tables.
        location: path or name, as `--dataset` takes it.
        test: the split that is measured.
        level: the grade from which on a document counts as found.
        drop_own: whether a document with the query's own id is left out.
        about: what of it was kept, in a sentence; empty where it is whole.
        queries: that it has to train on, where it is not opened to be counted.
    """

    name: str
    location: str
    test: str = "test"
    level: int = 1
    drop_own: bool = True
    about: str = ""
    queries: int | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """What of it was kept, for a table's head."""
        return (f"{self.about}.",) if self.about else ()

    def with_metrics(self, metrics: tuple[str, ...], extras: tuple[str, ...] = ()) -> MeasuredDataset:
        """The data set as something to measure on."""
        return MeasuredDataset(self.name, self.location, self.test, metrics, self.level, self.drop_own, extras)


def untrained_arms(scale: str, measured: tuple[MeasuredDataset, ...]) -> list[Arm]:
    """The encoder before any training, reading what the trained ones read; none at full, which trains from others."""
    if scale == FULL:
        return []
    return [Arm("before", UNTRAINED, measured, None, model="minilm", lengths=LENGTHS[scale])]


def pydocs_subset(
    folder: Path, part: str, groups: bool = False, train: int = 48, cut: Subset | None = None
) -> StudyDataset:
    """A few hundred docstrings: of the standard library, or of the packages that are installed.

    Args:
        folder: of the study's data.
        part: `stdlib` or `packages`.
        groups: whether the passages of up to four siblings, of the same class or module, are relevant as well, of a
            lower grade.
        train: training queries.
        cut: another one.
    """
    cut = cut or Subset(train=train, dev=16, test=48, documents=300)
    name = f"pydocs-{part}"
    kind = f"{name}{'-groups' if groups else ''}"
    place = write_subset(folder / _folder_name(kind, cut), kind, cut, lambda: _pydocs(part, groups))
    return StudyDataset(name, place, about=_about(name, cut) + (_GROUPS if groups else ""))


_GROUPS = "; passages of the same class or module stand in for further positives"


def pack_subset(data_root: Path | None, folder: Path, name: str, cut: Subset, title: str = "") -> StudyDataset:
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
    place = write_subset(folder / _folder_name(name, cut), name, cut, lambda: _opened(there, splits))
    found = StudyDataset(title or name, place, about=_about(title or name, cut, trained=bool(splits[0])))
    # Cranfield's queries and documents are both numbered, which means nothing.
    return replace(found, drop_own=name != "cranfield", level=2 if name.startswith("trec-dl") else 1)


def whole_dataset(
    data_root: Path | None, name: str, title: str, test: str = "test", queries: int | None = None
) -> StudyDataset:
    """A whole data set, which is neither read nor looked for yet: `DATA_ROOT/NAME`, of any known format."""
    level = 2 if test.startswith("dl") else 1
    return StudyDataset(title, str((data_root or DEFAULT_ROOT) / name), test, level, queries=queries)


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


def _folder_name(kind: str, cut: Subset) -> str:
    """Cuts of one data set that stand beside each other differ in what their training queries have."""
    parts = [kind]
    if cut.by_llm:
        parts.append(f"one-{SOURCES[0]}")
    if cut.labels is not None:
        parts.append(f"{cut.labels}-of-{cut.share:.2f}")
    return "-".join(parts)


def _about(name: str, cut: Subset, trained: bool = True) -> str:
    told = f"{name}: at most {cut.test:,} test queries"
    if trained:
        told += f", {cut.train:,} training queries"
    return f"{told}, {cut.documents:,} documents (all that are judged for them, and others)"
