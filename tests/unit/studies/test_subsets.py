"""Subsets of data sets: their queries, documents and labels, which are the same in every call."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raytriever.data.dataset import Documents, Judgements, NegativeRows, Queries, RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.data.records import ORIGINS
from raytriever.errors import DataError
from raytriever.studies.recipes.scale import with_siblings
from raytriever.studies.subsets import Subset, write_subset

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
    return open_dataset(write_subset(folder, "made", subset, make_dataset), ["train", "dev", "test"])


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
    assert open_subset(tmp_path / "small", Subset(10, 4, 6, documents=1)).documents.ids  # never fewer than are judged
    few = open_subset(tmp_path / "small", Subset(10, 4, 6, documents=1))
    assert len(few.documents) == len({int(d) for rows in few.judgements.values() for d in rows.documents})


def test_queries_with_the_text_of_a_test_query_are_not_trained_on(tmp_path: Path) -> None:
    def repeated() -> RetrievalDataset:
        dataset = make_dataset()
        texts = list(dataset.queries.texts)
        texts[3], texts[33] = "QUERY  40", "query 41"
        return replace(dataset, queries=Queries(dataset.queries.ids, texts))

    path = write_subset(tmp_path / "cut", "repeated", Subset(30, 10, 20, 200), repeated)
    dataset = open_dataset(path, ["train", "dev", "test"])
    assert names_of(dataset, "train") == {f"q{n}" for n in SPLITS["train"] if n != 3}
    assert names_of(dataset, "dev") == {f"q{n}" for n in SPLITS["dev"] if n != 33}
    assert len(names_of(dataset, "test")) == 20


def test_positives_are_ranked_by_grade(tmp_path: Path) -> None:
    dataset = open_subset(tmp_path / "cut", Subset(10, 4, 6, 100))
    rows = dataset.judgements["train"].where(dataset.judgements["train"].scores > 0)
    assert (rows.ranks[rows.scores == 2] == 0).all()
    assert sorted(rows.ranks[rows.queries == rows.queries[0]].tolist()) == [0, 1, 2]


def test_documents_judged_0_and_gold_negatives_stay_negatives(tmp_path: Path) -> None:
    dataset = open_subset(tmp_path / "cut", Subset(train=30, dev=10, test=20, documents=200))
    rows = dataset.judgements["train"]
    assert (rows.scores == 0).sum() == 30 + 5
    assert dataset.negatives is not None
    assert len(dataset.negatives.queries) >= 35


def test_a_budget_removes_labels_and_queries_of_the_training_split_only(tmp_path: Path) -> None:
    dataset = open_subset(tmp_path / "cut", Subset(20, 4, 6, 100, share=0.5, labels=2))
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


def test_a_subset_is_written_once_and_replaced_by_another(tmp_path: Path) -> None:
    folder, subset = tmp_path / "cut", Subset(10, 4, 6, 100)
    write_subset(folder, "made", subset, make_dataset)
    first = {path.name: path.read_bytes() for path in folder.rglob("*.jsonl")}

    def never() -> RetrievalDataset:
        raise AssertionError("the subset is already stored")

    write_subset(folder, "made", subset, never)
    write_subset(tmp_path / "again", "made", subset, make_dataset)
    assert first == {path.name: path.read_bytes() for path in (tmp_path / "again").rglob("*.jsonl")}
    assert names_of(open_subset(folder, Subset(11, 4, 6, 100)), "train") == first_by_hash("train", 11)


def test_a_split_without_positives_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="split 'train' has no query"):
        write_subset(tmp_path / "cut", "made", Subset(0, 4, 6, 100), make_dataset)
    assert not (tmp_path / "cut").exists()


def test_siblings_are_of_the_same_class_and_of_a_lower_grade() -> None:
    names = ["a.B.one", "a.B.two", "a.B.three", "a.c"]
    dataset = RetrievalDataset(
        "names", Documents(names, [""] * 4, names), Queries([f"q:{name}" for name in names], names), {}
    )
    rows = Judgements(*(np.array(column, np.int64) for column in ([1, 3], [1, 3], [1, 1])))
    judgements = with_siblings(rows, dataset)
    assert list(
        zip(judgements.queries.tolist(), judgements.documents.tolist(), judgements.scores.tolist(), strict=True)
    ) == [
        (1, 0, 1),
        (1, 1, 2),
        (1, 2, 1),
        (3, 3, 2),
    ]
