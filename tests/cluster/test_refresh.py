"""Refreshing hard negatives under a real Ray: what comes of it, and what does not come of whatever dies meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient
from ray.cluster_utils import Cluster

from raytriever.data.negatives_file import read_negatives
from raytriever.data.open import open_dataset
from raytriever.data.records import ORIGINS
from raytriever.training.refresh_ledger import Ledger, read_ledger, round_path

REPOSITORY = Path(__file__).parent.parent.parent


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


@pytest.mark.slow
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


ROUND = ["--max-steps", "6", "--refresh-every", "3", "--refresh-mode", "sync", "--refresh-negatives", "5"]


@pytest.fixture
def long_corpus(tiny_dataset: Path, tmp_path: Path) -> Path:
    """The tiny data set with so many further documents that encoding them is many shards' work."""
    folder = tmp_path / "long"
    shutil.copytree(tiny_dataset, folder)
    rng = np.random.default_rng(3)
    with (folder / "corpus.jsonl").open("a") as stream:
        for number in range(5_000):
            text = "".join(rng.choice(list("abcdefghij"), 40))
            stream.write(json.dumps({"_id": f"f{number}", "title": "", "text": text}) + "\n")
    return folder


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ended with the test, with all of their sessions."""
    found: list[subprocess.Popen[str]] = []
    yield found
    for process in found:
        for pid in processes("", lambda pid: os.getsid(pid) == process.pid):  # noqa: B023
            os.kill(pid, signal.SIGKILL)


def processes(part: str, which: Callable[[int], bool]) -> list[int]:
    """Processes whose command line holds `part`, of those asked for."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and which(int(entry.name)):
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
                found += [int(entry.name)] if line and part in line else []
        except OSError:
            continue
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def wait_for(what: Callable[[], Any], seconds: float, process: subprocess.Popen[str]) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
    return found


def shards(run: Path) -> list[Path]:
    return list((run / "negatives" / "embeddings").glob("*/0-passage/shards/*/manifest.json"))


def assert_as_in_peace(cli: Any) -> None:
    """Tables and steps are those of the run in which nobody died."""
    peace, torn = cli.folder / "peace", cli.folder / "torn"
    ledgers = [read_ledger(run / "negatives") for run in (peace, torn)]
    taken = [[(one.number, one.used_from, one.digest) for one in ledger.rounds] for ledger in ledgers]
    assert taken[0] == taken[1]
    assert [number for number, _, _ in taken[0]] == [1]
    assert taken[0][0][1] == 3
    assert ledgers[1].rounds[0].measured["refresh_rows"] == 5 * 96
    losses = [{step: measured["loss"] for step, measured in steps(run).items()} for run in (peace, torn)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["ray::Encoder", "ray::Miner"])
def test_who_mines_is_killed_and_the_run_is_as_in_peace(
    command_line: Callable, started: list, long_corpus: Path, victim: str
) -> None:
    cli = command_line()
    words = [*ROUND, "--dataset", str(long_corpus)]
    assert cli.train(*words, "--output", "peace").returncode == 0
    run = cli.folder / "torn"
    started.append(cli.start("train", *cli.settings, *words, "--output", "torn"))
    wait_for(lambda: shards(run), 200, started[0])
    killed = processes(victim, lambda pid: os.getsid(pid) == started[0].pid)
    assert len(killed) == 1
    os.kill(killed[0], signal.SIGKILL)
    assert len(shards(run)) < 6
    _, err = started[0].communicate(timeout=200)
    assert started[0].returncode == 0, err
    assert_as_in_peace(cli)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_dies_in_a_round_and_the_run_is_as_in_peace(
    command_line: Callable, started: list, long_corpus: Path
) -> None:
    cli = command_line()
    words = [*ROUND, "--dataset", str(long_corpus), "--refresh-pool", "2"]
    assert cli.train(*words, "--output", "peace").returncode == 0
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 3})
    try:
        environment = cli.environment | {"RAY_ADDRESS": cluster.address}
        process = subprocess.Popen(
            [sys.executable, str(REPOSITORY / "jobs" / "train.py"), *cli.settings, *words, "--output", "torn"],
            cwd=cli.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        run = cli.folder / "torn"
        # The driver belongs to whichever node it finds first: that is the one that stays. Workers take longer to come.
        wait_for(lambda: processes("ray::Miner", lambda pid: parent(parent(pid)) == os.getpid()), 200, process)
        node = cluster.add_node(num_cpus=0)
        [raylet] = node.all_processes["raylet"]

        def at_work() -> bool:
            """Some shards stand, and the node that is to die has an encoder."""
            return bool(shards(run)) and bool(processes("ray::Encoder", lambda pid: parent(pid) == raylet.process.pid))

        wait_for(at_work, 200, process)
        assert len(shards(run)) < 6
        cluster.remove_node(node, allow_graceful=False)
        _, err = process.communicate(timeout=250)
        assert process.returncode == 0, err
    finally:
        cluster.shutdown()
    assert_as_in_peace(cli)
