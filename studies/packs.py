"""The data sets of the studies: subsets of the data packs, written as folders in BEIR layout.

    python studies/packs.py PACKS [--output packs]

PACKS is the folder of the packs: squad, scifact, ... What exists is not written again. The YAML files next to this
program name the folders below `packs`.

A subset keeps the queries and further documents whose ids have the smallest SHA-256, and all documents judged for these
queries. No evaluated query is used in training, nor one with the same text. No seed is involved: the same packs give
the same bytes."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy import ndarray

from raytriever.core.errors import DataError
from raytriever.core.store.commit import committed_directory
from raytriever.data.dataset import Judgements, RetrievalDataset
from raytriever.data.hashed_ids import normalize
from raytriever.data.prepare.open_dataset import open_dataset, with_lent_dev
from raytriever.data.records_and_bad_rows import ORIGINS
from raytriever.evaluation.annotation.annotated_dataset import JUDGEMENT_COLUMNS, judgement_lines, write_beir

# Folder of each pack by a short name, and its splits for training, validation and measuring. A split is empty if there
# is none, or if validation uses training queries.
PACKS: Mapping[str, tuple[str, tuple[str, str, str]]] = {
    "squad": ("squad", ("train", "", "dev")),
    "scifact": ("scifact", ("train", "", "test")),
    "nfcorpus": ("nfcorpus-filtered", ("train", "dev", "test")),
    "medquad": ("medquad", ("train", "dev", "test")),
    "snli": ("snli", ("dev", "", "test")),
    "hotpotqa": ("hotpotqa-mini", ("", "", "train")),
    "climate-fever": ("climate-fever-evidence", ("", "", "test")),
    "trec-dl19": ("trec-dl19-mini", ("", "", "test")),
    "cranfield": ("cranfield", ("", "", "test")),
}


@dataclass(frozen=True)
class Subset:
    """Size of a subset of a data set.

    Args:
        train, dev, test: largest number of queries of each split.
        documents: largest number of documents; all judged documents are kept even if they are more.
        fraction: fraction of the training queries to keep after `train` is applied, 0 to 1.
        labels: number of positives of a training query, lowest ranks first; None for all.
        by_llm: whether all positives of a training query except the first are marked as labels of a language model.
    """

    train: int
    dev: int
    test: int
    documents: int
    fraction: float = 1.0
    labels: int | None = None
    by_llm: bool = False


_CUT = Subset(train=1_500, dev=128, test=500, documents=2_500)
_LONG = Subset(train=4_000, dev=192, test=300, documents=2_500)
_FROM_BASE = Subset(train=6_000, dev=192, test=500, documents=2_500)
_UNSEEN = Subset(train=0, dev=0, test=200, documents=600)
_SMALL_UNSEEN = replace(_UNSEEN, test=300, documents=1_400)
_NFCORPUS = Subset(train=1_500, dev=128, test=400, documents=3_400)
# By the name of the folder: the pack, and the subset. All documents of SNLI are judged for queries of a subset.
SUBSETS: Mapping[str, tuple[str, Subset]] = {
    **{name: (name, _CUT) for name in ("squad", "scifact", "snli")},
    "medquad-1000": ("medquad", Subset(train=640, dev=128, test=300, documents=1_000)),
    "scifact-rivals": ("scifact", replace(_CUT, test=300, documents=1_000)),
    "squad-4000": ("squad", _LONG),
    "snli-4000": ("snli", replace(_LONG, documents=1)),
    "squad-6000": ("squad", _FROM_BASE),
    "snli-6000": ("snli", replace(_FROM_BASE, documents=1)),
    "squad-lambda": ("squad", replace(_CUT, documents=4_000)),
    "squad-refresh": ("squad", replace(_LONG, test=500, documents=4_000)),
    "snli-3000": ("snli", Subset(train=3_000, dev=200, test=100, documents=1)),
    **{
        f"{name}-600": (name, _UNSEEN)
        for name in ("squad", "scifact", "medquad", "hotpotqa", "climate-fever", "cranfield")
    },
    **{f"{name}-300": (name, _SMALL_UNSEEN) for name in ("scifact", "cranfield")},
    "trec-dl19-100": ("trec-dl19", replace(_UNSEEN, test=100, documents=5_000)),
    "nfcorpus": ("nfcorpus", _NFCORPUS),
    "nfcorpus-two-sources": ("nfcorpus", replace(_NFCORPUS, by_llm=True)),
    "nfcorpus-one-label": ("nfcorpus", replace(_CUT, labels=1)),
    **{
        f"nfcorpus-{labels}-of-{percent}": ("nfcorpus", replace(_NFCORPUS, fraction=fraction, labels=labels))
        for labels, percent, fraction in ((1, 100, 1.0), (2, 50, 1 / 2), (3, 33, 1 / 3), (4, 25, 1 / 4))
    },
}


def write_subsets(packs: Path, output: Path) -> Iterator[Path]:
    """Write the subsets that do not exist yet, and yield their folders; a pack that is missing raises `DataError`."""
    for name, (pack, subset) in SUBSETS.items():
        folder = output / name
        if not folder.exists():
            write_subset(open_pack(packs, pack, bool(subset.train)), subset, folder)
            yield folder


def open_pack(packs: Path, name: str, trains: bool) -> RetrievalDataset:
    """Open a pack, one of `PACKS`, and name its splits `train`, `dev` and `test`; only `test` if it does not train."""
    pack, splits = PACKS[name]
    path = packs / pack
    if not path.is_dir():
        raise DataError("no such folder", str(path), "give the folder that holds the packs")
    train, dev, test = splits if trains else ("", "", splits[2])
    dataset = open_dataset(path, [split for split in (train, dev, test) if split])
    names = {role: split for role, split in (("train", train), ("dev", train and dev), ("test", test)) if split}
    renamed = replace(
        dataset,
        judgements={role: dataset.judgements[split] for role, split in names.items()},
        absent={role: dataset.absent[split] for role, split in names.items() if split in dataset.absent},
        unanswerable={},
    )
    return with_lent_dev(renamed, str(path)) if train and not dev else renamed


def write_subset(dataset: RetrievalDataset, subset: Subset, folder: Path) -> None:
    """Write a subset of a data set whose splits are `train`, `dev` and `test`, or some of these; completely or not."""
    judgements = {split: _select_judgements(dataset, split, subset) for split in dataset.judgements}
    judged = np.unique(np.concatenate([rows.documents for rows in judgements.values()]))
    documents, names = dataset.documents, dataset.queries.ids
    unjudged = np.setdiff1d(np.arange(len(documents)), judged)
    others = _smallest_hashes(unjudged, documents.ids, max(0, subset.documents - len(judged)))
    queries = np.unique(np.concatenate([rows.queries for rows in judgements.values()])).tolist()
    lines: dict[str, list[list[object]]] = {}
    for split, rows in judgements.items():
        lost = dataset.absent.get(split)
        lines[split] = judgement_lines(dataset, rows, lost and lost.where(np.isin(lost.queries, rows.queries)))
    with committed_directory(folder) as temporary:
        write_beir(
            temporary,
            (
                {"_id": documents.ids[row], "title": documents.titles[row], "text": documents.texts[row]}
                for row in np.union1d(judged, others).tolist()
            ),
            ({"_id": names[row], "text": dataset.queries.texts[row]} for row in queries),
            lines,
            JUDGEMENT_COLUMNS,
        )


def _select_judgements(dataset: RetrievalDataset, split: str, subset: Subset) -> Judgements:
    """Return the ranked judgements of the queries of a split that are kept.

    Hard negatives of origin `gold` in the data set are judged 0."""
    rows = dataset.judgements[split]
    queries = np.unique(rows.queries[rows.scores > 0])
    if split != "test" and "test" in dataset.judgements:
        evaluated = {normalize(dataset.queries.texts[int(query)]) for query in dataset.judgements["test"].queries}
        texts = [normalize(dataset.queries.texts[int(query)]) for query in queries]
        queries = queries[np.array([text not in evaluated for text in texts], dtype=bool)]
    count = min({"train": subset.train, "dev": subset.dev, "test": subset.test}[split], len(queries))
    if split == "train":
        count = round(count * subset.fraction)
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


def main() -> None:
    """Write the data sets and name them."""
    parser = argparse.ArgumentParser(description="Write the data sets of the studies.")
    parser.add_argument("packs", type=Path, metavar="PACKS", help="folder of the data packs")
    parser.add_argument("--output", type=Path, default=Path("packs"), metavar="DIR", help="default: packs")
    arguments = parser.parse_args()
    for folder in write_subsets(arguments.packs, arguments.output):
        print(folder, flush=True)


if __name__ == "__main__":
    main()
