"""Subsets of data sets: their queries, documents and labels, which are the same in every call."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from packs import Subset, write_subset
from raytriever.data.dataset import Documents, Judgements, NegativeRows, Queries, RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.records_and_bad_rows import ORIGINS

DOCUMENTS, QUERIES, EACH = 200, 60, 3
SPLITS = {"train": range(30), "dev": range(30, 40), "test": range(40, 60)}


def make_dataset() -> RetrievalDataset:
    """Return sixty queries with three relevant documents of grades 1, 1 and 2 each, and one judged 0."""
    judgements = {}
    for split, queries in SPLITS.items():
        rows = [(query, 3 * query + at, grade) for query in queries for at, grade in enumerate((1, 1, 2))]
        rows += [(query, (3 * query + 50) % DOCUMENTS, 0) for query in queries]
        table = np.array(sorted(rows), dtype=np.int64)
        judgements[split] = Judgements(table[:, 0], table[:, 1], table[:, 2])
    gold = np.arange(5, dtype=np.int64)
    negatives = NegativeRows(
        gold, gold + 190, np.full(5, ORIGINS.index("gold"), np.int64), np.zeros(5, np.int64), np.zeros(5, np.float32)
    )
    return RetrievalDataset(
        "made",
        Documents([f"d{n}" for n in range(DOCUMENTS)], [""] * DOCUMENTS, [f"document {n}" for n in range(DOCUMENTS)]),
        Queries([f"q{n}" for n in range(QUERIES)], [f"query {n}" for n in range(QUERIES)]),
        judgements,
        negatives=negatives,
    )


def open_subset(folder: Path, subset: Subset) -> RetrievalDataset:
    write_subset(make_dataset(), subset, folder)
    return open_dataset(folder, ["train", "dev", "test"])


def first_by_hash(split: str, count: int) -> set[str]:
    names = [f"q{n}" for n in SPLITS[split]]
    return set(sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())[:count])


def names_of(dataset: RetrievalDataset, split: str) -> set[str]:
    return {dataset.queries.ids[int(position)] for position in dataset.positives(split).queries}


def test_queries_with_the_smallest_hashes_and_all_judged_documents_are_kept(tmp_path: Path) -> None:
    dataset = open_subset(tmp_path / "cut", Subset(train=10, dev=4, test=6, documents=100))
    for split, count in (("train", 10), ("dev", 4), ("test", 6)):
        assert names_of(dataset, split) == first_by_hash(split, count)
        assert (np.diff(dataset.positives(split).offsets) == EACH).all()
    assert len(dataset.documents) == 100
    few = open_subset(tmp_path / "small", Subset(10, 4, 6, documents=1))
    assert len(few.documents) > 0  # never fewer than are judged
    assert len(few.documents) == len({int(d) for rows in few.judgements.values() for d in rows.documents})


def test_queries_with_the_text_of_a_test_query_are_not_trained_on(tmp_path: Path) -> None:
    made = make_dataset()
    texts = list(made.queries.texts)
    texts[3], texts[33] = "QUERY  40", "query 41"
    repeated = replace(made, queries=Queries(made.queries.ids, texts))
    write_subset(repeated, Subset(30, 10, 20, 200), tmp_path / "cut")
    dataset = open_dataset(tmp_path / "cut", ["train", "dev", "test"])
    assert names_of(dataset, "train") == {f"q{n}" for n in SPLITS["train"] if n != 3}
    assert names_of(dataset, "dev") == {f"q{n}" for n in SPLITS["dev"] if n != 33}
    assert len(names_of(dataset, "test")) == 20


def test_a_budget_removes_labels_and_queries_of_the_training_split_only(tmp_path: Path) -> None:
    dataset = open_subset(tmp_path / "cut", Subset(20, 4, 6, 100, fraction=0.5, labels=2))
    assert names_of(dataset, "train") == first_by_hash("train", 10)
    assert (np.diff(dataset.positives("train").offsets) == 2).all()
    assert (np.diff(dataset.positives("test").offsets) == EACH).all()
    relevant = dataset.judgements["train"].where(dataset.judgements["train"].scores > 0)
    assert set(relevant.ranks.tolist()) == {0, 1}


def test_the_first_positive_is_human_and_the_others_are_of_an_llm(tmp_path: Path) -> None:
    dataset = open_subset(tmp_path / "cut", Subset(20, 4, 6, 100, by_llm=True))
    positives = dataset.positives("train")
    assert ((positives.sources == 0) == (positives.ranks == 0)).all()
    assert (dataset.positives("test").sources == 0).all()
