"""A teacher's scores: by pair in memory, by id on disk, and how much of a training set they cover."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raytriever.core.errors import DataError
from raytriever.core.store.commit import committed_directory
from raytriever.data.combine_datasets import combine, starts_of
from raytriever.data.dataset import Documents, Judgements, Queries, RetrievalDataset
from raytriever.data.hard_negatives import NegativesTable, write_pairs
from raytriever.data.sampling.teacher_scores import KIND, Coverage, TeacherTable, identity, read_scores
from raytriever.data.sampling.training_examples import Examples


def dataset(name: str = "numbers", queries: int = 4, documents: int = 10) -> RetrievalDataset:
    """Query q has the positive q."""
    pairs = np.arange(queries)
    return RetrievalDataset(
        name,
        Documents([f"d{n}" for n in range(documents)], [""] * documents, [f"{name} {n}" for n in range(documents)]),
        Queries([f"q{n}" for n in range(queries)], [f"query {n}" for n in range(queries)]),
        {"train": Judgements(pairs, pairs, np.ones(queries, np.int64))},
    )


DATASET = dataset()
NOTHING = pa.array([], pa.float32())
QUERIES, DOCUMENTS = np.array([2, 0, 0, 3]), np.array([9, 4, 0, 3])
SCORES = np.array([1.5, -2.0, 7.25, 0.0], dtype=np.float32)


def table() -> TeacherTable:
    return TeacherTable.of(DATASET, QUERIES, DOCUMENTS, SCORES, "here")


def test_scores_are_found_by_pair() -> None:
    result = table().of_groups(np.array([3, 0, 1]), np.array([[3, 9], [0, 4], [0, 4]]))
    np.testing.assert_array_equal(result, np.array([[0, np.nan], [7.25, -2], [np.nan, np.nan]], np.float32))
    assert result.dtype == np.float32
    assert np.isnan(TeacherTable.none(DATASET).of_groups(np.array([1]), np.array([[2, 3]]))).all()


def test_the_digest_is_of_pairs_and_scores_in_any_order() -> None:
    turned = TeacherTable.of(DATASET, QUERIES[::-1], DOCUMENTS[::-1], SCORES[::-1], "")
    assert turned.digest == table().digest
    others = [(QUERIES, DOCUMENTS, SCORES + 1), (QUERIES, DOCUMENTS[[0, 1, 3, 2]], SCORES)]
    assert len({table().digest, *(TeacherTable.of(DATASET, *columns, "").digest for columns in others)}) == 3


def test_tables_of_several_data_sets_are_one() -> None:
    first, second = dataset("first", 4, 10), dataset("second", 3, 7)
    tables = [TeacherTable.of(first, QUERIES, DOCUMENTS, SCORES, ""), TeacherTable.none(second)]
    tables[1] = TeacherTable.of(second, np.array([0, 2]), np.array([6, 1]), np.array([3.0, 4.0]), "")
    whole = TeacherTable.chained(tables, *starts_of(combine([first, second])))
    np.testing.assert_array_equal(whole.of_pairs(np.array([0, 2, 4, 6]), np.array([4, 9, 16, 11])), [-2, 1.5, 3, 4])
    assert np.isnan(whole.of_pairs(np.array([4]), np.array([6]))).all()
    assert (np.diff(whole.pairs) > 0).all()


@pytest.mark.parametrize(
    ("scores", "labels", "expected"),
    [
        ([3, 1, 0, -2], None, [1, 1 / 3]),
        ([1, 1, 0, 0], [0.9, 0.5, np.nan, 0.25], [0.9, 0.5, 0.25]),
        ([1, 1, 1, 0], [np.nan, 0.5, np.nan, np.nan], [1, 0.5, 1]),
        # One grade is binary relevance.
        ([2, 2, 0, 0], None, []),
        ([1, 1, 0, 0], [0.7, 0.7, np.nan, np.nan], []),
        ([0, 0, 0, 0], None, []),
    ],
)
def test_labels_are_those_of_the_data_or_fractions_of_the_highest_grade(
    scores: list[int], labels: list[float] | None, expected: list[float]
) -> None:
    pairs = np.arange(4)
    rows = Judgements(pairs, pairs, np.array(scores), labels=None if labels is None else np.array(labels, np.float32))
    graded = replace(DATASET, judgements={"train": rows})
    assert (graded.digest == replace(DATASET, judgements={"train": replace(rows, labels=None)}).digest) == (not labels)
    table = TeacherTable.of_grades(graded, "train")
    np.testing.assert_allclose(table.scores, expected, rtol=1e-6)


def test_coverage_counts_what_is_trained_on() -> None:
    negatives = NegativesTable.of(DATASET, np.array([0, 0, 2, 1]), np.array([4, 5, 9, 3]), "bm25")
    coverage = Coverage.of(table(), Examples.of(DATASET, "train", 0, negatives))
    assert coverage == Coverage(4, 2, 4, 2)
    assert str(coverage) == (
        "scores of 2 of 4 positives and of 2 of 4 hard negatives; 4 passages have no score and are left out"
    )
    coverage.check("here")
    with pytest.raises(DataError, match="here: has no score for any of the 4 positives"):
        replace(coverage, scored_positives=0).check("here")
    with pytest.raises(DataError, match=r"here: has no score for any of the 4 hard negatives .*negatives_table"):
        replace(coverage, scored_negatives=0).check("here")


def written(folder: Path, dataset: RetrievalDataset = DATASET, **other: str) -> Path:
    with committed_directory(folder, {"kind": KIND, "dataset": dataset.name, **identity(dataset), **other}) as aside:
        write_pairs(aside, dataset, QUERIES, DOCUMENTS, {"score": SCORES})
    return folder


def parquet(file: Path, **columns: object) -> Path:
    whole = {"query": ["q0", "q1"], "document": ["d1", "d2"], "score": [0.5, 2.0], **columns}
    pq.write_table(pa.table({name: values for name, values in whole.items() if values is not None}), file)
    return file


def test_a_parquet_file_of_anybodys_is_read(tmp_path: Path) -> None:
    result = read_scores(parquet(tmp_path / "scores.parquet", more=[1, 2]), DATASET)
    np.testing.assert_array_equal(result.of_pairs(np.array([0, 1]), np.array([1, 2])), [0.5, 2])
    twice = {"query": ["q0", "q0"], "document": ["d1", "d1"], "score": [1, 1]}
    assert len(read_scores(parquet(tmp_path / "twice.parquet", **twice), DATASET)) == 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"score": [0.5, float("nan")]}, "1 of 2 scores are not finite, the first is of query 'q1' and document 'd2'"),
        ({"score": [0.5, 1e300]}, "1 of 2 scores are not finite"),
        ({"score": [0.5, None]}, "column 'score' is empty in 1 of 2 rows"),
        ({"query": ["q0", "x9"]}, "1 of 2 rows name an unknown query; the first is 'x9'; give the scores of"),
        ({"query": ["q0", "q0"], "document": ["d1", "d1"]}, "query 'q0' and document 'd1' have two scores"),
        ({name: pa.array([], pa.string()) for name in ("query", "document")} | {"score": NOTHING}, "has no scores"),
    ],
)
def test_invalid_scores_are_refused(tmp_path: Path, columns: dict[str, object], message: str) -> None:
    with pytest.raises(DataError) as error:
        read_scores(parquet(tmp_path / "scores.parquet", **columns), DATASET)
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path))


def test_directories_of_something_else_are_refused(tmp_path: Path) -> None:
    scores = written(tmp_path / "scores")
    assert read_scores(scores, DATASET).digest == table().digest
    with pytest.raises(DataError, match="has scores of other documents: those of numbers when scored, not of others"):
        read_scores(scores, dataset("others"))
    with pytest.raises(DataError, match="has scores of other queries"):
        read_scores(scores, replace(DATASET, queries=Queries(DATASET.queries.ids, ["other"] * 4)))
    with pytest.raises(DataError, match="holds negatives instead of teacher scores; give a directory"):
        read_scores(written(tmp_path / "negatives", kind="negatives"), DATASET)
    with pytest.raises(DataError, match="there are no scores"):
        read_scores(tmp_path / "nowhere", DATASET)
