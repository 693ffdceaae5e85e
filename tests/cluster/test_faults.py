"""What may die under a real Ray, and what the same command makes of it: drivers, workers, heads, nodes, and files."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import ray
from processes import losses, of_session, run_python, wait_for
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

from raytriever.cluster.events_and_restarts import open_event_queue
from raytriever.cluster.gpus_and_placement import count_gpus
from raytriever.cluster.ray_session import ray_session
from raytriever.core.errors import UserError
from raytriever.evaluation.results import Results

STEPS = 200
SETTINGS = ["--eval-steps", "20", "--patience", "99", "--keep", "2", "--max-steps", str(STEPS)]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder in whose depths a socket still has a name that is short enough."""
    with TemporaryDirectory(prefix="rt", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_command_goes_on_after_its_driver_died_whatever_it_left(
    command_line: Callable, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = command_line()
    assert cli.train(*SETTINGS, "--output", "peace").returncode == 0

    monkeypatch.setenv("TMPDIR", str(short_folder))  # where what Ray Train keeps of the run lies
    run = cli.folder / "interrupted"
    there = (run / "checkpoints" / "step-60").exists
    ended = cli.end(signal.SIGKILL, there, *SETTINGS, "--output", "interrupted")
    wait_for(lambda: not of_session(ended.pid, "RayTrainWorker"), 60)

    leftovers = [file for folder in short_folder.glob("raytriever-*") for file in folder.rglob("*") if file.is_file()]
    for number, file in enumerate(leftovers):
        file.write_bytes(b"" if number % 2 else file.read_bytes()[: file.stat().st_size // 2] + b"\0{")
    steps = sorted(int(path.name[5:]) for path in (run / "checkpoints").glob("step-*"))
    cut = run / "checkpoints" / f"step-{steps[-1]}"
    [weights] = cut.glob("weights-*")
    weights.write_bytes(weights.read_bytes()[:-1000])

    again = cli.train(*SETTINGS, "--output", "interrupted")
    assert again.returncode == 0, again.stderr
    named = [line for line in again.stderr.splitlines() if str(cut) in line]
    assert len(named) == 1, again.stderr
    assert "The run resumes from an earlier checkpoint" in named[0]
    assert f"Resumed from checkpoint step-{steps[-2]}" in again.stderr
    assert losses(run) == losses(cli.folder / "peace")
    assert set(losses(run)) == set(range(1, STEPS + 1))
    figures = [Results.read(cli.folder / name / "evaluation").models for name in ("interrupted", "peace")]
    assert figures[0] == figures[1]


def killed_until_the_end(process: subprocess.Popen[str], title: str) -> tuple[str, int]:
    """Kill the processes with a title until the run has ended; return its last line and the number of kills."""
    dead: set[int] = set()
    end = time.monotonic() + 300
    while process.poll() is None:
        assert time.monotonic() < end, "it goes on for ever"
        for pid in set(of_session(process.pid, title)) - dead:
            os.kill(pid, signal.SIGKILL)
            dead.add(pid)
        time.sleep(0.01)
    _, err = process.communicate()
    assert process.returncode == 2, err
    assert "Traceback" not in err
    return err.strip().splitlines()[-1], len(dead)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workers_that_die_before_any_step_end_the_run_in_one_line(command_line: Callable, started: list) -> None:
    cli = command_line()
    started.append(cli.start("train", *cli.settings, *SETTINGS, "--output", "run"))
    last, dead = killed_until_the_end(started[0], "RayTrainWorker.run_train_fn")
    # Ray Train met the last death while it looked at its workers, or while it sent them what to run.
    host = socket.gethostname()
    deaths = f"error: after step 0: worker 0 on host {host} died, ", "error: after step 0: a worker died before "
    assert last.startswith(deaths)
    assert "; then every restart failed before a new step" in last
    assert 4 <= dead <= 8


def train_with(name: str, value: float) -> str:
    """A program that trains as the job does, with another constant."""
    return f"""
import sys
import raytriever.cluster.train.trainer
raytriever.cluster.train.trainer.{name} = {value}
from raytriever.cli.main import run
sys.exit(run("train", sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workers_that_die_as_they_start_end_the_run_in_one_line(command_line: Callable, started: list) -> None:
    cli = command_line()
    started.append(cli.start("train", *cli.settings, *SETTINGS, "--wait-minutes", "0.5", "--output", "run"))
    last, dead = killed_until_the_end(started[0], "RayTrainWorker.init_train_context")
    assert last.startswith("error: for 0.5 minutes, workers died at every start; check the memory of their nodes")
    assert dead > 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_shrinks_with_its_cluster_and_grows_again(command_line: Callable, started: list) -> None:
    cli = command_line()
    words = [*SETTINGS, "--max-steps", "3000", "--checkpoint-steps", "10"]
    there = (cli.folder / "peace" / "checkpoints" / "step-60").exists
    assert cli.end(signal.SIGINT, there, *words, "--output", "peace").returncode == 130
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        node = cluster.add_node(num_cpus=1)
        with (cli.folder / "err").open("w") as errors:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    train_with("RESIZE_SECONDS", 2.0),
                    *cli.settings,
                    *words,
                    *("--num-workers", "1:2", "--output", "run"),
                ],
                cwd=cli.folder,
                env=cli.environment | {"RAY_ADDRESS": cluster.address},
                stdout=subprocess.DEVNULL,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        started.append(process)
        said = (cli.folder / "err").read_text
        wait_for(lambda: "2 workers of 1:2" in said(), 200, process)
        checkpoints = cli.folder / "run" / "checkpoints"
        wait_for(lambda: list(checkpoints.glob("step-*")), 200, process)
        cluster.remove_node(node, allow_graceful=False)
        wait_for(lambda: "1 worker of 1:2" in said(), 200, process)
        reached = max(losses(cli.folder / "run"))
        wait_for(lambda: max(losses(cli.folder / "run")) > reached, 200, process)
        cluster.add_node(num_cpus=1)
        wait_for(lambda: said().count("2 workers of 1:2") == 2, 200, process)
        reached = max(losses(cli.folder / "run"))
        # So far that all the steps of the other run are compared, however few were done before the deaths.
        wait_for(lambda: max(losses(cli.folder / "run")) > max(reached + 20, 60), 200, process)
        assert said().count("Resumed from checkpoint") == 2
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        cluster.shutdown()
    # Whatever the number of workers was, a step is the step of one worker.
    one, other = losses(cli.folder / "peace"), losses(cli.folder / "run")
    assert len(other) == max(other)
    compared = sorted(one.keys() & other.keys())
    assert compared[:60] == list(range(1, 61))
    assert [other[step] for step in compared] == pytest.approx([one[step] for step in compared], rel=1e-4)


def lose_the_actor() -> None:
    with open_event_queue(print) as events:
        ray.kill(events.queue.actor)
        assert events.has_failed.wait(60)


@pytest.mark.slow
def test_the_death_of_the_actor_that_passes_steps_is_one_line() -> None:
    line = "the Ray actor that passes events from the workers to this command was killed"
    with ray_session(num_workers=1), pytest.raises(UserError, match=line):
        lose_the_actor()


@pytest.mark.slow
def test_events_of_several_threads_arrive_in_the_order_of_each() -> None:
    events: list[tuple[int, int]] = []
    with ray_session(num_workers=1), open_event_queue(events.append) as opened:

        def send(thread: int) -> None:
            for number in range(300):
                opened.queue.send((thread, number))
            opened.queue.flush((thread, 300))

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(send, range(3)))
        assert len(events) == 903  # a flush waits for all earlier ones
    for thread in range(3):
        assert [number for item, number in events if item == thread] == list(range(301))


LONG_RUN = ["--eval-steps", "50", "--patience", "99", "--max-steps", "400", "--checkpoint-steps", "20"]


@pytest.fixture
def clusters() -> Iterator[list[Cluster]]:
    """Clusters that are shut down with the test."""
    running: list[Cluster] = []
    yield running
    for cluster in running:
        cluster.shutdown()
    # Ray leaves processes unwaited for and sockets open; if they were reported later, another test would be blamed.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_command_goes_on_after_the_head_was_killed_and_started_again(
    command_line: Callable, clusters: list[Cluster], started: list
) -> None:
    cli = command_line()
    words = ["train", *cli.settings, *LONG_RUN, "--output"]
    killed = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    cli.run(*words, "peace", RAY_ADDRESS=killed.address)
    started.append(cli.start(*words, "run", RAY_ADDRESS=killed.address))
    wait_for(lambda: list((cli.folder / "run" / "checkpoints").glob("step-*")), 200, started[0])
    killed.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
    assert started[0].wait(200) != 0, "a run without its head has not ended well"
    assert not (cli.folder / "run" / "metrics.json").exists()

    clusters.append(Cluster(initialize_head=True, head_node_args={"num_cpus": 2}))
    _, err = cli.run(*words, "run", RAY_ADDRESS=clusters[0].address)
    assert "Resumed from checkpoint" in err
    assert losses(cli.folder / "run") == losses(cli.folder / "peace")
    figures = [Results.read(cli.folder / name / "evaluation").models for name in ("peace", "run")]
    assert figures[0] == figures[1]


@pytest.mark.slow
def test_gpus_that_would_come_count_before_they_are_there(clusters: list[Cluster]) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    clusters.append(cluster)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        assert count_gpus() == 0
        # As the autoscaler of `ray up` and of KubeRay tells it.
        config = autoscaler_pb2.ClusterConfig()
        for name, resources in (("head", {"CPU": 4}), ("gpu-spot", {"CPU": 8, "GPU": 1})):
            group = config.node_group_configs.add(name=name, max_count=8)
            group.resources.update(resources)
        ray.experimental.internal_kv._internal_kv_put(
            ray._raylet.GCS_AUTOSCALER_CLUSTER_CONFIG_KEY.encode(),
            config.SerializeToString(),
            namespace=ray._raylet.GCS_AUTOSCALER_STATE_NAMESPACE.encode(),
        )
        assert count_gpus() == 8
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_groups_that_die_before_they_train_leave_their_place_to_the_next(tmp_path: Path) -> None:
    run_python(Path(__file__).with_name("dying_groups.py"), tmp_path, timeout=200)
