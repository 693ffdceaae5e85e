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

from raytriever.cli.main import run
from raytriever.errors import DataError
from raytriever.index.approximate.config import IndexConfig
from raytriever.index.approximate.measure import OperatingPoint
from raytriever.index.approximate.synthetic import control
from raytriever.losses.distributed import ALONE
from raytriever.losses.loss import distribution_distance
from raytriever.studies.ood import report
from raytriever.studies.ood.gap import (
    GapEmbeddings,
    IndexMeasurement,
    describe_gap,
    hold_out,
    measure_gap,
    measure_index,
    query_positive_distance,
)
from raytriever.studies.ood.report import DRIFT, format_tables, read_drift, recall_within, save_across, to_json


def cloud(seed: int, rows: int, at: float = 0.0) -> ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 6)).astype(np.float32) + np.float32(at)


def test_distances_equal_the_formulas_and_the_regulariser() -> None:
    documents, queries, held_out = cloud(0, 300), cloud(1, 40, at=0.5), cloud(2, 40)
    result = measure_gap(documents, queries, held_out)
    centre = documents.astype(np.float64).mean(0)
    assert result.queries == pytest.approx(((queries.mean(0) - centre) ** 2).sum(), rel=1e-5)
    assert result.query_scores == pytest.approx([((query - centre) ** 2).sum() for query in queries], rel=1e-5)
    assert result.held_out < result.queries / 5
    regulariser = distribution_distance(torch.tensor(queries), torch.tensor(documents), 40, ALONE)
    spread = np.square(documents - centre).sum(1).mean()
    assert float(regulariser) == pytest.approx(result.query_scores.mean() + spread, rel=1e-5)
    pairs = [(q > p) + 0.5 * (q == p) for q in result.query_scores for p in result.held_out_scores]
    assert result.beyond == pytest.approx(np.mean(pairs))
    of, to = np.array([0, 0, 3]), np.array([7, 8, 9])
    apart = [np.linalg.norm(queries[a] - documents[b]) for a, b in zip(of, to, strict=True)]
    assert query_positive_distance(queries, documents, of, to) == pytest.approx(np.mean(apart), rel=1e-6)


def measurement(queries: float, held_out: float) -> IndexMeasurement:
    points = [OperatingPoint(10, 0.8, 50.0, 9.0), OperatingPoint(20, 0.9, 90.0, 5.0)]
    return IndexMeasurement(
        build_seconds=1.0,
        bytes=10,
        curves={10: points, 100: points},
        queries=OperatingPoint(9, 0.95, queries, nan),
        held_out=OperatingPoint(8, 0.95, held_out, nan),
    )


def test_the_description_follows_from_hnsw() -> None:
    assert describe_gap({"hnsw": measurement(105.0, 100.0)}).startswith("no gap: at equal recall HNSW scores 1.05 x")
    assert describe_gap({"hnsw": measurement(130.0, 100.0)}).startswith("a slight gap")
    both = {"hnsw": measurement(200.0, 100.0), "roargraph": measurement(80.0, 100.0)}
    assert describe_gap(both).startswith("a gap: at equal recall HNSW scores 2.00 x")
    assert describe_gap(both).endswith("RoarGraph at 0.80 x")
    assert "unknown" in describe_gap({"ivf": measurement(1.0, 1.0)})
    assert "unknown" in describe_gap({"hnsw": replace(measurement(1.0, 1.0), queries=OperatingPoint(0, 0.9, nan, nan))})
    assert [recall_within(both["hnsw"].curves[10], budget) for budget in (60, 100)] == [0.8, 0.9]
    text = format_tables(both, measure_gap(cloud(0, 90), cloud(1, 9), cloud(2, 9)), 5_000)
    assert "hnsw" in text.splitlines()[1]
    assert "0.800" in text.splitlines()[1]  # 50 candidates are 1 % of the documents
    assert json.dumps(to_json(both, measure_gap(cloud(0, 90), cloud(1, 9), cloud(2, 9))), allow_nan=False)


def test_too_few_passages_cannot_be_held_out() -> None:
    remaining, out = hold_out(cloud(0, 100), 20, 3)
    assert sorted([*remaining, *out]) == list(range(100))
    with pytest.raises(DataError, match="30 passages are too few to hold out 20"):
        hold_out(cloud(0, 30), 20, 3)


@pytest.mark.slow
def test_the_control_has_a_gap_and_its_own_documents_have_none() -> None:
    drawn = control(20_000, 200)
    shifted = GapEmbeddings(drawn.documents, drawn.unshifted, drawn.shifted, drawn.training)
    results = {kind: measure_index(shifted, IndexConfig(index=kind), 0) for kind in ("hnsw", "roargraph")}
    assert describe_gap(results).startswith("a gap")
    assert results["roargraph"].ratio <= 1.1
    alike = GapEmbeddings(drawn.documents, drawn.unshifted[:100], drawn.unshifted[100:], drawn.documents[:5_000])
    assert describe_gap({"hnsw": measure_index(alike, IndexConfig(index="hnsw"), 0)}).startswith("no gap")


@pytest.mark.slow
def test_models_are_drawn_in_common_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "CUTOFFS", (10,))
    whole = to_json({"hnsw": measurement(200.0, 100.0)}, measure_gap(cloud(0, 90), cloud(1, 9), cloud(2, 9)))
    run_folder = tmp_path / "run"
    (run_folder / "model").mkdir(parents=True)
    lines = [{"step": step, "measured": {DRIFT: step / 10}} for step in (1, 2)]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, {"step": 2, "measured": {"loss": 1}}])
    (run_folder / "steps.jsonl").write_text(text + '{"step": 3, "meas')
    assert read_drift(run_folder) == read_drift(run_folder / "model") == [(1, 0.1), (2, 0.2)]
    assert read_drift(tmp_path / "none") == []
    save_across(tmp_path / "out", {"a": whole, "b": whole}, {"a": str(run_folder), "b": "minilm"})
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"hnsw-rate-recall-10.png", f"{DRIFT}.png"} <= names
    drawn = (tmp_path / "out" / "hnsw-rate-recall-10.svg").read_text()
    assert ">5<" in drawn.replace(" ", "").replace("\n", "")  # a rate of the axis, in plain figures
    assert "mathdefault" not in drawn


@pytest.mark.slow
def test_finished_results_are_read_again(
    tiny_dataset: Path,
    tiny_encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    words = ["ood", "--dataset", str(tiny_dataset), "--model", str(tiny_encoder), "--output", str(tmp_path / "out")]
    words += ["--indexes", "hnsw,roargraph", "--queries", "16"]
    assert run("study", words) == 0
    first = capsys.readouterr().out
    assert "mean distance of a query and its positives" in first
    folder = tmp_path / "out" / "encoder"
    names = {file.name for file in folder.iterdir()}
    assert {"results.json", "rate-recall-10.png", "rate-recall-100.svg", "scores.svg", "clouds.png"} <= names
    results = json.loads((folder / "results.json").read_text())
    assert results["documents"] == 144
    assert results["verdict"] in first
    assert run("study", words) == 0
    assert capsys.readouterr().out == first
    assert run("study", [*words, "--seed", "9"]) == 2
    assert "holds a study with other settings" in capsys.readouterr().err
