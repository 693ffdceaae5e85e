"""Fusions, rerankings and run files: their definitions, and what they lack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from composed_systems import Prepared, embedded

from raytriever.core.errors import DataError
from raytriever.data.dataset import RetrievalDataset
from raytriever.evaluation.composed.fusion_and_reranking import FusedSystem, RerankedSystem, RunFileSystem
from raytriever.evaluation.evaluate_split import evaluate
from raytriever.evaluation.evaluation_files import write_run
from raytriever.evaluation.protocol import Protocol, select_judged_queries
from raytriever.evaluation.systems import Bm25System
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.retrieval.encoding.vectors_of_others import PASSAGES, QUERIES

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
        ("q128 Q0 d1 1 tag\n", "few.trec:1: is no line of a run; a line is `query Q0 document rank score tag`"),
        ("q128 Q0 d1 1 0 tag\nq128 Q0 d2 2 0 tag\n", "has equal scores for all documents of each query, so"),
    ],
)
def test_a_broken_run_is_one_line(lines: str, line: str, dataset: RetrievalDataset, tmp_path: Path) -> None:
    (tmp_path / "few.trec").write_text(lines)
    with pytest.raises(DataError) as caught:
        RunFileSystem(dataset, str(tmp_path / "few.trec"))
    assert line in str(caught.value)
