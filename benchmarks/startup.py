"""The time of a run before its first optimiser step without measuring: imports, data, model, Ray, workers.

Run: `python benchmarks/startup.py [--json PATH]`, on 160 documents so that encoding and search take no time."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from ends import job, parser, report, reported
from raytriever.evaluation.annotation.annotated_dataset import write_beir

RUNS = 3


def write_dataset(folder: Path) -> None:
    """Write a data set of 160 pairs in BEIR layout."""
    documents = ({"_id": f"d{i}", "title": "", "text": f"the number {i} comes before {i + 1}"} for i in range(160))
    queries = ({"_id": f"q{i}", "text": f"what follows {i}"} for i in range(160))
    splits = {"train": range(96), "dev": range(96, 128), "test": range(128, 160)}
    folder.mkdir(parents=True)
    write_beir(
        folder, documents, queries, {name: [(f"q{i}", f"d{i}", 1) for i in some] for name, some in splits.items()}
    )


def seconds_to_first_step(folder: Path, name: str) -> float:
    """Return the seconds from the start of the process to the end of its first optimiser step."""
    command = [*job("train"), "--dataset", "pairs", "--max-steps", "1", "--batch-size", "16", "--run-name", name]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    began = time.time()
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    subprocess.run(command, check=True, cwd=folder, env=environment, **quiet)
    first = json.loads((folder / "runs" / name / "steps.jsonl").read_text().split("\n")[0])
    return float(first["milliseconds"] / 1000 - began)


def main() -> None:
    """Report the median of a few runs; the first run also creates the tracking database and compiles the loss."""
    arguments = parser(__doc__ or "").parse_args()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_dataset(folder / "pairs")
        times = [seconds_to_first_step(folder, f"run{number}") for number in range(RUNS)]
    ends = {
        "from train.py to the end of the first step, first time, seconds": reported(times[0]),
        "the same, later, median seconds": reported(sorted(times[1:])[len(times[1:]) // 2]),
    }
    report("startup", ends, arguments.json)


if __name__ == "__main__":
    main()
