"""`cluster/slurm.sbatch` under Debian's Slurm on two hosts: signaled near the end of its time, it is queued again and
continues the same run.

Run alone: `python -m pytest -m hosts tests/hosts/test_slurm.py`. Needs root, `slurm-wlm` and `munge`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from network import Hosts

REPOSITORY = Path(__file__).parents[2]
STEPS = 200
pytestmark = [pytest.mark.slow, pytest.mark.hosts, pytest.mark.timeout(1500)]

CONFIGURATION = """
ClusterName=two
SlurmctldHost=h1({addresses[0]})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/socket
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
        self.processes: list[subprocess.Popen[str]] = []
        self._environment = {
            "SLURM_CONF": f"{folder}/slurm.conf",
            "PATH": f"{Path(sys.prefix, 'bin')}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": f"{folder}",
            "RAYTRIEVER_CACHE": f"{folder}/cache",
            "OMP_NUM_THREADS": "1",
        }
        (folder / "state").mkdir()
        (folder / "munge").write_bytes(bytes(range(256)))
        (folder / "munge").chmod(0o400)
        addresses = [hosts.address(name) for name in hosts.names]
        (folder / "slurm.conf").write_text(CONFIGURATION.format(addresses=addresses, folder=folder))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n")
        munge = [f"--key-file={folder}/munge", *(f"--{name}-file={folder}/{name}" for name in ("pid", "log", "seed"))]
        self._start("h1", "munged", "-F", "--force", f"--socket={folder}/socket", *munge)
        self._start("h1", "slurmctld", "-D", "-f", f"{folder}/slurm.conf")
        for name in hosts.names:
            self._start(name, "bash", "-c", START.format(name=name, folder=folder))
        while self.run("sinfo", "--noheader", "--format=%t %D") != "idle 2":
            time.sleep(1)

    def run(self, *words: str) -> str:
        """Run a command and return its output, whether it fails or not."""
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        output, _ = self._hosts.start("h1", words, self._environment, **pipe).communicate(timeout=60)
        return str(output).strip()

    def wait(self, job: str, *fields: str) -> None:
        """Wait until a job has one of some fields, such as `JobState=FAILED`."""
        while not {*fields} & {*self.run("scontrol", "show", "job", job).split()}:
            time.sleep(0.5)

    def _start(self, name: str, *words: str) -> None:
        with (self._folder / f"{words[0]}-{name}.log").open("w") as log:
            self.processes.append(self._hosts.start(name, words, self._environment, stdout=log, stderr=log))


@pytest.fixture
def slurm(folder: Path) -> Iterator[Slurm]:
    network = Hosts(folder, 2)
    running = Slurm(network, folder)
    yield running
    network.stop()
    for process in running.processes:
        process.wait()


def test_a_job_at_the_end_of_its_time_is_queued_again_and_continues(slurm: Slurm, folder: Path) -> None:
    words = ["sbatch", "--parsable", f"--chdir={folder}", str(REPOSITORY / "cluster" / "slurm.sbatch")]
    words += [f"--dataset={folder}/data", f"--model={folder}/model"]
    words += [f"--max-steps={STEPS}", "--checkpoint-steps=50", "--batch-size=18", "--tracker=none"]
    job = slurm.run(*words, f"--output={folder}/run")
    steps, output = folder / "run" / "steps.jsonl", folder / f"slurm-{job}.out"
    while not steps.exists() or steps.read_text().count("\n") < 60:
        assert "JobState=FAILED" not in slurm.run("scontrol", "show", "job", job), output.read_text()
        time.sleep(0.2)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    slurm.wait(job, "Restarts=1")
    assert "interrupted; run the same command again to continue" in output.read_text()
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    slurm.wait(job, "JobState=COMPLETED", "JobState=FAILED")
    assert (folder / "run" / "metrics.json").exists(), output.read_text()
    rows = [json.loads(line) for line in steps.read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row["metrics"]] == list(range(1, STEPS + 1))
