"""Written data set: it contains the annotations and all previous data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raytriever.core.store.commit import read_manifest
from raytriever.data.dataset import Documents, Judgements, NegativeRows, Queries, RetrievalDataset
from raytriever.data.hard_negatives import read_negatives
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.sampling.training_examples import groups_of
from raytriever.evaluation.annotation.annotated_dataset import merge_positives, write_annotated
from raytriever.evaluation.annotation.annotation_candidates import fuse
from raytriever.evaluation.annotation.annotator import Annotation

# Query 0: people judged document 0 relevant and document 1 not. Query 1: document 2, by the model of an earlier job.
ROWS = Judgements(*np.array([[0, 0, 1, 0, 0], [0, 1, 0, 0, 0], [1, 2, 1, 1, 0]]).T)
FOUND = {0: Annotation([0, 1, 3], "so", [3, 1, 0]), 2: Annotation([1], "so", [1])}


def table(rows: Judgements) -> list[tuple[int, ...]]:
    columns = (rows.queries, rows.documents, rows.scores, rows.sources, rows.ranks)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_people_are_not_contradicted() -> None:
    merged, counts = merge_positives(ROWS, FOUND, "human")
    assert table(merged) == [(0, 0, 1, 0, 0), (0, 1, 0, 0, 0), (0, 3, 1, 1, 0), (1, 2, 1, 1, 0), (2, 1, 1, 1, 0)]
    assert counts == {"positives": 3, "agreed": 1, "judged_irrelevant": 1}
    merged, _ = merge_positives(ROWS, FOUND, "llm")
    assert table(merged)[0] == (0, 0, 1, 1, 2)
    merged, _ = merge_positives(None, FOUND, "human")
    assert table(merged) == [(0, 0, 1, 1, 2), (0, 1, 1, 1, 1), (0, 3, 1, 1, 0), (2, 1, 1, 1, 0)]


@pytest.mark.parametrize("name", ["d", "a\tb ", "ü\u2028"])
def test_output_with_special_ids_is_read_unchanged(tmp_path: Path, own_cache: Path, name: str) -> None:
    documents = Documents([f"{name}{i}" for i in range(4)], ["", "T", "", ""], ["a", "b\nc", "d", 'e"f'])
    queries = Queries([f"{name}{i}" for i in range(3)], ["one", "two", "three"])
    dataset = RetrievalDataset("some", documents, queries, {"train": ROWS, "test": ROWS})
    candidates = {0: [0, 1, 2, 3], 2: [1]}
    meta = {"kind": "annotations"}
    write_annotated(tmp_path / "out", dataset, "train", FOUND, candidates, "human", meta)
    read = open_dataset(tmp_path / "out", ["train", "test"])
    assert not read.quarantine.total
    assert list(read.documents.ids) == documents.ids
    assert list(read.documents.texts) == documents.texts
    assert list(read.queries.texts) == queries.texts
    assert table(read.judgements["train"]) == table(merge_positives(ROWS, FOUND, "human")[0])
    assert table(read.judgements["test"]) == table(ROWS)
    assert read_manifest(tmp_path / "out")["meta"]["positives"] == 3


def test_groups_are_made_of_it(tmp_path: Path, own_cache: Path) -> None:
    documents, queries = Documents(list("abcd"), [""] * 4, list("wxyz")), Queries(list("123"), ["one", "two", "three"])
    dataset = RetrievalDataset("some", documents, queries, {"train": ROWS})
    write_annotated(tmp_path / "out", dataset, "train", FOUND, {0: [0], 2: [1]}, "human", {})
    positives = open_dataset(tmp_path / "out", ["train"]).positives("train")
    examples, (human, llm) = groups_of(positives, "human-first", "out")
    assert (examples.queries.tolist(), human.documents.tolist(), llm.documents.tolist()) == ([0], [0], [3])
    examples, (llm,) = groups_of(positives, "llm", "out")
    assert (examples.queries.tolist(), llm.documents.tolist(), llm.ranks.tolist()) == ([0, 1, 2], [3, 2, 1], [0, 0, 0])


def test_hard_negatives_are_carried_over(tmp_path: Path, own_cache: Path) -> None:
    documents, queries = Documents(list("abcd"), [""] * 4, list("wxyz")), Queries(list("123"), ["one", "two", "three"])
    # The second was judged 0; the last is the model's positive now.
    rows = np.array([[0, 2, 1, 0], [0, 1, 0, 0], [1, 3, 2, 1], [2, 1, 1, 0]]).T
    negatives = NegativeRows(*rows, np.array([0.5, 0.25, np.nan, 1.0], np.float32))
    dataset = RetrievalDataset("some", documents, queries, {"train": ROWS}, negatives=negatives)
    meta: dict[str, object] = {}
    write_annotated(tmp_path / "out", dataset, "train", FOUND, {0: [0], 2: [1]}, "human", meta)
    assert meta["negatives"] == 3
    table = read_negatives(tmp_path / "out" / "negatives", open_dataset(tmp_path / "out", ["train"]))
    results = list(zip(table.queries.tolist(), table.documents.tolist(), table.origins.tolist(), strict=True))
    assert results == [(0, 2, 1), (1, 3, 2)]
    assert table.relevant == 1


def test_documents_of_several_retrievers_come_first() -> None:
    first, second = np.array([4, 7, 2]), np.array([7, -1, -1])
    assert fuse([first, second]) == [7, 4, 2]
    assert fuse([np.array([9, 1]), np.array([1, 9])]) == [1, 9]
    assert fuse([np.array([-1])]) == []
