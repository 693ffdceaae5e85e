"""Data sets of studies: subsets of pydocs at smoke, subsets of packs at small, whole data sets at full.

A pack is a folder of any known format below `--data-root`. A subset is written as a folder in BEIR layout. It keeps
the queries and further documents whose ids have the smallest SHA-256, and all documents judged for these queries. No
seed is involved: the same subset of the same data set gives the same bytes. No evaluated query is used in training."""

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
from raytriever.data.keys import normalise
from raytriever.data.prepare.open import open_dataset, with_lent_dev
from raytriever.data.pydocs.builder import PYDOCS
from raytriever.data.records import ORIGINS, SOURCES
from raytriever.errors import ConfigError, DataError, StorageError, setting
from raytriever.store.commit import committed_directory, read_manifest
from raytriever.studies.definition import FULL, SMALL, SMOKE, Arm, MeasuredDataset

# Version of the subsets on disk; another one is written again.
_VERSION = 2
STDLIB, PACKAGES = "stdlib", "packages"
# Folder of whole data sets if `--data-root` is not given.
DEFAULT_ROOT = Path("data")
# Splits of a pack for training, validation and measuring; empty if there is none, or validation uses training queries.
_SPLITS: Mapping[str, tuple[str, str, str]] = {
    "squad": ("train", "", "dev"),
    "scifact": ("train", "", "test"),
    "nfcorpus-filtered": ("train", "dev", "test"),
    "medquad": ("train", "dev", "test"),
    "snli": ("dev", "", "test"),
    "hotpotqa-mini": ("", "", "train"),
}
_SIBLINGS = 4
# Longest query and passage of the encoders, in tokens.
LENGTHS = {SMOKE: (16, 32), SMALL: (32, 64)}
UNTRAINED = "MiniLM, untrained"
_GROUPS = "; passages of the same class or module serve as further positives"


@dataclass(frozen=True)
class Subset:
    """Size of a subset of a data set.

    Args:
        train, dev, test: largest number of queries of each split.
        documents: largest number of documents; all judged documents are kept even if they are more.
        share: share of the training queries to keep after `train` is applied, 0 to 1.
        labels: number of positives of a training query, lowest ranks first; None for all.
        by_llm: whether all positives of a training query except the first are marked as labels of a language model.
    """

    train: int
    dev: int
    test: int
    documents: int
    share: float = 1.0
    labels: int | None = None
    by_llm: bool = False


def write_subset(folder: Path, source: str, subset: Subset, open_source: Callable[[], RetrievalDataset]) -> str:
    """Write a subset of a data set if it is not stored yet.

    Args:
        folder: folder of the subset; another subset in it is replaced.
        source: name of the data set in this study; a subset of another source is written again.
        subset: size of the subset.
        open_source: function that opens the data set, with splits named `train`, `dev` and `test`, or some of these;
            called only if the subset is not stored.

    Returns:
        The folder, as a value of `--dataset`.

    Raises:
        DataError: a split has no query.
        StorageError: the folder cannot be written.
    """
    meta = {"kind": "cut", "version": _VERSION, "source": source, **asdict(subset)}
    if not _is_stored(folder, meta):
        dataset = open_source()
        with committed_directory(folder, meta, replace=folder.exists()) as temporary:
            _write(dataset, subset, temporary)
    return str(folder)


def _is_stored(folder: Path, meta: dict[str, object]) -> bool:
    try:
        return bool(read_manifest(folder)["meta"] == meta)
    except StorageError:
        return False


def _write(dataset: RetrievalDataset, subset: Subset, folder: Path) -> None:
    judgements = {split: _select_judgements(dataset, split, subset) for split in dataset.judgements}
    judged = np.unique(np.concatenate([rows.documents for rows in judgements.values()]))
    ids = dataset.documents.ids
    others = _smallest_hashes(
        np.setdiff1d(np.arange(len(ids)), judged), ids.__getitem__, max(0, subset.documents - len(judged))
    )
    _write_lines(
        folder / "corpus.jsonl",
        (
            {"_id": ids[row], "title": dataset.documents.titles[row], "text": dataset.documents.texts[row]}
            for row in np.union1d(judged, others).tolist()
        ),
    )
    queries = np.unique(np.concatenate([rows.queries for rows in judgements.values()])).tolist()
    names = dataset.queries.ids
    _write_lines(folder / "queries.jsonl", ({"_id": names[row], "text": dataset.queries.texts[row]} for row in queries))
    (folder / "qrels").mkdir()
    for split, rows in judgements.items():
        with (folder / "qrels" / f"{split}.tsv").open("w", encoding="utf-8", newline="\n") as qrels:
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


def _select_judgements(dataset: RetrievalDataset, split: str, subset: Subset) -> Judgements:
    """Return the ranked judgements of the queries of a split that are kept.

    Hard negatives of origin `gold` in the data set are judged 0.
    """
    rows = dataset.judgements[split]
    queries = np.unique(rows.queries[rows.scores > 0])
    if split != "test" and "test" in dataset.judgements:
        measured = {normalise(dataset.queries.texts[int(query)]) for query in dataset.judgements["test"].queries}
        texts = [normalise(dataset.queries.texts[int(query)]) for query in queries]
        queries = queries[np.array([text not in measured for text in texts], dtype=bool)]
    count = min({"train": subset.train, "dev": subset.dev, "test": subset.test}[split], len(queries))
    if split == "train":
        count = round(count * subset.share)
    if not count:
        raise DataError(f"split {split!r} has no query with a positive", dataset.name, "give another data set")
    chosen = _smallest_hashes(queries, dataset.queries.ids.__getitem__, count)
    rows = _with_gold(rows.where(np.isin(rows.queries, chosen)), dataset, chosen)
    ranked = _ranked(rows, dataset)
    if split != "train":
        return ranked
    if subset.by_llm:
        later = (ranked.scores > 0) & (ranked.ranks > 0)
        ranked = Judgements(ranked.queries, ranked.documents, ranked.scores, later.astype(np.int64), ranked.ranks)
    return ranked if subset.labels is None else ranked.where((ranked.scores <= 0) | (ranked.ranks < subset.labels))


def _with_gold(rows: Judgements, dataset: RetrievalDataset, chosen: ndarray) -> Judgements:
    """Return the judgements, with a judgement of 0 for each hard negative of origin `gold` that has none."""
    if dataset.negatives is None:
        return rows
    is_chosen = (dataset.negatives.origins == ORIGINS.index("gold")) & np.isin(dataset.negatives.queries, chosen)
    pairs = np.stack([dataset.negatives.queries[is_chosen], dataset.negatives.documents[is_chosen]], axis=1)
    existing = set(zip(rows.queries.tolist(), rows.documents.tolist(), strict=True))
    new_pairs = np.array([pair for pair in dict.fromkeys(map(tuple, pairs.tolist())) if pair not in existing], np.int64)
    if not len(new_pairs):
        return rows
    queries = np.concatenate([rows.queries, new_pairs[:, 0]])
    documents = np.concatenate([rows.documents, new_pairs[:, 1]])
    scores = np.concatenate([rows.scores, np.zeros(len(new_pairs), np.int64)])
    order = np.lexsort((documents, queries))
    return Judgements(queries[order], documents[order], scores[order])


def _ranked(rows: Judgements, dataset: RetrievalDataset) -> Judgements:
    """Return the rows as human judgements, with positives ranked within their query."""
    keys = np.array([_hash(dataset.documents.ids[int(document)]) for document in rows.documents], dtype=np.uint64)
    order = np.lexsort((keys, -rows.scores, rows.queries))
    starts = np.searchsorted(rows.queries, rows.queries)  # first row of the query of each row
    ranks = np.empty(len(rows), np.int64)
    ranks[order] = np.arange(len(rows)) - starts[order]
    return Judgements(rows.queries, rows.documents, rows.scores, None, np.where(rows.scores > 0, ranks, 0))  # type: ignore[arg-type]


def _smallest_hashes(rows: ndarray, name: Callable[[int], str], count: int) -> ndarray:
    """Return at most `count` of the rows: those whose names have the smallest hashes."""
    if len(rows) <= count:
        return rows
    keys = np.array([_hash(name(int(row))) for row in rows], dtype=np.uint64)
    return rows[np.argsort(keys, kind="stable")[:count]]


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])


def _write_lines(path: Path, rows: Iterable[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@dataclass(frozen=True)
class StudyDataset:
    """Data set for training and measuring.

    Args:
        name: name in tables.
        location: path or name, as a value of `--dataset`.
        test: split that is measured.
        level: lowest grade of a relevant document.
        drop_own: whether a document with the id of the query is left out.
        about: size of the subset, as text; empty for a whole data set.
        queries: number of training queries, if the data set is not opened.
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
        """Lines about the subset, printed above a table."""
        return (f"{self.about}.",) if self.about else ()

    def with_metrics(self, metrics: tuple[str, ...], extras: tuple[str, ...] = ()) -> MeasuredDataset:
        """Return the data set with the metrics to measure on it."""
        return MeasuredDataset(
            name=self.name,
            dataset=self.location,
            split=self.test,
            metrics=metrics,
            level=self.level,
            drop_own=self.drop_own,
            extras=extras,
        )


def untrained_arms(scale: str, measured: tuple[MeasuredDataset, ...]) -> list[Arm]:
    """Return the arm of the untrained encoder, with the lengths of the trained ones.

    At full there is none, because those trainings start from other encoders.
    """
    if scale == FULL:
        return []
    return [Arm("before", UNTRAINED, measured, None, model="minilm", lengths=LENGTHS[scale])]


def pydocs_subset(
    folder: Path, part: str, groups: bool = False, train: int = 48, subset: Subset | None = None
) -> StudyDataset:
    """Return a subset of pydocs: docstrings of the standard library, or of installed packages.

    Args:
        folder: folder for the data of the study.
        part: `stdlib` or `packages`.
        groups: whether passages of up to four siblings of the same class or module are relevant too, with a lower
            grade.
        train: number of training queries.
        subset: size of the subset; None for the usual size.
    """
    subset = subset or Subset(train=train, dev=16, test=48, documents=300)
    name = f"pydocs-{part}"
    kind = f"{name}{'-groups' if groups else ''}"
    location = write_subset(folder / _folder_name(kind, subset), kind, subset, lambda: open_pydocs(part, groups))
    return StudyDataset(name, location, about=_about(name, subset) + (_GROUPS if groups else ""))


def pack_subset(data_root: Path | None, folder: Path, name: str, subset: Subset, title: str = "") -> StudyDataset:
    """Return a subset of a pack.

    Args:
        data_root: folder of the packs.
        folder: folder for the data of the study.
        name: name of the pack.
        subset: size of the subset.
        title: name in tables; by default the name of the pack.

    Raises:
        ConfigError: the folder of the pack does not exist.
        DataError: see `open_dataset`.
    """
    source = pack_folder(data_root, name)
    splits = _SPLITS.get(name, ("", "", "test"))
    if not subset.train:
        splits = ("", "", splits[2])
    location = write_subset(folder / _folder_name(name, subset), name, subset, lambda: _open_pack(source, splits))
    dataset = StudyDataset(title or name, location, about=_about(title or name, subset, trained=bool(splits[0])))
    # In Cranfield queries and documents are numbered, so equal ids mean nothing.
    return replace(dataset, drop_own=name != "cranfield", level=2 if name.startswith("trec-dl") else 1)


def whole_dataset(
    data_root: Path | None, name: str, title: str, test: str = "test", queries: int | None = None
) -> StudyDataset:
    """Return the whole data set `DATA_ROOT/NAME`, of any known format; it is not opened here."""
    level = 2 if test.startswith("dl") else 1
    return StudyDataset(title, str((data_root or DEFAULT_ROOT) / name), test, level, queries=queries)


def pack_folder(data_root: Path | None, name: str) -> Path:
    """Return the folder of a pack; raises `ConfigError` if it does not exist."""
    remedy = f"give the folder that holds {name} and the other packs of the study"
    if data_root is None:
        raise ConfigError("is missing, and this scale measures on packs", setting("data_root"), remedy)
    if not (data_root / name).is_dir():
        raise ConfigError(f"holds no folder {name}", setting("data_root", data_root), remedy)
    return data_root / name


def _open_pack(path: Path, splits: tuple[str, str, str]) -> RetrievalDataset:
    """Open a pack and name its splits `train`, `dev` and `test`."""
    train, dev, test = splits
    dataset = open_dataset(path, [split for split in splits if split])
    names = {role: split for role, split in (("train", train), ("dev", train and dev), ("test", test)) if split}
    renamed = replace(
        dataset,
        judgements={role: dataset.judgements[split] for role, split in names.items()},
        absent={role: dataset.absent[split] for role, split in names.items() if split in dataset.absent},
    )
    return with_lent_dev(renamed, str(path)) if train and not dev else renamed


def open_pydocs(part: str, groups: bool = False) -> RetrievalDataset:
    """Open pydocs with the queries of one part only."""
    dataset = open_dataset(PYDOCS, ["train", "dev", "test"])
    of_stdlib = np.array([_is_stdlib(name.removeprefix("q:")) for name in dataset.queries.ids])
    judgements = {
        split: rows.where(of_stdlib[rows.queries] == (part == STDLIB)) for split, rows in dataset.judgements.items()
    }
    if groups:
        judgements = {split: _with_siblings(rows, dataset) for split, rows in judgements.items()}
    return replace(dataset, judgements=judgements)


def _with_siblings(rows: Judgements, dataset: RetrievalDataset) -> Judgements:
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


def _is_stdlib(name: str) -> bool:
    return name.split(".")[0] in sys.stdlib_module_names


def _folder_name(kind: str, subset: Subset) -> str:
    """Return the name of the folder of a subset; subsets of one data set differ by labels and share."""
    parts = [kind]
    if subset.by_llm:
        parts.append(f"one-{SOURCES[0]}")
    if subset.labels is not None:
        parts.append(f"{subset.labels}-of-{subset.share:.2f}")
    return "-".join(parts)


def _about(name: str, subset: Subset, trained: bool = True) -> str:
    text = f"{name}: at most {subset.test:,} test queries"
    if trained:
        text += f", {subset.train:,} training queries"
    return f"{text}, {subset.documents:,} documents (all that are judged for them, and others)"
