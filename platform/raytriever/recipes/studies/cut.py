"""A part of a data set, small enough for a study, as a folder in BEIR layout.

1. Of each split those queries are kept whose ids have the smallest SHA-256, as `data.open.hold_out` draws them. None is
   kept to learn from, or to stop by, that has the text of one that is measured.
2. Kept are all documents judged for them, and beside these others, again by the SHA-256 of their ids.
3. A query's positives are ranked by grade, equal grades by hash; the first may stand for what people judged and the
   rest for what a language model did, and all but the first few may be left out, as if nobody had judged them.

Nothing is drawn by a seed: whoever cuts the same data set in the same way gets the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy import ndarray

from raytriever.data.dataset import Judgements, RetrievalDataset
from raytriever.data.formats.beir import QRELS_HEADER
from raytriever.data.records import ORIGINS, SOURCES
from raytriever.data.split_overlap import plain_text
from raytriever.errors import DataError, StorageError
from raytriever.storage import committed_directory, read_manifest

_VERSION = 2
HUMAN, LLM = SOURCES


@dataclass(frozen=True)
class Cut:
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


def cut_to(folder: Path, source: str, cut: Cut, opened: Callable[[], RetrievalDataset]) -> str:
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


def _write(dataset: RetrievalDataset, cut: Cut, aside: Path) -> None:
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


def _kept(dataset: RetrievalDataset, split: str, cut: Cut) -> Judgements:
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
