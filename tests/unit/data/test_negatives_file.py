from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raytriever.data import negatives as negatives_file
from raytriever.data.dataset import Documents, Judgements, Queries, RetrievalDataset
from raytriever.data.negatives import COLUMNS, NegativesTable, read_negatives, write_negatives
from raytriever.errors import DataError, StorageError


def dataset(reverse: bool = False) -> RetrievalDataset:
    documents, queries = [f"d{n}" for n in range(8)], [f"q\u2028{n}" for n in range(3)]
    if reverse:
        documents, queries = documents[::-1], queries[::-1]
    judged = Judgements(np.array([0]), np.array([0]), np.array([1]))
    return RetrievalDataset(
        "made", Documents(documents, documents, documents), Queries(queries, queries), {"t": judged}
    )


TABLE = NegativesTable.of(
    dataset(),
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
    write_negatives(tmp_path / "table", TABLE, dataset())
    assert len(list((tmp_path / "table").glob("*.parquet"))) == 3
    assert tuple(pq.read_schema(tmp_path / "table" / "part-00000.parquet").names) == COLUMNS
    result = read_negatives(tmp_path / "table", dataset())
    for name in NAMES:
        np.testing.assert_array_equal(getattr(result, name), getattr(TABLE, name))


def test_ids_outlive_positions(tmp_path: Path) -> None:
    write_negatives(tmp_path / "table", TABLE, dataset())
    result = read_negatives(tmp_path / "table", dataset(reverse=True))
    assert result.documents.tolist() == [7 - n for n in (3, 4, 5, 1, 2)]
    assert result.queries.tolist() == [0, 0, 0, 2, 2]


def test_a_table_without_rows_is_one(tmp_path: Path) -> None:
    write_negatives(tmp_path / "table", NegativesTable.none(dataset()), dataset())
    assert len(read_negatives(tmp_path / "table", dataset())) == 0


def test_a_single_file_of_others_is_read(tmp_path: Path) -> None:
    pq.write_table(columns(more=["x", "y"], rank=pa.array([0, 1], pa.uint8())), tmp_path / "t.parquet")
    result = read_negatives(tmp_path / "t.parquet", dataset())
    assert result.queries.tolist() == [0, 1]
    assert result.scores[0] == 1
    assert np.isnan(result.scores[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"origin": None}, "no column 'origin'; there are query, document, rank, score, round"),
        ({"query": ["q\u20280", "q9"]}, "1 of 2 rows name an unknown query, the first 'q9'"),
        ({"document": ["x", "y"]}, "2 of 2 rows name an unknown document, the first 'x'"),
        ({"origin": ["bm25", "bm52"]}, "1 of 2 rows name an unknown origin, the first 'bm52'; did you mean 'bm25'?"),
        ({"document": [1, 2]}, "column 'document' is int64, not string"),
        ({"rank": ["a", "b"]}, "column 'rank' is string, not a number"),
        ({"rank": [0.0, 0.5]}, "column 'rank' is double, not a number"),
        ({"rank": [0, None]}, "column 'rank' is empty in 1 of 2 rows"),
        ({"query": ["q\u20280", None]}, "column 'query' is empty in 1 of 2 rows"),
        ({"round": [0, 2**40]}, f"round {2**40} is out of range"),
        ({"rank": [0, -1]}, "rank -1 is out of range"),
    ],
)
def test_a_wrong_file_is_reported(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    pq.write_table(columns(**changes), tmp_path / "t.parquet")
    with pytest.raises(DataError) as error:
        read_negatives(tmp_path / "t.parquet", dataset())
    assert message in str(error.value)
    assert "t.parquet" in str(error.value)


def test_extension_columns_are_refused(tmp_path: Path) -> None:
    about = {"ARROW:extension:name": "ray.data.arrow_pickled_object", "ARROW:extension:metadata": ""}
    schema = columns().schema
    schema = schema.set(1, pa.field("document", pa.string(), metadata=about))
    pq.write_table(columns().cast(schema), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"column 'document' is of the extension type 'ray\.data\.arrow_pick"):
        read_negatives(tmp_path / "t.parquet", dataset())


def test_broken_and_missing_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no negatives table"):
        read_negatives(tmp_path / "none", dataset())
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(DataError, match="the file is empty"):
        read_negatives(tmp_path / "t.parquet", dataset())
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more PAR1")
    with pytest.raises(DataError, match="the Parquet is broken"):
        read_negatives(tmp_path / "t.parquet", dataset())
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="never completed"):
        read_negatives(tmp_path / "folder", dataset())
    write_negatives(tmp_path / "table", TABLE, dataset())
    with open(tmp_path / "table" / "part-00000.parquet", "ab") as stream:
        stream.write(b"x")
    with pytest.raises(StorageError, match=r"damaged|incomplete"):
        read_negatives(tmp_path / "table", dataset())
