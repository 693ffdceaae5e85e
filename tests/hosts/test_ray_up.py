"""`ray up cluster/own-machines.yaml` over ssh: a job on three machines, a machine killed, and the head killed.

Run alone: `python -m pytest -m hosts tests/hosts/test_ray_up.py`. Needs root."""

from __future__ import annotations

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
REPOSITORY = Path(__file__).parents[2]
RAY, OPERATOR, STEPS = "/opt/raytriever/bin/ray", "h5", 6


@pytest.fixture(scope="module")
def hosts(folder: Path) -> Iterator[Hosts]:
    network = Hosts(folder, 5)
    yield network
    network.stop()


class Machines:
    """A head h1 and workers h2 to h4 of `own-machines.yaml`; the operator's host h5 has the bucket and MLflow."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self._folder = hosts, folder
        (folder / "store").mkdir()
        here = hosts.address(OPERATOR)
        self.store = ObjectStore(folder / "store", here, hosts.enter(OPERATOR))
        self.environment = self.store.environment() | {"RAYTRIEVER_CACHE": "s3://bucket/cache", "HOME": "/root"}
        mlflow = [Path(sys.prefix, "bin/mlflow"), "server", "--host", here, "--allowed-hosts", f"{here}:5000"]
        mlflow += ["--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
        self.mlflow = hosts.start(
            OPERATOR,
            mlflow,
            {"HOME": "/root", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(hosts, OPERATOR, self.store.endpoint)
        wait_for(hosts, OPERATOR, f"http://{here}:5000")
        self.file = folder / "machines.yaml"
        self.file.write_text(self._filled())
        make = "umask 077; /opt/raytriever/bin/ray get-auth-token --generate > /dev/null; chmod 600 ~/.ray/auth_token"
        hosts.run(OPERATOR, ["bash", "-c", make], self.environment)

    def up(self) -> None:
        """Start what does not run."""
        self.hosts.run(OPERATOR, [RAY, "up", "-y", "--no-config-cache", self.file], self.environment)

    def submit(self, run: str, *words: str) -> subprocess.Popen[str]:
        """Submit a training with nothing but the bucket and MLflow's address."""
        settings = {
            "loss": "mw",
            "dataset": self._folder / "data",
            "model": self._folder / "model",
            "precision": "fp32",
            "batch-size": 18,
            "max-steps": STEPS,
            "output": f"s3://bucket/runs/{run}",
        }
        flags = [f"--{name}={value}" for name, value in settings.items()]
        job = [
            RAY,
            "job",
            "submit",
            "--address=http://127.0.0.1:8265",
            "--working-dir=.",
            "--",
            "python",
            "jobs/train.py",
        ]
        line = (
            f"cd {REPOSITORY} && RAY_AUTH_MODE=token PATH=/opt/raytriever/bin:$PATH {' '.join([*job, *flags, *words])}"
        )
        process: subprocess.Popen[str] = self.hosts.start(
            OPERATOR,
            [RAY, "exec", "--no-config-cache", self.file, line],
            self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return process

    def losses(self, run: str) -> dict[int, float]:
        """Return the loss of each step as the bucket has it."""
        return losses_of(self.hosts, OPERATOR, run, self.environment)

    def _filled(self) -> str:
        """Return `own-machines.yaml` with these machines, which share two cores, and with the keys of the bucket."""
        text = (REPOSITORY / "cluster" / "own-machines.yaml").read_text()
        workers = ", ".join(map(self.hosts.address, ("h2", "h3", "h4")))
        variables = {**self.store.environment(), "MLFLOW_TRACKING_URI": f"http://{self.hosts.address(OPERATOR)}:5000"}
        exports = " ".join(f"{name}={value}" for name, value in {**variables, "OMP_NUM_THREADS": "1"}.items())
        for old, new in {
            "head_ip: 10.0.0.1": f"head_ip: {self.hosts.address('h1')}",
            "[10.0.0.2, 10.0.0.3]": f"[{workers}]",
            "ssh_user: CHANGE-ME": "ssh_user: root",
            "~/.ssh/id_ed25519": str(self.hosts.key),
            "min_workers: 2": "min_workers: 3",
            "max_workers: 2": "max_workers: 3",
            "RAY_AUTH_MODE=token": f"RAY_AUTH_MODE=token {exports}",
            "s3://CHANGE-ME": "s3://bucket",
            "ray start --address=$RAY_HEAD_IP:6379": "ray start --address=$RAY_HEAD_IP:6379 --num-cpus=1",
            "--disable-usage-stats": "--disable-usage-stats --object-store-memory=200000000",
        }.items():
            assert old in text, old
            text = text.replace(old, new)
        return text


@pytest.fixture(scope="module")
def machines(hosts: Hosts, folder: Path) -> Iterator[Machines]:
    running = Machines(hosts, folder)
    running.up()
    yield running
    running.mlflow.kill()
    running.mlflow.wait()
    running.store.process.kill()
    running.store.process.wait()


def test_a_job_has_the_loss_curve_of_one_machine_on_three(machines: Machines) -> None:
    curves = []
    for workers in (1, 3):
        process = machines.submit(f"of-{workers}", f"--num-workers={workers}")
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
        assert "succeeded" in output
        assert "Traceback" not in output
        curves.append(machines.losses(f"of-{workers}"))
    assert list(curves[0]) == list(range(1, STEPS + 1))
    assert curves[1] == pytest.approx(curves[0], rel=2e-4)


def test_a_killed_machine_comes_back_by_itself_and_a_killed_head_by_ray_up(machines: Machines) -> None:
    words = ("--num-workers=2", "--max-steps=400", "--checkpoint-steps=2", "--wait-minutes=5")
    process = machines.submit("killed", *words)
    lines = Lines(process.stdout)
    lines.wait_for(r"train: [1-9]\d*/400")
    machines.hosts.kill_ray("h2")
    machines.hosts.kill_ray("h3")
    lines.wait_for(r"worker \d on host h\d (died with its node|lost its connection to host h\d)")
    lines.wait_for(r"train: [1-9]\d*/400")
    machines.hosts.kill_ray("h1")
    process.communicate(timeout=300)
    before = machines.losses("killed")
    machines.up()
    process = machines.submit("killed", *words)
    lines = Lines(process.stdout)
    lines.wait_for(r"train: [1-9]\d*/400")
    steps = list(machines.losses("killed"))
    assert steps == list(range(1, steps[-1] + 1))
    assert steps[-1] >= max(before) - 2
    machines.hosts.kill_ray("h1")
    process.communicate(timeout=300)
