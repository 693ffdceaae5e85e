"""Refreshing hard negatives under a real Ray: what comes of it, and what does not come of whatever dies meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mlflow import MlflowClient

from raytriever.data.negatives_file import read_negatives
from raytriever.data.open import open_dataset
from raytriever.data.records import ORIGINS
from raytriever.training.refresh_ledger import Ledger, read_ledger, round_path


def steps(run: Path) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for line in (run / "steps.jsonl").read_text().splitlines():
        entry = json.loads(line)
        found.setdefault(entry["step"], {}).update(entry["measured"])
    return found


def assert_follows(run: Path, ledger: Ledger, count: int) -> None:
    """Every step was told of once, with the round that the record says."""
    measured = steps(run)
    assert sorted(measured) == list(range(1, count + 1))
    assert [measured[step]["negatives_round"] for step in sorted(measured)] == [
        float(ledger.version(step)) for step in range(count)
    ]


def test_negatives_of_the_encoder_itself_come_by_the_command_line(command_line: Callable, tiny_dataset: Path) -> None:
    cli = command_line()
    words = ["--refresh-every", "4", "--refresh-mode", "sync", "--refresh-negatives", "5", "--num-workers", "2"]
    done = cli.train("--max-steps", "10", "--output", "run", *words)
    assert done.returncode == 0, done.stderr
    run = cli.folder / "run"
    ledger = read_ledger(run / "negatives")
    assert [(one.due, one.used_from, one.reason) for one in ledger.rounds] == [(4, 4, ""), (8, 8, "")]
    assert_follows(run, ledger, 10)
    assert not list((run / "negatives" / "embeddings").iterdir())

    # The tables hold what the encoder ranks first, and no document that is relevant.
    dataset = open_dataset(tiny_dataset, ["train", "dev", "test"])
    table = read_negatives(round_path(run / "negatives", 2), dataset)
    assert (table.relevant, table.repeated) == (0, 0)
    assert set(table.origins.tolist()) == {ORIGINS.index("dense")}
    assert set(table.rounds.tolist()) == {2}
    trained = dataset.positives("train").queries
    assert np.array_equal(np.diff(table.offsets)[trained], np.full(len(trained), 5))
    assert len(table) == 5 * len(trained)

    # What a round was is told with the first step that uses it.
    client = MlflowClient(cli.environment["MLFLOW_TRACKING_URI"])
    [tracked] = client.search_runs([e.experiment_id for e in client.search_experiments() if e.name == "raytriever"])
    told = {
        name: [(point.step, point.value) for point in client.get_metric_history(tracked.info.run_id, name)]
        for name in ("refresh_staleness_steps", "refresh_overlap", "refresh_seconds", "refresh_encoded")
    }
    assert told["refresh_staleness_steps"] == [(5, 0.0), (9, 0.0)]
    assert told["refresh_encoded"] == [(5, 320.0), (9, 320.0)]  # 160 documents and 160 queries
    assert 0 < told["refresh_overlap"][1][1] < 1
