"""`cluster/slurm.sbatch` under Debian's Slurm on two hosts: signaled near the end of its time, it is queued again and
continues the same run.

Run alone: `python -m pytest -m hosts tests/hosts/test_slurm.py`. Needs root, `slurm-wlm` and `munge`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))
from network import Hosts

REPOSITORY = Path(__file__).parents[2]
STEPS = 300
pytestmark = [pytest.mark.slow, pytest.mark.hosts, pytest.mark.timeout(1500)]

CONFIGURATION = """
ClusterName=two
SlurmctldHost=h1({addresses[0]})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir=/tmp/slurmd
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
MpiDefault=none
NodeName=h1 NodeAddr={addresses[0]} CPUs=1 State=UNKNOWN
NodeName=h2 NodeAddr={addresses[1]} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=h1,h2 Default=YES State=UP
"""
# Each host has processes of its own, but one kernel, so its jobs are in a control group of its own.
START = """
set -e
groups=/sys/fs/cgroup
mount -t tmpfs tmpfs $groups
mkdir $groups/all $groups/freezer
mount -t cgroup -o freezer cgroup $groups/all
mkdir -p $groups/all/raytriever-{name}
mount --bind $groups/all/raytriever-{name} $groups/freezer
exec slurmd -D -N {name} -f {folder}/slurm.conf
"""


class Slurm:
    """Slurm on hosts; the controller and the commands are on the first one."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self._hosts, self._folder = hosts, folder
        self.environment = {
            "SLURM_CONF": f"{folder}/slurm.conf",
            "PATH": f"{Path(sys.prefix, 'bin')}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": f"{folder}/home",
            "TMPDIR": "/tmp",
            "RAYTRIEVER_CACHE": f"{folder}/cache",
            "OMP_NUM_THREADS": "1",
        }
        for name in ("munge", "state", "home"):
            (folder / name).mkdir(mode=0o755)
        (folder / "munge.key").write_bytes(bytes(range(256)) * 4)
        (folder / "munge.key").chmod(0o400)
        addresses = [hosts.address(name) for name in hosts.names]
        (folder / "slurm.conf").write_text(CONFIGURATION.format(addresses=addresses, folder=folder))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n")
        munge = {
            "key": "munge.key",
            "socket": "munge/socket",
            "pid": "munge/pid",
            "log": "munge/log",
            "seed": "munge/seed",
        }
        options = [f"--{name}{'' if name == 'socket' else '-file'}={folder}/{path}" for name, path in munge.items()]
        self._start("h1", ["munged", "-F", "--force", *options])
        self._start("h1", ["slurmctld", "-D", "-f", f"{folder}/slurm.conf"])
        for name in hosts.names:
            self._start(name, ["bash", "-c", START.format(name=name, folder=folder)])
        wait_until(lambda: self("sinfo", "--noheader", "--format=%t %D") == "idle 2\n")

    def __call__(self, *words: str) -> str:
        """Run a command of Slurm and return its output, or "" if it fails."""
        done = self._hosts.start("h1", words, self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        output, _ = done.communicate(timeout=60)
        return str(output) if done.returncode == 0 else ""

    def job(self, number: str) -> dict[str, str]:
        """Return the fields of a job."""
        return dict(field.split("=", 1) for field in self("scontrol", "show", "job", number).split() if "=" in field)

    def _start(self, name: str, words: list[str]) -> None:
        with (self._folder / f"{words[0]}-{name}.log").open("w") as log:
            self._hosts.start(name, words, self.environment, stdout=log, stderr=log)


def wait_until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + 600
    while not holds():
        assert time.monotonic() < end
        time.sleep(1)


@pytest.fixture(scope="module")
def slurm(folder: Path) -> Iterator[Slurm]:
    network = Hosts(folder, 2)
    yield Slurm(network, folder)
    network.stop()


def test_a_job_at_the_end_of_its_time_is_queued_again_and_continues(slurm: Slurm, folder: Path) -> None:
    settings = {
        "dataset": folder / "data",
        "model": folder / "model",
        "tracker": "none",
        "batch-size": 18,
        "max-steps": STEPS,
        "checkpoint-steps": 2,
        "output": folder / "run",
    }
    sbatch = ["sbatch", "--parsable", f"--chdir={folder}", str(REPOSITORY / "cluster" / "slurm.sbatch")]
    number = slurm(*sbatch, *(f"--{name}={value}" for name, value in settings.items())).strip()
    output, steps = folder / f"slurm-{number}.out", folder / "run" / "steps.jsonl"
    wait_until(
        lambda: (folder / "run" / "checkpoints" / "step-4").exists() or slurm.job(number)["JobState"] == "FAILED"
    )
    assert slurm("scancel", "--batch", "--signal=USR1", number) == ""
    wait_until(lambda: slurm.job(number)["Restarts"] == "1")
    assert "interrupted; run the same command again to continue" in output.read_text()
    slurm("scontrol", "update", f"JobId={number}", "StartTime=now")
    wait_until(lambda: slurm.job(number)["JobState"] in ("COMPLETED", "FAILED"))
    assert slurm.job(number)["JobState"] == "COMPLETED", output.read_text()
    assert "Resumed from checkpoint step-" in output.read_text()
    rows = [json.loads(line) for line in steps.read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row["measured"]] == list(range(1, STEPS + 1))
