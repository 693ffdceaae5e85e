"""Refreshing hard negatives under a real Ray: tables, steps and figures of two rounds. Deaths: `test_kills.py`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from processes import steps

from raytriever.data.hard_negatives import read_negatives
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.training.negative_refresh import Ledger, read_ledger, round_path

EVERY_STEP = ("refresh_wait_seconds", "refresh_age_steps", "refresh_failures")


def trained_steps(run: Path) -> dict[int, dict[str, float]]:
    """Without the figures of the encoder before training."""
    return {step: metrics for step, metrics in steps(run).items() if step}


def assert_follows(run: Path, ledger: Ledger, count: int) -> None:
    """Check that every step was logged once, with the round of the record."""
    metrics = trained_steps(run)
    assert sorted(metrics) == list(range(1, count + 1))
    assert [metrics[step]["negatives_round"] for step in sorted(metrics)] == [
        float(ledger.version(step)) for step in range(count)
    ]


def points_of(client: MlflowClient, tracked: Any, name: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in client.get_metric_history(tracked.info.run_id, name)]


@pytest.mark.slow
def test_negatives_of_the_encoder_itself_come_by_the_command_line(
    command_line: Callable, tiny_dataset: Path, tmp_path: Path
) -> None:
    cli = command_line()
    # The test split finds a quarter of the corpus relevant to some of the training queries.
    data = Path(shutil.copytree(tiny_dataset, tmp_path / "judged"))
    with (data / "qrels" / "test.tsv").open("a") as stream:
        stream.writelines(f"q{query}\td{document}\t1\n" for query in range(8) for document in range(100, 140))
    words = ["--dataset", str(data), "--refresh-every", "4", "--refresh-mode", "sync", "--refresh-negatives", "5"]
    words += ["--refresh-relative-margin", "0.001", "--num-workers", "2", "--allow-split-overlap"]
    cli.run("train", *cli.settings, "--max-steps", "10", "--output", "run", *words)
    run = cli.folder / "run"
    ledger = read_ledger(run / "negatives")
    assert [(item.step, item.used_from, item.reason) for item in ledger.rounds] == [(4, 5, ""), (8, 9, "")]
    assert_follows(run, ledger, 10)
    assert not (run / "negatives" / "embeddings").exists()

    # The tables hold no document that is relevant.
    dataset = open_dataset(data, ["train", "dev", "test"])
    table = read_negatives(round_path(run / "negatives", 2), dataset)
    assert (table.relevant, table.repeated) == (0, 0)

    # The figures of a round are logged with the first step that uses it.
    client = MlflowClient(cli.environment["MLFLOW_TRACKING_URI"])
    [tracked] = client.search_runs([e.experiment_id for e in client.search_experiments() if e.name == "raytriever"])
    logged = {
        name: points_of(client, tracked, name)
        for name in tracked.data.metrics
        if name.startswith("refresh_") and name not in EVERY_STEP
    }
    assert {step for points in logged.values() for step, _ in points} == {5, 9}
    fractions = {f"fraction_{name}" for name in ("relevant", "within_relative_margin", "not_chosen", "kept")}
    times = {"seconds", "encode_seconds", "mine_seconds", "staleness_steps"}
    counts_of = {"encoded", "rows", "candidates", "queries_short", "queries_without", "overlap"}
    assert logged.keys() == {f"refresh_{name}" for name in fractions | times | counts_of}
    assert logged["refresh_staleness_steps"] == [(5, 0.0), (9, 0.0)]
    assert logged["refresh_encoded"] == [(5, 320.0), (9, 320.0)]  # 160 documents and 160 queries
    assert logged["refresh_rows"][1] == (9, len(table))
    assert 0 < logged["refresh_overlap"][1][1] < 1
    assert sum(points[1][1] for name, points in logged.items() if "fraction" in name) == pytest.approx(1)
    count = round(logged["refresh_candidates"][1][1] * logged["refresh_fraction_kept"][1][1])
    assert count == len(table)  # documents that the test split judges relevant are no candidates
    for name in EVERY_STEP:
        assert [step for step, _ in points_of(client, tracked, name)] == list(range(1, 11))
    assert [age for _, age in points_of(client, tracked, "refresh_age_steps")] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
