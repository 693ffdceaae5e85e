"""Refreshing hard negatives under a real Ray: what comes of it, and what does not change after any death."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient
from processes import children_of, ended, parent, processes, steps, wait_for
from ray.cluster_utils import Cluster

from raytriever.data.hard_negatives import read_negatives
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.training.negative_refresh import Ledger, read_ledger, round_path

EVERY_STEP = ("refresh_wait_seconds", "refresh_age_steps", "refresh_failures")


def trained_steps(run: Path) -> dict[int, dict[str, float]]:
    """Without the figures of the encoder before training."""
    return {step: measured for step, measured in steps(run).items() if step}


def assert_follows(run: Path, ledger: Ledger, count: int) -> None:
    """Check that every step was logged once, with the round of the record."""
    measured = trained_steps(run)
    assert sorted(measured) == list(range(1, count + 1))
    assert [measured[step]["negatives_round"] for step in sorted(measured)] == [
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
    assert [(one.step, one.used_from, one.reason) for one in ledger.rounds] == [(4, 5, ""), (8, 9, "")]
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
    shares = {f"share_{name}" for name in ("relevant", "within_relative_margin", "not_chosen", "kept")}
    times = {"seconds", "encode_seconds", "mine_seconds", "staleness_steps"}
    counts_of = {"encoded", "rows", "candidates", "queries_short", "queries_without", "overlap"}
    assert logged.keys() == {f"refresh_{name}" for name in shares | times | counts_of}
    assert logged["refresh_staleness_steps"] == [(5, 0.0), (9, 0.0)]
    assert logged["refresh_encoded"] == [(5, 320.0), (9, 320.0)]  # 160 documents and 160 queries
    assert logged["refresh_rows"][1] == (9, len(table))
    assert 0 < logged["refresh_overlap"][1][1] < 1
    assert sum(points[1][1] for name, points in logged.items() if "share" in name) == pytest.approx(1)
    count = round(logged["refresh_candidates"][1][1] * logged["refresh_share_kept"][1][1])
    assert count == len(table)  # documents that the test split judges relevant are no candidates
    for name in EVERY_STEP:
        assert [step for step, _ in points_of(client, tracked, name)] == list(range(1, 11))
    assert [age for _, age in points_of(client, tracked, "refresh_age_steps")] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


TWO_ROUNDS = ["--max-steps", "9", "--eval-steps", "9", "--refresh-every", "3", "--refresh-mode", "sync"]
SHARDS = 7  # of the documents: six whole ones of 1,024, and a rest


def shards(run: Path) -> list[Path]:
    """Those of the documents of the round under way."""
    return list((run / "negatives" / "embeddings").glob("*/0-passage/*/work/0*.json"))


def assert_as_in_peace(cli: Any, name: str) -> None:
    """Tables and steps are those of the run in which nobody died."""
    runs = [cli.folder / "peace", cli.folder / name]
    ledgers = [read_ledger(run / "negatives") for run in runs]
    taken = [[(one.number, one.used_from, one.digest) for one in ledger.rounds] for ledger in ledgers]
    assert taken[0] == taken[1]
    assert [(number, step) for number, step, _ in taken[0]] == [(1, 4), (2, 7)]
    assert [one.measured["refresh_rows"] for one in ledgers[1].rounds] == [5 * 96] * 2
    losses = [{step: measured["loss"] for step, measured in trained_steps(run).items()} for run in runs]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 9


@pytest.mark.slow
def test_a_node_dies_in_a_round_and_the_run_is_as_in_peace(
    command_line: Callable, tiny_dataset: Path, started: list
) -> None:
    """Two rounds, each of many shards, over the tiny data set with many further documents."""
    cli = command_line()
    data = Path(shutil.copytree(tiny_dataset, cli.folder / "long"))
    rng = np.random.default_rng(3)
    with (data / "corpus.jsonl").open("a") as stream:
        for number in range((SHARDS - 1) * 1_024):
            text = "".join(rng.choice(list("abcdefghij"), 40))
            stream.write(json.dumps({"_id": f"f{number}", "title": "", "text": text}) + "\n")
    words = [*TWO_ROUNDS, "--refresh-negatives", "5", "--dataset", str(data)]
    cli.run("train", *cli.settings, *words, "--output", "peace")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 3})
    try:
        words += ["--refresh-pool", "2", "--output", "bereft"]
        process = cli.start("train", *cli.settings, *words, RAY_ADDRESS=cluster.address)
        started.append(process)
        run = cli.folder / "bereft"
        # The driver belongs to whichever node it finds first: that is the one that stays. Encoders come when both do.
        [miner] = wait_for(
            lambda: processes("ray::CheckpointJob", lambda pid: parent(parent(pid)) == os.getpid()), 120, process
        )
        os.kill(miner, signal.SIGSTOP)
        node = cluster.add_node(num_cpus=0)
        os.kill(miner, signal.SIGCONT)
        ours, theirs = (one.all_processes["raylet"][0].process.pid for one in (cluster.head_node, node))
        # The actor that stays holds its shard until the other node is dead, so the round does not end before.
        wait_for(lambda: list((run / "negatives" / "embeddings").glob("*/0-query/manifest.json")), 120, process)
        [held] = wait_for(lambda: processes("MapBatches(PoolActor)).submit", children_of(ours)), 120, process)
        os.kill(held, signal.SIGSTOP)
        wait_for(lambda: shards(run) and processes("ray::MapWorker", children_of(theirs)), 120, process)
        cluster.remove_node(node, allow_graceful=False)
        assert len(shards(run)) < SHARDS
        os.kill(held, signal.SIGCONT)
        ended(process)
    finally:
        cluster.shutdown()
    assert_as_in_peace(cli, "bereft")
