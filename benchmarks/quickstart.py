"""The quickstart: its duration, stage by stage, and the gain of the training.

Run: `python benchmarks/quickstart.py [--json PATH]`. Every cache is cold; the installation is not counted. A stage
ends where the next one prints its first line."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from ends import End, at_most, job, own_places, parser, report, reported

# First words of the line that begins a stage, and the name of the stage.
STAGES = {
    "pydocs:": "data set",
    "training": "further steps, end of Ray",
    "evaluating BM25": "evaluation, report",
}


def run(command: list[str], folder: str, environment: dict[str, str]) -> list[tuple[str, float]]:
    """Run the job, print its lines, and return the end of each stage in seconds since the epoch."""
    stage, ends = "imports", []
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            for words, following in STAGES.items():
                if line.startswith(words):
                    ends.append((stage, time.time()))
                    stage = following
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return [*ends, (stage, time.time())]


def main() -> None:
    """Run the job in an empty folder and read its results."""
    arguments = parser(__doc__ or "").parse_args()
    with TemporaryDirectory() as folder:
        environment, command = own_places(folder) | {"NUMBA_CACHE_DIR": f"{folder}/compiled"}, job("train")
        times = []
        for _ in range(5):
            began = time.perf_counter()
            subprocess.run([*command, "--help"], check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - began)
        wall_began = time.time()
        ends = run([*command, "--loss", "mw", "--run-name", "quickstart"], folder, environment)
        seconds = ends[-1][1] - wall_began
        directory = Path(folder) / "runs" / "quickstart"
        models = json.loads((directory / "evaluation" / "results.json").read_text())["models"]
        (corpus,) = Path(folder).glob("cache/pydocs*/corpus.jsonl")
        documents = corpus.read_text().count("\n")
        steps = [json.loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]
    first = min(step["milliseconds"] for step in steps) / 1000
    ends = sorted([*ends, ("start of Ray, first step", first)], key=lambda end: end[1])
    begins = [wall_began, *(moment for _, moment in ends)]
    metrics = {name: row for name, sets in models.items() for row in sets.values()}
    after, before_training, bm25 = (metrics[name]["ndcg_at_10"] for name in ("after", "before", "bm25"))
    report(
        "quickstart",
        {
            "--help, seconds": at_most(sorted(times)[2], 1.5),
            "train.py with cold caches, seconds": at_most(seconds, 240),
            **{f"{stage}, seconds": reported(end - begin) for (stage, end), begin in zip(ends, begins, strict=False)},
            "documents": reported(documents),
            "steps": reported(max(step["step"] for step in steps)),
            "nDCG@10 of BM25": End(bm25, "below the encoder before", bm25 < before_training),
            "nDCG@10 before": End(before_training, "below the encoder after", before_training < after),
            "nDCG@10 after": reported(after),
            "AUC after minus before": reported(metrics["after"]["auc"] - metrics["before"]["auc"]),
        },
        arguments.json,
    )


if __name__ == "__main__":
    main()
