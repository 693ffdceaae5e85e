"""Query-document gap: it is reported for shifted queries, and not for queries from the documents' distribution."""

from __future__ import annotations

import json
from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy import ndarray
from synthetic import control

from gap import (
    GapEmbeddings,
    IndexCurve,
    describe_gap,
    embed,
    evaluate_gap,
    evaluate_index,
    format_tables,
    hold_out,
    main,
    query_positive_distance,
    recall_within,
    to_json,
)
from raytriever.core.errors import DataError
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.losses.distributed import ALONE
from raytriever.losses.loss import distribution_distance
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.encode_texts import encode_texts
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
from raytriever.retrieval.index.approximate.index_recall import OperatingPoint
from raytriever.retrieval.index.approximate.index_settings import IndexConfig


def cloud(seed: int, rows: int, at: float = 0.0) -> ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 6)).astype(np.float32) + np.float32(at)


def test_distances_equal_the_formulas_and_the_regularizer() -> None:
    documents, queries, held_out = cloud(0, 300), cloud(1, 40, at=0.5), cloud(2, 40)
    result = evaluate_gap(documents, queries, held_out)
    center = documents.astype(np.float64).mean(0)
    assert result.queries == pytest.approx(((queries.mean(0) - center) ** 2).sum(), rel=1e-5)
    assert result.query_scores == pytest.approx([((query - center) ** 2).sum() for query in queries], rel=1e-5)
    assert result.held_out < result.queries / 5
    regularizer = distribution_distance(torch.tensor(queries), torch.tensor(documents), 40, ALONE)
    spread = np.square(documents - center).sum(1).mean()
    assert float(regularizer) == pytest.approx(result.query_scores.mean() + spread, rel=1e-5)
    pairs = [(q > p) + 0.5 * (q == p) for q in result.query_scores for p in result.held_out_scores]
    assert result.beyond == pytest.approx(np.mean(pairs))
    of, to = np.array([0, 0, 3]), np.array([7, 8, 9])
    apart = [np.linalg.norm(queries[a] - documents[b]) for a, b in zip(of, to, strict=True)]
    assert query_positive_distance(queries, documents, of, to) == pytest.approx(np.mean(apart), rel=1e-6)


def evaluation(queries: float, held_out: float) -> IndexCurve:
    points = [OperatingPoint(10, 0.8, 50.0, 9.0), OperatingPoint(20, 0.9, 90.0, 5.0)]
    return IndexCurve(
        build_seconds=1.0,
        bytes=10,
        curve=points,
        queries=OperatingPoint(9, 0.95, queries, nan),
        held_out=OperatingPoint(8, 0.95, held_out, nan),
    )


def test_the_description_follows_from_hnsw() -> None:
    assert describe_gap({"hnsw": evaluation(105.0, 100.0)}).startswith("no gap: at equal recall HNSW scores 1.05 x")
    assert describe_gap({"hnsw": evaluation(130.0, 100.0)}).startswith("a slight gap")
    both = {"hnsw": evaluation(200.0, 100.0), "roargraph": evaluation(80.0, 100.0)}
    assert describe_gap(both).startswith("a gap: at equal recall HNSW scores 2.00 x")
    assert describe_gap(both).endswith("RoarGraph at 0.80 x")
    assert "unknown" in describe_gap({"ivf": evaluation(1.0, 1.0)})
    assert "unknown" in describe_gap({"hnsw": replace(evaluation(1.0, 1.0), queries=OperatingPoint(0, 0.9, nan, nan))})
    assert [recall_within(both["hnsw"].curve, budget) for budget in (60, 100)] == [0.8, 0.9]
    text = format_tables(both, evaluate_gap(cloud(0, 90), cloud(1, 9), cloud(2, 9)), 0.5, 5_000)
    assert "hnsw" in text.splitlines()[1]
    assert "0.800" in text.splitlines()[1]  # 50 candidates are 1 % of the documents
    assert json.dumps(to_json(both, evaluate_gap(cloud(0, 90), cloud(1, 9), cloud(2, 9)), 0.5, 5_000), allow_nan=False)


def test_too_few_passages_cannot_be_held_out() -> None:
    remaining, out = hold_out(cloud(0, 100), 20, 3)
    assert sorted([*remaining, *out]) == list(range(100))
    with pytest.raises(DataError, match="30 passages are too few to hold out 20"):
        hold_out(cloud(0, 30), 20, 3)


@pytest.mark.slow
def test_the_control_has_a_gap_and_its_own_documents_have_none() -> None:
    drawn = control(20_000, 200)
    shifted = GapEmbeddings(drawn.documents, drawn.unshifted, drawn.shifted, drawn.training)
    results = {kind: evaluate_index(shifted, IndexConfig(index=kind), 0) for kind in ("hnsw", "roargraph")}
    assert describe_gap(results).startswith("a gap")
    assert results["roargraph"].ratio <= 1.1
    alike = GapEmbeddings(drawn.documents, drawn.unshifted[:100], drawn.unshifted[100:], drawn.documents[:5_000])
    assert describe_gap({"hnsw": evaluate_index(alike, IndexConfig(index="hnsw"), 0)}).startswith("no gap")


@pytest.mark.slow
def test_the_command_writes_what_it_prints(
    tiny_dataset: Path,
    tiny_encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [str(tiny_dataset), str(tiny_encoder), "--output", str(tmp_path / "out"), "--indexes", "hnsw,roargraph"]
    monkeypatch.setattr("sys.argv", ["gap.py", *words])
    main()
    printed = capsys.readouterr().out
    assert "mean distance of a query and its positives" in printed
    results = json.loads((tmp_path / "out" / "encoder.json").read_text())
    assert results["documents"] == 144
    assert results["verdict"] in printed
    assert set(results["indexes"]) == {"hnsw", "roargraph"}


def test_held_out_passages_are_not_indexed_and_training_queries_are_those_of_train(
    tiny_dataset: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("gap.QUERIES", 9)
    data, _ = embed(str(tiny_encoder), str(tiny_dataset), "test")
    dataset = open_dataset(tiny_dataset, ["train", "test"])
    retriever = load_for_encoding(ModelConfig(str(tiny_encoder)), "fp32")
    passages = encode_texts(retriever, dataset.passages(), "passage")

    def rows(vectors: ndarray, among: ndarray) -> list[int]:
        apart = np.abs(vectors[:, None] - among[None]).max(2)
        assert apart.min(1).max() < 1e-5
        return apart.argmin(1).tolist()

    def texts(split: str) -> list[str]:
        return [dataset.queries.texts[int(query)] for query in dataset.positives(split).queries]

    documents, held_out = rows(data.documents, passages), rows(data.held_out, passages)
    assert len(held_out) == 9
    assert sorted(documents + held_out) == list(range(160))
    assert rows(data.training, encode_texts(retriever, texts("train"), "query")) == list(range(96))
    asked = rows(data.queries, encode_texts(retriever, texts("test"), "query"))
    assert len(set(asked)) == 9
