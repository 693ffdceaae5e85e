"""Vectors of another program: they rank as the array, and what is wrong with them is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composed_systems import embedded, write

from raytriever.core.errors import DataError, UserError
from raytriever.data.dataset import RetrievalDataset
from raytriever.evaluation.composed.system_of_vectors import VectorSystem
from raytriever.evaluation.evaluate_split import evaluate
from raytriever.retrieval.encoding.vectors_of_others import PASSAGES, QUERIES, open_vectors


@pytest.mark.parametrize("variant", ["npy", "parquet", "jsonl"])
def test_vectors_of_any_form_rank_as_the_array(
    variant: str,
    dataset: RetrievalDataset,
    vectors: dict[str, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    folder = write(tmp_path / "vectors", vectors, dataset, variant, np.float32)
    system, whole = VectorSystem(dataset, str(folder)), embedded(dataset, vectors)
    queries = np.array([150, 2, 2])
    for ours, wanted in zip(system.search(queries, 30), whole.search(queries, 30), strict=True):
        np.testing.assert_array_equal(ours, wanted)
    pairs = np.array([9, 130]), np.array([4, 99])
    np.testing.assert_array_equal(system.score(*pairs), whole.score(*pairs))
    assert "have unit length and are compared by cosine" in system.notes()[0]
    assert system.notes()[1:] == ["1 vectors are of passages that the data set does not have: 'of another data set'"]
    again = VectorSystem(dataset, str(folder))  # from the cache
    np.testing.assert_array_equal(again.search(queries, 5)[0], system.search(queries, 5)[0])


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_vectors_of_other_lengths_are_compared_as_asked(
    kind: Any, dataset: RetrievalDataset, vectors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    lengths = np.random.default_rng(1).uniform(0.5, 2, (160, 1)).astype(np.float32)
    longer = {side: values * lengths for side, values in vectors.items()}
    folder = str(write(tmp_path / "vectors", longer, dataset, "npy", kind))
    stored = {side: values.astype(kind).astype(np.float32) for side, values in longer.items()}
    queries = np.arange(20)
    dot = VectorSystem(dataset, folder)
    np.testing.assert_array_equal(dot.search(queries, 9)[1], embedded(dataset, stored).search(queries, 9)[1])
    assert "have different lengths and are compared by dot; --similarity cosine" in dot.notes()[0]
    cosine = VectorSystem(dataset, folder, "cosine").search(queries, 9)
    np.testing.assert_allclose(cosine[0], embedded(dataset, vectors).search(queries, 9)[0], atol=2e-3)


def test_missing_vectors_are_counted_and_rank_nothing(
    dataset: RetrievalDataset, vectors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    folder = write(tmp_path / "vectors", vectors, dataset, "npy", np.float32)
    for side, left_out in ((PASSAGES, ["d130", "d131"]), (QUERIES, ["q140"])):
        file = folder / f"{side}-0.ids.txt"
        names = file.read_text().split("\n")
        file.write_text("\n".join(f"elsewhere {name}" if name in left_out else name for name in names))
    system = VectorSystem(dataset, str(folder))
    evaluation = evaluate(dataset, "test", system)
    assert (evaluation.ranking[12] == -1).all()  # of q140
    assert not np.isin(evaluation.ranking, [130, 131]).any()
    assert evaluation.positive_scores[[2, 3, 12]].max() < evaluation.negative_scores.min()
    assert "3 of 32 relevant passages have no score; for the AUC, they rank below all others" in evaluation.notes
    assert "2 passages have no vector: 'd130', 'd131'" in system.notes()
    assert "1 queries have no vector: 'q140'" in system.notes()


def broken(folder: Path, **arrays: Any) -> Path:
    folder.mkdir()
    for side in (PASSAGES, QUERIES):
        np.save(folder / f"{side}.npy", arrays.get(side, np.eye(3, dtype=np.float32)))
        prefix = "d" if side == PASSAGES else "q"
        ids = arrays.get(f"{side}_ids", [f"{prefix}{n}" for n in range(3)])
        (folder / f"{side}.ids.txt").write_text("".join(f"{name}\n" for name in ids))
    return folder


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ({PASSAGES: np.full((3, 3), np.nan, np.float32)}, "embedding of 'd0' has a component that is not finite"),
        ({QUERIES: np.diag([1, np.inf, 1]).astype(np.float32)}, "embedding of 'q1' has a component that is not finite"),
        ({QUERIES: np.ones((3, 4), np.float32)}, "has passages of dimension 3 and queries of dimension 4"),
        ({PASSAGES: np.ones((4, 3), np.float32)}, "has 4 rows, passages.ids.txt has 3 ids"),
        ({PASSAGES: np.ones((3, 3), np.int32)}, "holds values of type '<i4', expected float16 or float32 or float64"),
        ({"passages_ids": ["d0", "d1", "d0"]}, "has the id 'd0' twice"),
        ({"queries_ids": ["x", "y", "z"]}, "has ids like 'x', but no queries of letters, such as 'q0'"),
    ],
)
def test_broken_vectors_are_one_line(
    arrays: dict[str, Any], line: str, dataset: RetrievalDataset, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        VectorSystem(dataset, str(broken(tmp_path / "vectors", **arrays)))
    assert line in str(caught.value)


def test_a_folder_without_queries_and_rows_of_other_dims_are_one_line(tmp_path: Path) -> None:
    folder = broken(tmp_path / "vectors")
    (folder / "queries.npy").unlink()
    with pytest.raises(DataError, match=r"has no queries.parquet, queries.npy or queries.jsonl; give a folder"):
        open_vectors(str(folder), QUERIES)
    rows = ({"id": "q0", "embedding": [1.0, 0.0]}, {"id": "q1", "embedding": [1.0]})
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="the embedding of 'q1' has 1 components, others have 2"):
        open_vectors(str(folder), QUERIES)
    (folder / "queries.jsonl").write_text('{"id": "q0", "embedding": [1, "x"]}\n')
    with pytest.raises(DataError, match=r"queries.jsonl:1: is not a row"):
        open_vectors(str(folder), QUERIES)
