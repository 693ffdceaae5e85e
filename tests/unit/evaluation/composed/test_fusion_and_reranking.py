"""Fusions, rerankings, run files and vectors of another program: their definitions, and what they lack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from composed_systems import Prepared, embedded, write

from raytriever.core.errors import DataError, UserError
from raytriever.data.dataset import RetrievalDataset
from raytriever.evaluation.composed.fusion_and_reranking import FusedSystem, RerankedSystem, RunFileSystem
from raytriever.evaluation.composed.system_of_vectors import VectorSystem
from raytriever.evaluation.evaluate_split import evaluate
from raytriever.evaluation.evaluation_files import write_run
from raytriever.evaluation.protocol import Protocol, select_judged_queries
from raytriever.evaluation.systems import Bm25System
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.retrieval.encoding.vectors_of_others import PASSAGES, QUERIES, open_vectors

CPU = torch.device("cpu")


def literal_fusion(dataset: RetrievalDataset, parts: list[Any], query: int, weight: float | None) -> dict[int, float]:
    """The definition, for one query, in float64."""
    fused: dict[int, float] = {}
    for part, fraction in zip(parts, [1.0] * 9 if weight is None else [weight, 1 - weight], strict=False):
        scores, documents = (row[0] for row in part.search(np.array([query]), 1000))
        found = {int(d): float(s) for d, s in zip(documents, scores, strict=True) if d >= 0}
        if isinstance(part, Bm25System):
            found = {d: s for d, s in found.items() if s > 0}
        low, high = min(found.values()), max(found.values())
        for rank, (document, score) in enumerate(found.items(), 1):
            value = 1 / (60 + rank) if weight is None else fraction * (score - low) / max(high - low, 1e-9)
            fused[document] = fused.get(document, 0.0) + value
    return fused


@pytest.mark.parametrize("weight", [None, 0.3])
def test_a_fusion_is_its_definition(
    dataset: RetrievalDataset, vectors: dict[str, np.ndarray], weight: float | None
) -> None:
    parts = [Bm25System(dataset), Prepared(**vars(embedded(dataset, vectors)))]
    system, queries = FusedSystem(dataset, parts, weight), np.array([130, 5, 130, 31])
    scores, documents = system.search(queries, 200)
    for row, query in enumerate(queries.tolist()):
        wanted = literal_fusion(dataset, parts, query, weight)
        found = dict(zip(documents[row].tolist(), scores[row].tolist(), strict=True))
        assert found.pop(-1) == -np.inf  # the corpus has fewer documents than 200
        assert found.keys() == wanted.keys()
        assert [found[d] for d in wanted] == pytest.approx(list(wanted.values()), abs=1e-7)
        rounded = {d: np.float32(value) for d, value in wanted.items()}
        order = sorted(wanted, key=lambda d: (rounded[d], dataset.documents.ids[d]), reverse=True)
        assert documents[row, : len(order)].tolist() == order
    np.testing.assert_array_equal(system.score(queries, documents[:, 3]), scores[:, 3])


def test_a_weight_has_the_highest_ndcg_on_dev(dataset: RetrievalDataset, vectors: dict[str, np.ndarray]) -> None:
    parts = [Prepared(**vars(embedded(dataset, vectors))), Bm25System(dataset)]
    noise = Prepared(
        dataset, np.arange(len(dataset.queries)), *(np.roll(vectors[s], 9, 0) for s in (QUERIES, PASSAGES))
    )
    judged, protocol = select_judged_queries(dataset, "dev", Protocol()), Protocol(("ndcg_at_10",))
    chosen = FusedSystem(dataset, [noise, parts[0]], 0.5)
    weight = chosen.choose_weight("dev", Protocol(), judged)
    values = {
        index / 10: evaluate(dataset, "dev", FusedSystem(dataset, [noise, parts[0]], index / 10), protocol).metrics
        for index in range(11)
    }
    assert values[weight]["ndcg_at_10"] == max(value["ndcg_at_10"] for value in values.values())
    assert f"the weight of the first system is {weight:g}" in chosen.notes()[0]
    # BM25 alone is right for every query, and so are many weights: the one nearest to a half is taken.
    assert FusedSystem(dataset, parts, 0.0).choose_weight("dev", Protocol(), judged) <= 0.5


def test_reranking_orders_the_best_by_the_cross_encoder_alone(dataset: RetrievalDataset, cross_encoder: Path) -> None:
    judge, first = CrossEncoder(cross_encoder, CPU, "fp32"), Bm25System(dataset)
    system, queries = RerankedSystem(dataset, first, judge, 7), np.array([140, 3])
    scores, documents = system.search(queries, 10)
    candidates = first.search(queries, 7)[1]
    for row, query in enumerate(queries.tolist()):
        texts = [dataset.passage_text(document) for document in candidates[row].tolist()]
        wanted = dict(zip(candidates[row].tolist(), judge([dataset.queries.texts[query]] * 7, texts), strict=True))
        order = sorted(wanted, key=lambda d: (wanted[d], dataset.documents.ids[d]), reverse=True)
        assert documents[row].tolist() == [*order, -1, -1, -1]
        assert scores[row, :7] == pytest.approx([wanted[d] for d in order], abs=1e-6)
    outside = np.setdiff1d(np.arange(160), candidates[0])[:1]
    assert np.isnan(system.score(queries[:1], outside)).all()
    assert system.score(queries[:1], documents[0, :1]) == scores[0, 0]


def test_a_run_file_has_the_metrics_of_the_system_that_wrote_it(
    dataset: RetrievalDataset, vectors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    protocol = Protocol(("ndcg_at_10", "recall_at_100", "auc"), depth=160)
    system = embedded(dataset, vectors)
    wanted = evaluate(dataset, "test", system, protocol)
    write_run(tmp_path / "whole.trec", wanted, dataset, "tag")
    found = evaluate(dataset, "test", RunFileSystem(dataset, str(tmp_path / "whole.trec")), protocol)
    assert found.metrics == pytest.approx(wanted.metrics, abs=1e-9)
    np.testing.assert_array_equal(found.ranking, wanted.ranking)
    lines = (tmp_path / "whole.trec").read_text().splitlines(keepends=True)
    few = "".join(line for line in lines if int(line.split()[3]) <= 3 and "q150 " not in line)
    (tmp_path / "few.trec").write_text(few)
    short = RunFileSystem(dataset, str(tmp_path / "few.trec"))
    cut = evaluate(dataset, "test", short, protocol)
    assert (
        cut.metrics["recall_at_100"]
        == evaluate(dataset, "test", system, Protocol(("recall_at_3",))).metrics["recall_at_3"]
        - (150 - 128 in np.flatnonzero((wanted.ranking[:, :3] == wanted.queries[:, None]).any(1))) / 32
    )
    assert short.notes() == [
        "the file ranks at most 3 documents of a query; all others count as not found",
        "1 queries are not in the file: 'q150'",
    ]
    lost = 32 - round(32 * cut.metrics["recall_at_100"])
    assert cut.notes == [f"{lost} of 32 relevant passages have no score; for the AUC, they rank below all others"]


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ("q128 Q0 nobody 1 0.5 tag\n", "few.trec:1: unknown document id 'nobody'; give a run over letters"),
        ("who Q0 d1 1 0.5 tag\n", "has none of the 160 queries; give a run over letters"),
        ("q128 Q0 d1 1 tag\n", "few.trec:1: is not a line of a run; write lines `query Q0 document rank score tag`"),
        ("q128 Q0 d1 1 0 tag\nq128 Q0 d2 2 0 tag\n", "has equal scores for all documents of each query, so"),
    ],
)
def test_a_broken_run_is_one_line(lines: str, line: str, dataset: RetrievalDataset, tmp_path: Path) -> None:
    (tmp_path / "few.trec").write_text(lines)
    with pytest.raises(DataError) as caught:
        RunFileSystem(dataset, str(tmp_path / "few.trec"))
    assert line in str(caught.value)


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
    assert "do not all have unit length and are compared by dot; --similarity cosine" in dot.notes()[0]
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
        ({PASSAGES: np.ones((4, 3), np.float32)}, "has 4 rows, but passages.ids.txt has 3 ids"),
        ({PASSAGES: np.ones((3, 3), np.int32)}, "holds values of type '<i4', expected float16 or float32 or float64"),
        ({"passages_ids": ["d0", "d1", "d0"]}, "has the id 'd0' twice"),
        ({"queries_ids": ["x", "y", "z"]}, "has ids like 'x', but no id of letters, such as 'q0'"),
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
    with pytest.raises(DataError, match="the embedding of 'q1' has 1 components, but others have 2"):
        open_vectors(str(folder), QUERIES)
    (folder / "queries.jsonl").write_text('{"id": "q0", "embedding": [1, "x"]}\n')
    with pytest.raises(DataError, match=r"queries.jsonl:1: is not a row"):
        open_vectors(str(folder), QUERIES)
