"""Tracking: the cost of logging for the steps, and of an MLflow server that is down for a minute.

Run: `python benchmarks/tracking.py [--json PATH] [--steps 1000] [--down 60]`. First MLflow, W&B (offline), TensorBoard
and Trackio together: the processor seconds of the thread that trains, and of the threads that send. Then MLflow alone:
a real `mlflow server` on this machine; steps of real arithmetic, each followed by the log of a training step (20
figures; a checkpoint every 50 steps, before which all must be stored). The steps log on their own thread, which is
harder than in a run: there a step sends to the driver and does not wait. Blocks with and without logging alternate, so
that other load affects both. Then the server is killed, stays down, and is started again; at the end every point in
the server is counted."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import mean, median

import numpy as np

from ends import End, at_most, exactly, parser, report, reported
from raytriever.cluster.events_and_restarts import CheckpointEvent, StepEvent
from raytriever.experiments.run.event_recorder import Recorder
from raytriever.tracking.mlflow_tracker import MlflowServer
from raytriever.tracking.run_state import IDENTITY
from raytriever.tracking.spool import Spool
from raytriever.tracking.tracker_names import open_trackers

METRICS, BLOCK, SAVE_EVERY = 20, 50, 50
STEP_SECONDS = 0.03
FRACTION, WAIT = 1.0, 100.0


class Server:
    """Command `mlflow server` over one database, which can be started several times."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._words = ["--backend-store-uri", f"sqlite:///{folder}/server.db"]
        self._words += ["--artifacts-destination", str(folder / "artifacts")]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(self._port)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([*command, *self._words], start_new_session=True, **quiet)
        while True:
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=2).close()
                return
            except OSError:
                time.sleep(0.2)

    def kill(self) -> None:
        """Kill the server, as a power failure would."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class Step:
    """Arithmetic of about `STEP_SECONDS` on one core."""

    def __init__(self) -> None:
        self._left, self._right = (np.random.default_rng(seed).normal(size=(192, 192)) for seed in (1, 2))
        self._rounds = 1
        while (seconds := self._processor_seconds()) < STEP_SECONDS / 2:
            self._rounds *= 2
        self._rounds = max(1, round(self._rounds * STEP_SECONDS / seconds))

    def _processor_seconds(self) -> float:
        """Return the processor seconds of a step: the fewest of several."""
        return min(-time.thread_time() + (self(), time.thread_time())[1] for _ in range(5))

    def __call__(self) -> float:
        """Compute; return the seconds."""
        began = time.perf_counter()
        for _ in range(self._rounds):
            self._left @ self._right
        return time.perf_counter() - began


def log_step(recorder: Recorder, step: int) -> float:
    """Log the figures of a step; return the seconds that the step waited."""
    metrics = {"loss": 1 / step, **{f"figure_{number}": step / (number + 7) for number in range(1, METRICS)}}
    began = time.perf_counter()
    recorder.record(StepEvent(step, metrics))
    if step % SAVE_EVERY == 0:
        recorder.record(CheckpointEvent(step))
    return time.perf_counter() - began


def begin(server: Server, folder: Path, *others: str) -> Spool:
    """Open a run that is tracked by a server, and by other trackers."""
    folder.mkdir()
    return Spool.open([MlflowServer(server.uri), *open_trackers(others)], folder, folder.name)


def processor_costs(server: Server, folder: Path, steps: int) -> dict[str, End]:
    """Measure the processor seconds of logging to all trackers, in this process, as a fraction of the steps' time."""
    os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": str(folder.parent), "TRACKIO_DIR": str(folder / "trackio")}
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / "events")
    step, spool = Step(), begin(server, folder, "wandb", "tensorboard", "trackio")
    seconds = computing = logging = 0.0
    with Recorder(spool, folder, steps) as recorder:
        before = time.process_time()
        for number in range(1, steps + 1):
            began = time.thread_time()
            seconds += step()
            computed = time.thread_time()
            log_step(recorder, number)
            computing, logging = computing + computed - began, logging + time.thread_time() - computed
    spool.finish("FINISHED")
    sending = time.process_time() - before - computing - logging
    lost = missing(server, folder, steps)
    whole, title = steps * STEP_SECONDS, f"of {1000 * STEP_SECONDS:g} ms a step (%)"
    return {
        "four trackers: a step, mean (ms)": reported(1000 * seconds / steps),
        f"processor seconds of the thread that trains, {title}": at_most(100 * logging / whole, FRACTION),
        f"processor seconds of the four threads that send, {title}": reported(100 * sending / whole),
        "points that are not in MLflow, or twice": exactly(lost, 0),
    }


def costs(server: Server, folder: Path, steps: int) -> dict[str, End]:
    """Compare the seconds of steps that log with those of steps that do not."""
    step, spool = Step(), begin(server, folder)
    logging, bare, waits = list[float](), list[float](), list[float]()
    with Recorder(spool, folder, steps) as recorder:
        for block in range(0, steps, BLOCK):
            bare += [step() for _ in range(BLOCK)]
            for number in range(block + 1, block + BLOCK + 1):
                seconds = step()
                waits.append(log_step(recorder, number))
                logging.append(seconds + waits[-1])
    spool.finish("FINISHED")
    waited = 100 * sum(waits) / sum(logging)
    slower = [100 * (mean(logging[at : at + BLOCK]) / mean(bare[at : at + BLOCK]) - 1) for at in range(0, steps, BLOCK)]
    lost = missing(server, folder, len(logging))
    return {
        "a step, median (ms)": reported(1000 * median(bare)),
        f"share of the steps that wait because {METRICS} figures are logged (%)": at_most(waited, FRACTION),
        "steps that log, slower than others, median block (%)": reported(median(slower)),
        "points of these steps that are not in the server, or twice": exactly(lost, 0),
    }


def outage(server: Server, folder: Path, down: float) -> dict[str, End]:
    """Run steps while the server is killed and started again."""
    step, spool = Step(), begin(server, folder)
    waits, number, away, back = list[float](), 0, 0.0, 0.0
    began = time.monotonic()
    with Recorder(spool, folder, 1) as recorder:
        while not back or time.monotonic() < back + 15:
            if not away and time.monotonic() > began + 10:
                server.kill()
                away = time.monotonic()
            if away and not back and time.monotonic() > away + down:
                starting = time.monotonic()
                server.start()  # no step is done meanwhile, so none of its waits is hidden
                back = time.monotonic()
                print(f"server away for {starting - away:.0f} s and {back - starting:.0f} s of starting")
            step()
            number += 1
            waits.append(log_step(recorder, number))
    spool.finish("FINISHED")
    lost = missing(server, folder, number)
    longest = 1000 * max(waits)
    return {
        f"server down for {down:g} s: longest wait of a step (ms)": at_most(longest, WAIT),
        f"points of {number} steps that are not in the server, or twice": exactly(lost, 0),
    }


def missing(server: Server, folder: Path, steps: int) -> int:
    """Count the points that the server does not have, has more than once, or has with another value."""
    client = MlflowServer(server.uri).client
    run_id = json.loads((folder / IDENTITY).read_text())["tracking_id"]
    wrong = 0
    for name in ("loss", *(f"figure_{number}" for number in range(1, METRICS))):
        there = [point.step for point in client.get_metric_history(run_id, name)]
        wrong += len(set(range(1, steps + 1)) ^ set(there)) + len(there) - len(set(there))
    return wrong


def main() -> None:
    """Measure and report."""
    line = parser((__doc__ or "").splitlines()[0])
    line.add_argument("--steps", type=int, default=1000, help=f"steps that log, a multiple of {BLOCK}")
    line.add_argument("--down", type=float, default=60.0, help="seconds without the server")
    options = line.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        server = Server(Path(temporary))
        try:
            server.start()
            ends = processor_costs(server, Path(temporary) / "all", options.steps)
            ends |= costs(server, Path(temporary) / "steps", options.steps)
            ends |= outage(server, Path(temporary) / "outage", options.down)
        finally:
            server.kill()
    report(f"{METRICS} figures a step, trackers on this machine", ends, options.json)


if __name__ == "__main__":
    main()
