"""Jobs that are submitted to a real Ray head from a copy of this checkout."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from processes import free_ports, processes, wait_for

from raytriever.evaluation.results import Results

REPOSITORY = Path(__file__).parent.parent.parent
CODE = ["platform", "jobs", ".gitignore", ".rayignore", "pyproject.toml", "constraints.txt"]
PLANTED = {".env": "canary", "runs/old/config.yaml": "canary", "mlflow.db": "canary", "key.pem": "canary"}
# A worker writes where its code lies: an editable install names another folder than the upload.
CODE_RECORD = """

_open_setup_as_it_is = _open_setup


def _open_setup(job, device):
    (job.folder / "worker_code").write_text(__file__)
    return _open_setup_as_it_is(job, device)
"""


@dataclass(frozen=True)
class Head:
    """A running head, and a checkout to submit from."""

    checkout: Path
    home: Path
    environment: dict[str, str]
    port: int

    def start(self, *words: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
            cwd=self.checkout,
            env=self.environment | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def ends(self, *words: str, **more: str) -> tuple[int, str]:
        process = self.start(*words, **more)
        out, _ = process.communicate(timeout=300)
        return process.returncode, out

    def by_ray(self, stage: str, *words: str) -> tuple[int, str]:
        return self.ends("ray", "job", "submit", "--working-dir", ".", "--", "python", f"jobs/{stage}.py", *words)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with TemporaryDirectory(prefix="rt", ignore_cleanup_errors=True) as path:
        folder = Path(path)
        checkout = folder / "checkout"
        for name in CODE:
            (shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy)(
                REPOSITORY / name,
                checkout / name if (REPOSITORY / name).is_dir() else checkout,
                **({"ignore": shutil.ignore_patterns("__pycache__")} if (REPOSITORY / name).is_dir() else {}),
            )
        module = checkout / "platform" / "raytriever" / "cluster" / "train" / "train_worker.py"
        module.write_text(module.read_text() + CODE_RECORD)
        for name, content in PLANTED.items():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            (checkout / name).write_text(content)
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        gcs, dashboard, client, agent = free_ports(4)
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_JOB_STOP_WAIT_TIME_S": "30",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}",
            "RAYTRIEVER_HOME": str(folder / "home"),
            "RAYTRIEVER_CACHE": str(folder / "cache"),
        }
        ray = folder / "ray"
        words = [f"--port={gcs}", f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}"]
        words += [
            f"--dashboard-agent-listen-port={agent}",
            f"--temp-dir={ray}",
            "--num-cpus=4",
            "--disable-usage-stats",
        ]
        with (folder / "log").open("w") as log:
            started = subprocess.Popen(
                ["ray", "start", "--head", "--block", *words],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            end = time.monotonic() + 120
            while "Ray runtime started" not in (folder / "log").read_text():
                assert started.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < end, (folder / "log").read_text()
                time.sleep(0.2)
            yield Head(checkout, folder / "home", environment, gcs)
        finally:
            for pid in processes(str(ray), lambda pid: pid != os.getpid()):
                os.kill(pid, signal.SIGKILL)
            started.wait(30)


@pytest.fixture
def settings(tiny_encoder: Path, tiny_dataset: Path) -> list[str]:
    words = f"--dataset {tiny_dataset} --model {tiny_encoder} --loss mw --temperature 0.05 --batch-size 16"
    more = "--learning-rate 1e-3 --precision fp32 --negatives-per-query 1 --patience 99"
    return [*words.split(), *more.split()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_submitted_run_uses_the_uploaded_code_and_its_files_last(head: Head, settings: list[str]) -> None:
    code, out = head.by_ray("train", *settings, "--max-steps", "4", "--eval-steps", "2", "--run-name", "first")
    assert code == 0, out
    assert "upload: " in out
    assert f"relative paths start in {head.home}" in out
    assert "All pairs: paired t-test" in out, "a job's lines come back"
    run = head.home / "runs" / "first"
    assert (run / "metrics.json").is_file()
    assert (head.home / "mlflow.db").is_file()
    worker = Path((run / "worker_code").read_text())
    [upload] = [path for path in worker.parents if path.parent.name == "working_dir_files"]
    assert str(REPOSITORY) not in str(worker), "a worker runs what is installed"
    assert not [name for name in PLANTED if (upload / name).exists()]
    assert not (upload / "runs").exists()
    assert list((head.home / ".compiled" / "raytriever").rglob("*.nbi")), "compiled code would be lost with the upload"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_other_command_runs_as_a_job(
    head: Head, settings: list[str], tiny_dataset: Path, tiny_encoder: Path
) -> None:
    query = "what; touch pwned $(touch pwned) 'is it'"
    given: dict[str, list[str]] = {
        "prepare": ["--dataset", str(tiny_dataset), "--model", str(tiny_encoder), "--output", "data/letters"],
        "encode": ["--dataset", str(tiny_dataset), "--model", str(tiny_encoder), "--output", "embeddings/letters"],
        "mine": ["--dataset", str(tiny_dataset), "--method", "random", "--output", "negatives/letters"],
        "evaluate": f"--datasets {tiny_dataset} --model bm25 {tiny_encoder} --output results/letters".split(),
        "search": ["--dataset", str(tiny_dataset), "--model", str(tiny_encoder), query],
        "compare": ["results/letters", "--output", "pages/compared.html"],
    }
    for stage, words in given.items():
        code, out = head.by_ray(stage, *words)
        assert code == 0, f"{stage}: {out}"
        if "--output" in words:
            assert (head.home / words[words.index("--output") + 1]).exists(), stage
    assert not list(head.home.rglob("pwned"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_command_resumes_the_run_of_a_stopped_job(head: Head, settings: list[str]) -> None:
    words = [*settings, "--max-steps", "1500", "--eval-steps", "50", "--keep", "2"]
    assert head.by_ray("train", *words, "--output", "runs/undisturbed")[0] == 0
    checkpoints = head.home / "runs" / "stopped" / "checkpoints"
    job = ["--submission-id", "stopped", "--working-dir", ".", "--", "python", "jobs/train.py", *words]
    process = head.start("ray", "job", "submit", *job, "--output", "runs/stopped")
    wait_for(lambda: any(checkpoints.glob("step-*")), 200)
    assert head.ends("ray", "job", "stop", "stopped")[0] == 0
    out, _ = process.communicate(timeout=120)
    assert "run the same command again to continue" in out
    assert not (checkpoints.parent / "metrics.json").exists()
    assert max(int(path.name[5:]) for path in checkpoints.glob("step-*")) < 1500
    code, out = head.by_ray("train", *words, "--output", "runs/stopped")
    assert code == 0, out
    assert "Resumed from checkpoint" in out
    names = ("stopped", "undisturbed")
    figures = [Results.read(head.home / "runs" / name / "evaluation").models for name in names]
    assert figures[0] == figures[1]
    logged = [json.loads(line) for line in (checkpoints.parent / "steps.jsonl").read_text().splitlines()]
    steps = [entry["step"] for entry in logged if "loss" in entry["metrics"]]
    assert steps == list(range(1, 1501)), "a step was logged twice, or not at all"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cluster_that_wants_a_token_is_named_in_one_line(head: Head, settings: list[str]) -> None:
    code, out = head.ends(
        sys.executable,
        "jobs/train.py",
        *settings,
        "--output",
        str(head.home / "none"),
        RAY_ADDRESS=f"127.0.0.1:{head.port}",
        RAY_AUTH_MODE="disabled",
        MLFLOW_TRACKING_URI=f"sqlite:///{head.home}/own.db",  # the checkout's own is no database
    )
    assert code == 2, out
    assert "Traceback" not in out
    assert "RAY_AUTH_MODE=token" in out.splitlines()[-1]
