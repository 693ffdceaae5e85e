"""Validation of checkpoints: the cost for the steps during it, and a proof that it changes no step.

Run: `python benchmarks/evaluating.py [--json PATH]`. `jobs/train.py` trains MiniLM on paragraphs of SQuAD with the same
seed and number of steps: with the dev loss only; with validation by retrieval on the cores that train; and, from two
cores on, with the worker pinned to all cores but one and the evaluator pinned to that one. A validation without cores
of its own slows training down, so on two cores the cost of a step has no threshold."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from ends import End, at_least, at_most, exactly, own_places, parser, report, reported
from refresh import subset, training

OWN_CORES = 4
WORKER, EVALUATOR = "ray::RayTrainWorker", "ray::CheckpointJob"


def train(folder: Path, name: str, more: list[str], steps: int, pins: Mapping[str, set[int]]) -> tuple[Path, float]:
    """Train once with processes pinned to cores by their names; return the run directory and the seconds."""
    run = folder / name
    words, environment = training(folder, run, [*more, "--patience", str(steps)], steps), own_places(folder)
    began = time.perf_counter()
    process = subprocess.Popen(words, env=environment, cwd=folder, stdout=subprocess.DEVNULL, start_new_session=True)
    over = threading.Event()
    pinner = threading.Thread(target=pin, args=(process.pid, pins, over))
    pinner.start()
    try:
        if process.wait():
            raise SystemExit(f"{name} ended with code {process.returncode}")
    finally:
        over.set()
        pinner.join()
    return run, time.perf_counter() - began


def pin(session: int, pins: Mapping[str, set[int]], over: threading.Event) -> None:
    """Keep every thread of the named processes of a session on its cores."""
    while pins and not over.wait(0.5):
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if not entry.name.isdigit() or os.getsid(int(entry.name)) != session:
                    continue
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
                cores = next((cores for name, cores in pins.items() if line.startswith(name)), None)
                for task in (entry / "task").iterdir() if cores else ():
                    os.sched_setaffinity(int(task.name), cores)


def logged_events(run: Path) -> list[tuple[int, int, dict[str, float]]]:
    """Return the logged events: the step, the time in milliseconds, and the figures."""
    lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    return [(line["step"], line["milliseconds"], line["metrics"]) for line in lines]


def losses(run: Path) -> dict[int, float]:
    """Return the loss of every step."""
    return {step: measured["loss"] for step, _, measured in logged_events(run) if "loss" in measured}


def costs(run: Path) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return the seconds of the steps alone, of those during a validation, of the validations, and of waiting."""
    lines = logged_events(run)
    spans = [
        (at - 1000 * measured["evaluation_seconds"], at)
        for _, at, measured in lines
        if "evaluation_seconds" in measured
    ]
    alone, during, waited = [], [], []
    for step, at, measured in lines:
        if "loss" not in measured or step <= 3:  # the first steps allocate memory
            continue
        began = at - 1000 * measured["step_seconds"]
        part = sum(max(0.0, min(at, end) - max(began, start)) for start, end in spans) / max(1.0, at - began)
        (during if part > 0.5 else alone).append(measured["step_seconds"])
        waited.append(measured.get("evaluation_wait_seconds", 0.0))
    return alone, during, [(end - start) / 1000 for start, end in spans], waited


def ends_of(title: str, run: Path, target: float | None) -> dict[str, End]:
    """Return the costs of the validations of one run."""
    alone, during, seconds, waited = costs(run)
    ratio = median(during) / median(alone) if alone and during else float("nan")
    return {
        f"{title}: evaluations": reported(len(seconds)),
        f"{title}: an evaluation, median seconds": reported(median(seconds)),
        f"{title}: steps alone": reported(len(alone)),
        f"{title}: steps during a validation": at_least(len(during), 1),
        f"{title}: a step alone, seconds": reported(median(alone) if alone else float("nan")),
        f"{title}: a step during a validation, seconds": reported(median(during) if during else float("nan")),
        f"{title}: during a validation / alone": at_most(ratio, target) if target else reported(ratio),
        f"{title}: steps waited, seconds in all": reported(sum(waited)),
    }


def main() -> None:
    """Run the three trainings and report."""
    command = parser(__doc__ or "")
    command.add_argument("--documents", type=int, default=1200, help="paragraphs that are trained on")
    command.add_argument("--steps", type=int, default=36)
    command.add_argument("--every", type=int, default=12, help="steps between two evaluations")
    command.add_argument("--corpus", type=int, default=500, help="documents of the dev corpus besides the judged ones")
    arguments = command.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    own = len(cores) >= OWN_CORES
    validations = ["--eval-steps", str(arguments.every)]
    evaluated = [*validations, "--best-metric", "ndcg_at_10", "--eval-corpus", str(arguments.corpus)]
    results: dict[str, End] = {}
    with TemporaryDirectory() as name:
        folder = Path(name)
        subset(folder / "squad", arguments.documents)
        plain, seconds = train(folder, "plain", validations, arguments.steps, {})
        results["whole run without evaluations, seconds"] = reported(seconds)
        shared, seconds = train(folder, "shared", evaluated, arguments.steps, {})
        results["whole run, shared cores, seconds"] = reported(seconds)
        same = losses(plain) == losses(shared)
        results["losses are those without evaluations"] = exactly(float(same), 1)
        results |= ends_of("shared cores", shared, 1.1 if own else None)
        if len(cores) > 1:
            pins = {WORKER: set(cores[:-1]), EVALUATOR: {cores[-1]}}
            pinned, seconds = train(folder, "pinned", evaluated, arguments.steps, pins)
            results["whole run, pinned, seconds"] = reported(seconds)
            results |= ends_of("pinned", pinned, 1.1)
    report("evaluating", results, arguments.json)


if __name__ == "__main__":
    main()
