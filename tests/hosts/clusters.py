"""What tests of clusters of hosts share: Ray and a bucket on hosts, a run in the bucket, and the lines of a process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from network import Hosts
from object_store import ObjectStore

RAY = str(Path(sys.executable).with_name("ray"))
TRAIN = str(Path(sys.executable).with_name("raytriever"))
STEPS = 8  # of a training
WAIT = """
import sys, time, urllib.error, urllib.request
for _ in range(300):
    try:
        urllib.request.urlopen(sys.argv[1] + "/status", timeout=1)
    except urllib.error.HTTPError:
        break
    except OSError:
        time.sleep(0.2)
    else:
        break
"""
READ = """
import sys
from pathlib import Path
from raytriever.core.store.object_stores import read_object
from raytriever.core.store.remote_folders import copy_of
print(read_object(Path(copy_of(sys.argv[1]))).decode())
"""


def wait_for(hosts: Hosts, name: str, address: str) -> None:
    """Return when a server answers a host."""
    hosts.run(name, [sys.executable, "-c", WAIT, address], {})


def losses_of(hosts: Hosts, name: str, run: str, environment: dict[str, str]) -> dict[int, float]:
    """Return the loss of each step of a run as the bucket has it; each step is there once."""
    words = [sys.executable, "-c", READ, f"s3://bucket/runs/{run}/steps.jsonl"]
    lines = hosts.run(name, words, environment).splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    losses = [(row["step"], row["metrics"]["loss"]) for row in rows if "loss" in row["metrics"]]
    assert len(losses) == len(dict(losses)), losses
    return dict(losses)


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
        self.start()

    def start(self) -> None:
        """Start Ray on all hosts, again where it runs."""
        self.leave("h1")
        self._ray("h1", "--head", f"--node-ip-address={self.head}", "--port=6379", "--num-cpus=0")
        for name in self.hosts.names[1:]:
            self.join(name)

    def join(self, name: str, **variables: str) -> None:
        """Add a host to the cluster, perhaps again, with more variables in its environment."""
        self.leave(name)
        self._ray(name, f"--address={self.head}:6379", "--num-cpus=1", **variables)

    def leave(self, name: str) -> None:
        """Stop Ray on a host, if it runs."""
        self.hosts.start(name, [RAY, "stop", "-f"], {"HOME": "/tmp"}, stdout=subprocess.DEVNULL).wait()

    def train(self, run: str, *words: str) -> subprocess.Popen[str]:
        """Start a training of one worker from the head, whose run directory is in the bucket."""
        settings = {
            "dataset": self._folder / "data",
            "model": self._folder / "model",
            "tracker": "none",
            "precision": "fp32",
            "batch-size": 18,
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

    def _ray(self, name: str, *words: str, **variables: str) -> None:
        options = ["--disable-usage-stats", "--object-store-memory=200000000"]
        self.hosts.run(name, [RAY, "start", *words, *options], self.environment | variables)


class Lines:
    """Lines that a process prints, as they come."""

    def __init__(self, stream: IO[str] | None) -> None:
        assert stream is not None
        self._stream = stream

    def wait_for(self, pattern: str, seconds: float = 400) -> re.Match[str]:
        """Return the match of the next line that has the pattern."""
        end, seen = time.monotonic() + seconds, []
        for line in self._stream:
            seen.append(line)
            if match := re.search(pattern, line):
                return match
            assert time.monotonic() < end, "".join(seen[-20:])
        raise AssertionError("".join(seen[-20:]))
