"""Subsets of data sets, written as folders in BEIR layout.

A subset keeps the queries and further documents whose ids have the smallest SHA-256, and all documents judged for these
queries. Of the queries without an answer it keeps as large a share as of the others. No seed is involved: the same
subset of the same data set gives the same bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from raytriever.annotation.output import JUDGEMENT_COLUMNS, judgement_lines, write_beir
from raytriever.data.dataset import Judgements, RetrievalDataset
from raytriever.data.keys import normalise
from raytriever.data.records import ORIGINS, SOURCES
from raytriever.errors import DataError, StorageError
from raytriever.store.commit import committed_directory, read_manifest

# Version of the subsets on disk; another one is written again.
_VERSION = 2


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
        open_source: function that opens the data set, with splits named `train`, `dev` and `test`, or some of these;
            called only if the subset is not stored.

    Returns:
        The folder, as a value of `--dataset`.
    """
    meta = {"kind": "cut", "version": _VERSION, "source": source, **asdict(subset)}
    if not is_stored(folder, meta):
        dataset = open_source()
        with committed_directory(folder, meta, replace=folder.exists()) as temporary:
            _write(dataset, subset, temporary)
    return str(folder)


def folder_of_subset(data: Path, kind: str, subset: Subset) -> Path:
    """Return the folder of a subset; subsets of one data set differ by labels and share."""
    parts = [kind]
    if subset.by_llm:
        parts.append(f"one-{SOURCES[0]}")
    if subset.labels is not None:
        parts.append(f"{subset.labels}-of-{subset.share:.2f}")
    return data / "-".join(parts)


def is_stored(folder: Path, meta: Mapping[str, Any]) -> bool:
    """Return whether a folder was written completely, with this description."""
    try:
        return bool(read_manifest(folder)["meta"] == meta)
    except StorageError:
        return False


def _write(dataset: RetrievalDataset, subset: Subset, folder: Path) -> None:
    judgements = {split: _select_judgements(dataset, split, subset) for split in dataset.judgements}
    judged = np.unique(np.concatenate([rows.documents for rows in judgements.values()]))
    documents, names = dataset.documents, dataset.queries.ids
    unjudged = np.setdiff1d(np.arange(len(documents)), judged)
    others = _smallest_hashes(unjudged, documents.ids, max(0, subset.documents - len(judged)))
    unanswerable = {
        split: kept for split in dataset.unanswerable if len(kept := _select_unanswerable(dataset, split, judgements))
    }
    chosen = [rows.queries for rows in judgements.values()]
    queries = np.unique(np.concatenate([*chosen, *unanswerable.values()])).tolist()
    lines: dict[str, list[list[object]]] = {}
    for split, rows in judgements.items():
        lost = dataset.absent.get(split)
        lines[split] = judgement_lines(dataset, rows, lost and lost.where(np.isin(lost.queries, rows.queries)))
    write_beir(
        folder,
        (
            {"_id": documents.ids[row], "title": documents.titles[row], "text": documents.texts[row]}
            for row in np.union1d(judged, others).tolist()
        ),
        ({"_id": names[row], "text": dataset.queries.texts[row]} for row in queries),
        lines,
        JUDGEMENT_COLUMNS,
        {split: [names[row] for row in kept.tolist()] for split, kept in unanswerable.items()},
    )


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
    chosen = _smallest_hashes(queries, dataset.queries.ids, count)
    rows = _with_gold(rows.where(np.isin(rows.queries, chosen)), dataset, chosen)
    ranked = _ranked(rows, dataset)
    if split != "train":
        return ranked
    if subset.by_llm:
        later = (ranked.scores > 0) & (ranked.ranks > 0)
        ranked = Judgements(ranked.queries, ranked.documents, ranked.scores, later.astype(np.int64), ranked.ranks)
    return ranked if subset.labels is None else ranked.where((ranked.scores <= 0) | (ranked.ranks < subset.labels))


def _select_unanswerable(dataset: RetrievalDataset, split: str, judgements: Mapping[str, Judgements]) -> ndarray:
    """Return as large a share of a split's queries without an answer as is kept of its queries with one."""
    rows = dataset.unanswerable[split]
    answered = len(np.unique(judgements[split].queries)) / len(dataset.positives(split))
    return _smallest_hashes(rows, dataset.queries.ids, round(len(rows) * answered))


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
    keys = np.array([id_hash(dataset.documents.ids[int(document)]) for document in rows.documents], dtype=np.uint64)
    order = np.lexsort((keys, -rows.scores, rows.queries))
    starts = np.searchsorted(rows.queries, rows.queries)  # first row of the query of each row
    ranks = np.empty(len(rows), np.int64)
    ranks[order] = np.arange(len(rows)) - starts[order]
    return Judgements(rows.queries, rows.documents, rows.scores, None, np.where(rows.scores > 0, ranks, 0))  # type: ignore[arg-type]


def _smallest_hashes(rows: ndarray, names: Sequence[str], count: int) -> ndarray:
    """Return at most `count` of the rows: those whose names have the smallest hashes."""
    if len(rows) <= count:
        return rows
    keys = np.array([id_hash(names[row]) for row in rows.tolist()], dtype=np.uint64)
    return rows[np.argsort(keys, kind="stable")[:count]]


def id_hash(name: str) -> int:
    """Return the number that an id is chosen by: the first 8 bytes of its SHA-256."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
