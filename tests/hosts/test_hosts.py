"""Training on two hosts of a network, from a bucket into a bucket: the same loss curve as on one, and a lost cable.

Run alone: `python -m pytest -m hosts tests/hosts`. Needs root."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parent)]
from clusters import Lines, losses_of, wait_for
from network import Hosts
from object_store import ObjectStore

pytestmark = [pytest.mark.slow, pytest.mark.hosts, pytest.mark.timeout(1500)]
RAY = str(Path(sys.executable).with_name("ray"))
TRAIN = str(Path(sys.executable).with_name("raytriever"))
STEPS = 8


@pytest.fixture(scope="module")
def hosts(folder: Path) -> Iterator[Hosts]:
    network = Hosts(folder, 3)
    yield network
    network.stop()


class Cluster:
    """Ray on all hosts, with one CPU for workers on each but the first, and a bucket for everything."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self._folder = hosts, folder
        self.head = hosts.address("h1")
        (folder / "store").mkdir()
        self.store = ObjectStore(folder / "store", self.head, hosts.enter("h1"))
        self.environment = {
            **self.store.environment(),
            "RAYTRIEVER_CACHE": "s3://bucket/cache",
            "OMP_NUM_THREADS": "1",
            "HOME": "/tmp",
        }
        wait_for(hosts, "h1", self.store.endpoint)
        self._ray("h1", "--head", f"--node-ip-address={self.head}", "--port=6379", "--num-cpus=0")
        for name in hosts.names[1:]:
            self.join(name)

    def join(self, name: str) -> None:
        """Add a host to the cluster, perhaps again."""
        self.hosts.start(name, [RAY, "stop", "-f"], {"HOME": "/tmp"}, stdout=subprocess.DEVNULL).wait()
        self._ray(name, f"--address={self.head}:6379", "--num-cpus=1")

    def train(self, run: str, *words: str) -> subprocess.Popen[str]:
        """Start a training of one worker from the head, whose run directory is in the bucket."""
        settings = {
            "dataset": self._folder / "data",
            "model": self._folder / "model",
            "tracker": "none",
            "precision": "fp32",
            "batch-size": 16,
            "learning-rate": 1e-3,
            "temperature": 0.05,
            "max-steps": STEPS,
            "eval-steps": 2,
            "output": f"s3://bucket/runs/{run}",
        }
        flags = [f"--{name}={value}" for name, value in settings.items()]
        environment = self.environment | {"RAY_ADDRESS": f"{self.head}:6379"}
        pipe = subprocess.PIPE
        process: subprocess.Popen[str] = self.hosts.start(
            "h1", [TRAIN, "train", *flags, *words], environment, stdout=pipe, stderr=pipe
        )
        return process

    def losses(self, run: str) -> dict[int, float]:
        """Return the loss of each step as the bucket has it."""
        return losses_of(self.hosts, "h1", run, self.environment)

    def _ray(self, name: str, *words: str) -> None:
        options = ["--disable-usage-stats", "--object-store-memory=200000000"]
        self.hosts.run(name, [RAY, "start", *words, *options], self.environment)


@pytest.fixture(scope="module")
def cluster(hosts: Hosts, folder: Path) -> Iterator[Cluster]:
    running = Cluster(hosts, folder)
    yield running
    running.store.process.kill()
    running.store.process.wait()


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=600)
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


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3", "fsdp2"])
def test_two_hosts_have_the_loss_curve_of_one(cluster: Cluster, one: dict[int, float], strategy: str) -> None:
    finished(cluster.train(strategy, "--num-workers=2", f"--strategy={strategy}"))
    assert cluster.losses(strategy) == pytest.approx(one, rel=2e-4)


def test_a_lost_host_is_named_and_its_steps_are_done_again(cluster: Cluster) -> None:
    process = cluster.train("cut", "--num-workers=2", "--max-steps=400", "--checkpoint-steps=2", "--wait-minutes=5")
    lines = Lines(process.stderr)
    lines.wait_for(r"train: \d+/400")
    cluster.hosts.cut("h3")
    lost = lines.wait_for(r"worker \d on host (h\d) died with its node")
    assert lost[1] == "h3"
    waits = lines.wait_for(r"waiting for 2 workers, the cluster has room for (\d); gives up at \d\d:\d\d:\d\d")
    assert waits[1] == "1"
    cluster.hosts.reconnect("h3")
    cluster.join("h3")
    lines.wait_for(r"train: \d+/400")
    os.killpg(process.pid, signal.SIGINT)  # `nsenter` passes no signal on
    process.communicate(timeout=120)
    steps = list(cluster.losses("cut"))
    assert steps == list(range(1, steps[-1] + 1))
