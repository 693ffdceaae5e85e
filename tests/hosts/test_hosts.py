"""Training on three hosts of a network, from a bucket into a bucket: the same loss curve as on one, and what goes wrong
on one host: it is killed, or the head is, a lost cable, a full disk, another version of raytriever, a wrong clock.

Run alone: `python -m pytest -m hosts tests/hosts`. Needs root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import raytriever

sys.path += [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parent)]
from clusters import STEPS, Cluster, Lines
from network import Hosts

# Of Python on a host, before any import. Compiled parts of Ray and of the store's client keep the right time.
CLOCK = """
import sys, time
from pathlib import Path
if any("default_worker" in word for word in sys.orig_argv):
    Path(__file__).with_name("worker").touch()
now, nanoseconds = time.time, time.time_ns
time.time = lambda: now() + {seconds}
time.time_ns = lambda: nanoseconds() + {seconds} * 10**9
"""

pytestmark = [pytest.mark.slow, pytest.mark.hosts, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def hosts(folder: Path) -> Iterator[Hosts]:
    network = Hosts(folder, 4)
    yield network
    network.stop()


@pytest.fixture(scope="module")
def cluster(hosts: Hosts, folder: Path) -> Iterator[Cluster]:
    running = Cluster(hosts, folder)
    yield running
    running.store.process.kill()
    running.store.process.wait()


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=1200)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return out + err


@pytest.fixture(scope="module")
def one(cluster: Cluster) -> dict[int, float]:
    """The loss curve of one worker."""
    finished(cluster.train("one"))
    curve = cluster.losses("one")
    assert list(curve) == list(range(1, STEPS + 1))
    return curve


def refused(process: subprocess.Popen[str]) -> str:
    """Return the line with which a training ends."""
    _, err = process.communicate(timeout=1200)
    assert process.returncode == 2, err
    assert "Traceback" not in err
    return str(err.strip().splitlines()[-1])


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3", "fsdp2"])
def test_three_hosts_have_the_loss_curve_of_one(cluster: Cluster, one: dict[int, float], strategy: str) -> None:
    finished(cluster.train(strategy, "--num-workers=3", f"--strategy={strategy}"))
    assert cluster.losses(strategy) == pytest.approx(one, rel=2e-4)


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3", "fsdp2"])
def test_a_run_in_a_bucket_continues_to_the_bit_after_a_worker_host_and_after_the_head_was_killed(
    cluster: Cluster, strategy: str
) -> None:
    words = (f"--strategy={strategy}", "--num-workers=2", "--max-steps=100", "--checkpoint-steps=2", "--wait-minutes=5")
    finished(cluster.train(f"{strategy}-whole", *words))
    process = cluster.train(f"{strategy}-killed", *words)
    lines = Lines(process.stderr)
    lines.wait_for(r"step 20: dev loss")
    cluster.hosts.kill_ray(worker_hosts(cluster)[-1])
    lines.wait_for(r"Resumed from checkpoint step-\d+")
    lines.wait_for(r"step \d+: dev loss")
    cluster.hosts.kill_ray("h1")
    process.communicate(timeout=120)
    cluster.start()
    assert "Resumed from checkpoint step-" in finished(cluster.train(f"{strategy}-killed", *words))
    assert cluster.losses(f"{strategy}-killed") == cluster.losses(f"{strategy}-whole")


def worker_hosts(cluster: Cluster) -> list[str]:
    """Return the hosts on which workers train."""
    return [
        name
        for name in cluster.hosts.names[1:]
        if "RayTrainWorker" in cluster.hosts.run(name, ["ps", "-A", "-o", "args"], {})
    ]


def test_a_full_disk_is_named_with_its_host(cluster: Cluster) -> None:
    folder = "/tmp/.cache/raytriever"
    fill = f"mkdir -p {folder} && mount -t tmpfs -o size=64k tmpfs {folder} && (yes > {folder}/full || true)"
    cluster.hosts.run("h3", ["bash", "-c", fill], {})
    line = refused(cluster.train("full", "--num-workers=3"))
    cluster.hosts.run("h3", ["umount", folder], {})
    assert line.startswith(f"error: host h3: {folder}/remote: the copies of s3://bucket cannot be written or read")


def test_another_version_of_raytriever_is_named_with_its_host(cluster: Cluster, folder: Path) -> None:
    copied = folder / "older" / "raytriever"
    shutil.copytree(Path(raytriever.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__"))
    file = copied / "__init__.py"
    file.write_text(file.read_text().replace(f'"{raytriever.__version__}"', '"0.0.1"'))
    cluster.join("h4", PYTHONPATH=str(copied.parent))
    line = refused(cluster.train("older", "--num-workers=3"))
    assert line.startswith("error: the Ray cluster: host h4 has raytriever 0.0.1, and the command has")
    cluster.join("h4")


def test_clocks_ten_minutes_off_change_nothing(cluster: Cluster, one: dict[int, float], folder: Path) -> None:
    for name, seconds in (("h2", -600), ("h3", 600)):
        site = folder / f"clock-{name}"
        site.mkdir()
        (site / "sitecustomize.py").write_text(CLOCK.format(seconds=seconds))
        cluster.join(name, PYTHONPATH=str(site))
    finished(cluster.train("clocks", "--num-workers=3", "--checkpoint-steps=2"))
    assert cluster.losses("clocks") == pytest.approx(one, rel=2e-4)
    for name in ("h2", "h3"):
        assert (folder / f"clock-{name}" / "worker").exists()  # Ray's workers have read it
        cluster.join(name)


def test_a_lost_host_is_named_and_its_steps_are_done_again(cluster: Cluster) -> None:
    process = cluster.train("cut", "--num-workers=3", "--max-steps=400", "--checkpoint-steps=2", "--wait-minutes=5")
    lines = Lines(process.stderr)
    lines.wait_for(r"train: \d+/400")
    cluster.hosts.cut("h3")
    lost = lines.wait_for(r"worker \d on host (h\d) died with its node")
    assert lost[1] == "h3"
    waits = lines.wait_for(r"waiting for 3 workers, the cluster has room for (\d); gives up at \d\d:\d\d:\d\d")
    assert waits[1] == "2"
    cluster.hosts.reconnect("h3")
    cluster.join("h3")
    lines.wait_for(r"train: \d+/400")
    os.killpg(process.pid, signal.SIGINT)  # `nsenter` passes no signal on
    process.communicate(timeout=120)
    steps = list(cluster.losses("cut"))
    assert steps == list(range(1, steps[-1] + 1))
