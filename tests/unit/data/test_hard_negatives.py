"""Tables of hard negatives, in memory and on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.core.errors import DataError, StorageError
from raytriever.data import hard_negatives as negatives_file
from raytriever.data.dataset import Documents, Judgements, Queries, RetrievalDataset
from raytriever.data.hard_negatives import COLUMNS, NegativesTable, read_negatives, write_negatives

GOLD, BM25, DENSE = 0, 1, 2


def dataset(queries: int = 4, documents: int = 10) -> RetrievalDataset:
    """Query q has the positive q, and document q + 1 judged 0."""
    rows = [(q, d, score) for q in range(queries) for d, score in ((q, 1), (q + 1, 0))]
    ids = [f"d{n}" for n in range(documents)]
    return RetrievalDataset(
        "made",
        Documents(ids, ids, ids),
        Queries([f"q{n}" for n in range(queries)], [f"text {n}" for n in range(queries)]),
        {"train": Judgements(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)},
    )


def rows(table: NegativesTable) -> list[tuple[int, ...]]:
    columns = (table.queries, table.documents, table.origins, table.ranks)
    return [tuple(row) for row in np.stack([column.astype(np.int64) for column in columns], axis=1).tolist()]


def test_rows_in_any_order_become_each_querys_by_rank() -> None:
    table = NegativesTable.of(
        dataset(),
        queries=np.array([2, 0, 2, 0]),
        documents=np.array([5, 7, 4, 9]),
        origins=np.array([BM25, BM25, DENSE, DENSE]),
        ranks=np.array([1, 1, 0, 0]),
        scores=np.array([0.5, 1.5, 2.5, 3.5]),
        rounds=3,
    )
    assert table.offsets.tolist() == [0, 2, 2, 4, 4]
    assert rows(table) == [(0, 9, DENSE, 0), (0, 7, BM25, 1), (2, 4, DENSE, 0), (2, 5, BM25, 1)]
    assert table.scores.tolist() == [3.5, 1.5, 2.5, 0.5]
    assert table.rounds.tolist() == [3] * 4
    assert [table.documents.dtype, table.origins.dtype, table.ranks.dtype] == [np.int64, np.int8, np.int32]
    assert table.counts() == {"bm25": 2, "dense": 2, "relevant": 0, "repeated": 0}


def test_what_is_relevant_in_any_split_is_no_negative_and_is_counted() -> None:
    with_dev = dataset()
    dev = Judgements(np.array([3]), np.array([8]), np.array([2]))
    with_dev = RetrievalDataset("made", with_dev.documents, with_dev.queries, {**with_dev.judgements, "dev": dev})
    table = NegativesTable.of(with_dev, np.array([0, 0, 3, 3, 2]), np.array([0, 1, 3, 8, 8]), "bm25")
    assert rows(table) == [(0, 1, BM25, 0), (2, 8, BM25, 0)]
    assert (table.relevant, table.repeated) == (3, 0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 4), st.integers(0, 5)), max_size=60))
def test_a_table_is_what_a_dictionary_would_keep(result: list[tuple[int, int, int, int]]) -> None:
    best: dict[tuple[int, int], tuple[int, int]] = {}
    for query, document, origin, rank in result:
        if document != query:
            best[query, document] = min(best.get((query, document), (99, 99)), (rank, origin))
    columns = np.array(result, dtype=np.int64).reshape(-1, 4).T
    table = NegativesTable.of(dataset(), *columns)
    assert sorted(rows(table)) == sorted((q, d, origin, rank) for (q, d), (rank, origin) in best.items())
    assert [row[0] for row in rows(table)] == sorted(row[0] for row in rows(table))
    assert len(table) + table.relevant + table.repeated == len(result)


def test_mined_rows_and_judged_pairs_become_tables_and_are_merged() -> None:
    letters = dataset()
    mined = np.array([[5, 1, -1], [-1, -1, -1], [9, -1, -1], [4, -1, -1]])
    mined[3, 1] = 3  # relevant
    queries, ranks = np.nonzero(mined >= 0)
    by_depth = NegativesTable.of(letters, queries, mined[queries, ranks], "bm25", ranks)
    assert rows(by_depth) == [(0, 5, BM25, 0), (0, 1, BM25, 1), (2, 9, BM25, 0), (3, 4, BM25, 0)]
    judged = NegativesTable.judged(letters, "train")
    assert rows(judged) == [(q, q + 1, GOLD, 0) for q in range(4)]
    both = NegativesTable.merged(letters, [by_depth, judged])
    assert (0, 1, GOLD, 0) in rows(both)
    assert len(both) == 6
    assert both.counts() == {"gold": 4, "bm25": 2, "relevant": 1, "repeated": 2}


def test_tables_of_combined_data_sets_are_chained() -> None:
    first, second = dataset(2, 5), dataset(3, 6)
    table = NegativesTable.chained(
        [
            NegativesTable.of(first, np.array([1]), np.array([4]), "bm25"),
            NegativesTable.none(dataset(0, 3)),
            NegativesTable.of(second, np.array([0, 2]), np.array([5, 1]), "dense"),
        ],
        [0, 5, 8],
    )
    assert table.offsets.tolist() == [0, 0, 1, 2, 2, 3]
    assert rows(table) == [(1, 4, BM25, 0), (2, 13, DENSE, 0), (4, 9, DENSE, 0)]


def test_positions_the_data_set_does_not_have_are_refused() -> None:
    with pytest.raises(DataError, match="names document 10, but there are only 10"):
        NegativesTable.of(dataset(), np.arange(4), np.full(4, 10), "bm25")
    with pytest.raises(DataError, match="names query 4, but there are only 4"):
        NegativesTable.of(dataset(), np.array([4]), np.array([1]), "bm25")


def small_dataset(reverse: bool = False) -> RetrievalDataset:
    documents, queries = [f"d{n}" for n in range(8)], [f"q\u2028{n}" for n in range(3)]
    if reverse:
        documents, queries = documents[::-1], queries[::-1]
    judged = Judgements(np.array([0]), np.array([0]), np.array([1]))
    return RetrievalDataset(
        "made", Documents(documents, documents, documents), Queries(queries, queries), {"t": judged}
    )


TABLE = NegativesTable.of(
    small_dataset(),
    np.array([0, 0, 2, 2, 2]),
    np.array([1, 2, 3, 4, 5]),
    np.array([0, 1, 2, 3, 4]),
    np.array([0, 1, 0, 1, 2]),
    np.array([0.5, np.nan, -1, 2, 3]),
    np.array([0, 0, 1, 1, 2]),
)
NAMES = ("offsets", "documents", "origins", "ranks", "scores", "rounds")


def columns(**changes: Any) -> pa.Table:
    """A good file of two rows but for `changes`; None leaves a column out."""
    good = {"query": ["q\u20280", "q\u20281"], "document": ["d1", "d2"], "origin": ["bm25", "dense"]}
    numbers = {"rank": [0, 1], "score": [1.0, None], "round": [0, 0]}
    return pa.table({name: value for name, value in (good | numbers | changes).items() if value is not None})


def test_what_was_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negatives_file, "PART_ROWS", 2)
    write_negatives(tmp_path / "table", TABLE, small_dataset())
    assert len(list((tmp_path / "table").glob("*.parquet"))) == 3
    assert tuple(pq.read_schema(tmp_path / "table" / "part-00000.parquet").names) == COLUMNS
    result = read_negatives(tmp_path / "table", small_dataset())
    for name in NAMES:
        np.testing.assert_array_equal(getattr(result, name), getattr(TABLE, name))
    write_negatives(tmp_path / "empty", NegativesTable.none(small_dataset()), small_dataset())
    assert len(read_negatives(tmp_path / "empty", small_dataset())) == 0
    pq.write_table(columns(more=["x", "y"], rank=pa.array([0, 1], pa.uint8())), tmp_path / "t.parquet")
    result = read_negatives(tmp_path / "t.parquet", small_dataset())
    assert result.queries.tolist() == [0, 1]
    np.testing.assert_array_equal(result.scores, [1, np.nan])


def test_ids_outlive_positions(tmp_path: Path) -> None:
    write_negatives(tmp_path / "table", TABLE, small_dataset())
    result = read_negatives(tmp_path / "table", small_dataset(reverse=True))
    assert result.documents.tolist() == [7 - n for n in (3, 4, 5, 1, 2)]
    assert result.queries.tolist() == [0, 0, 0, 2, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"origin": None}, "no column 'origin'; there are query, document, rank, score, round"),
        ({"query": ["q\u20280", "q9"]}, "1 of 2 rows name an unknown query; the first is 'q9'"),
        ({"document": ["x", "y"]}, "2 of 2 rows name an unknown document; the first is 'x'"),
        ({"origin": ["bm25", "bm52"]}, "1 of 2 rows name an unknown origin; the first is 'bm52'; did you mean 'bm25'?"),
        ({"document": [1, 2]}, "column 'document' has the type int64, not string"),
        ({"rank": ["a", "b"]}, "column 'rank' has the type string, not a number"),
        ({"rank": [0.0, 0.5]}, "column 'rank' has the type double, not a number"),
        ({"rank": [0, None]}, "column 'rank' is empty in 1 of 2 rows"),
        ({"query": ["q\u20280", None]}, "column 'query' is empty in 1 of 2 rows"),
        ({"round": [0, 2**40]}, f"round {2**40} is out of range"),
        ({"rank": [0, -1]}, "rank -1 is out of range"),
    ],
)
def test_a_wrong_file_is_reported(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    pq.write_table(columns(**changes), tmp_path / "t.parquet")
    with pytest.raises(DataError) as error:
        read_negatives(tmp_path / "t.parquet", small_dataset())
    assert message in str(error.value)
    assert "t.parquet" in str(error.value)


def test_broken_and_missing_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no negatives table"):
        read_negatives(tmp_path / "none", small_dataset())

    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more PAR1")
    with pytest.raises(DataError, match="the Parquet file is broken"):
        read_negatives(tmp_path / "t.parquet", small_dataset())
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="never completed"):
        read_negatives(tmp_path / "folder", small_dataset())
    write_negatives(tmp_path / "table", TABLE, small_dataset())
    with open(tmp_path / "table" / "part-00000.parquet", "ab") as stream:
        stream.write(b"x")
    with pytest.raises(StorageError, match=r"damaged|incomplete"):
        read_negatives(tmp_path / "table", small_dataset())
