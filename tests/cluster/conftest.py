"""Whole runs of the command line, as a user gives it, on a tiny encoder and data set."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import ended, of_session, processes, wait_for

from raytriever.cluster.ray_session import ray_session

REPOSITORY = Path(__file__).parent.parent.parent
SUPPORT = REPOSITORY / "tests" / "support"


@pytest.fixture(scope="session", autouse=True)
def handled_interrupts() -> Iterator[None]:
    """Let SIGINT reach the started processes, which inherit the ignored signal of a shell's background job."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    """A session of Ray whose workers import the support of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SUPPORT), prepend=os.pathsep)  # for Ray's workers, which inherit it
        patch.setattr(sys, "path", [str(SUPPORT), *sys.path])
        with ray_session(num_workers=3):
            yield


@dataclass(frozen=True)
class CommandLine:
    """Starts stages of raytriever in a folder of their own, with a tracking database and a cache of their own."""

    folder: Path
    settings: list[str]

    @property
    def environment(self) -> dict[str, str]:
        own = {"MLFLOW_TRACKING_URI": f"sqlite:///{self.folder}/mlflow.db", "RAYTRIEVER_CACHE": f"{self.folder}/cache"}
        return {**os.environ, **own}

    def start(self, stage: str, *words: str, **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(REPOSITORY / "jobs" / f"{stage}.py"), *words]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, stage: str, *words: str, seconds: float = 400, code: int = 0, **variables: str) -> tuple[str, str]:
        """Run a stage to its end; see `ended`."""
        process = self.start(stage, *words, **variables)
        try:
            return ended(process, seconds, code)
        finally:
            for pid in of_session(process.pid) if process.poll() is None else ():
                os.kill(pid, signal.SIGKILL)

    def train(self, *words: str) -> subprocess.CompletedProcess[str]:
        process = self.start("train", *self.settings, *words)
        out, err = process.communicate(timeout=500)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def end(self, by: signal.Signals, when: Callable[[], object], *words: str) -> subprocess.Popen[str]:
        """Start a training, send it a signal as soon as `when` returns something true, and return the ended process."""
        process = self.start("train", *self.settings, *words)
        try:
            wait_for(when, 300, process)
            process.send_signal(by)
            process.wait(timeout=120)
        finally:
            for pid in of_session(process.pid) if process.poll() is None else ():
                os.kill(pid, signal.SIGKILL)
            process.stdout.close()  # type: ignore[union-attr]
            process.stderr.close()  # type: ignore[union-attr]
        return process


@pytest.fixture(scope="session")
def command_line_in(tiny_encoder: Path, tiny_dataset: Path) -> Callable[[Path], CommandLine]:
    """A command line in a folder, whose `train` has everything set but what a test adds."""
    settings = {
        "dataset": tiny_dataset,
        "model": tiny_encoder,
        "loss": "mw",
        "temperature": 0.05,
        "batch-size": 16,
        "learning-rate": 1e-3,
        "precision": "fp32",
        "eval-steps": 2,
        "negatives-per-query": 1,
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    return lambda folder: CommandLine(folder, words)


@pytest.fixture
def command_line(command_line_in: Callable[[Path], CommandLine], tmp_path: Path) -> Callable[..., CommandLine]:
    """A command line in the test's own folder."""
    return lambda: command_line_in(tmp_path)


@pytest.fixture
def study_text(tiny_dataset: Path, tiny_encoder: Path) -> str:
    """The file of a study of one seed with an untrained encoder and two trainings."""
    return f"""
seeds: 1
metrics: ndcg@10,auc
data_sets: {{Letters: {tiny_dataset}}}
settings:
  model: {{model: {tiny_encoder}}}
  training: {{batch_size: 16, max_steps: 6, learning_rate: 1e-3, precision: fp32, eval_steps: 3}}
variants:
  untrained: {tiny_encoder}
  InfoNCE: {{loss: {{loss: infonce, temperature: 0.05}}}}
  MW: {{loss: {{loss: mw, temperature: 0.05}}}}
claims:
- {{above: [MW, untrained], metrics: auc}}
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ended with the test, with all of their sessions."""
    running: list[subprocess.Popen[str]] = []
    yield running
    for process in running:
        for pid in processes("", lambda pid: os.getsid(pid) == process.pid):  # noqa: B023
            os.kill(pid, signal.SIGKILL)
        # Left open, they would be blamed on whichever test is running when they are collected.
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()
