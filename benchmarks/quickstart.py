"""The quickstart: its duration, and the gain of the training.

Run: `python benchmarks/quickstart.py [--json PATH]`. Every cache is cold; the installation is not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from ends import End, parser, report

REPOSITORY = Path(__file__).parent.parent


def main() -> None:
    """Run the job in an empty folder and read its results."""
    arguments = parser(__doc__ or "").parse_args()
    with TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "RAYTRIEVER_CACHE": f"{folder}/cache",
            "NUMBA_CACHE_DIR": f"{folder}/compiled",
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        }
        command = [sys.executable, str(REPOSITORY / "jobs" / "train.py")]
        times = []
        for _ in range(5):
            began = time.perf_counter()
            subprocess.run([*command, "--help"], check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - began)
        began, wall_began = time.perf_counter(), time.time()
        subprocess.run([*command, "--loss", "mw", "--run-name", "quickstart"], check=True, cwd=folder, env=environment)
        seconds = time.perf_counter() - began
        run = Path(folder) / "runs" / "quickstart"
        metrics = json.loads((run / "metrics.json").read_text())
        first = json.loads((run / "steps.jsonl").read_text().split("\n")[0])
    after, before, bm25 = (metrics[name]["ndcg_at_10"] for name in ("after", "before", "bm25"))
    report(
        "quickstart",
        {
            "--help, seconds": End(sorted(times)[2], "at most 1.5", sorted(times)[2] <= 1.5),
            "train.py with cold caches, seconds": End(seconds, "at most 240", seconds <= 240),
            "to the first step, data set and measure before included, seconds": End(
                first["milliseconds"] / 1000 - wall_began, "reported", True
            ),
            "nDCG@10 after, over before": End(after / before, "above 1", after > before),
            "nDCG@10 after, over BM25": End(after / bm25, "above 1", after > bm25),
            "AUC after minus before": End(metrics["after"]["auc"] - metrics["before"]["auc"], "reported", True),
        },
        arguments.json,
    )


if __name__ == "__main__":
    main()
