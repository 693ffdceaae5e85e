"""The duration of all studies with a recipe at scale `smoke`, each a command from start to table.

Run: `python benchmarks/studies.py [--json PATH] [--only NAME ...] [--keep DIR]`. They run one after another on this
machine, with an empty cache and tracking database of their own, so the first one also builds the embedded data set. A
study is complete when its command succeeded and wrote its table, its page and the runs of all its arms.
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
from raytriever.studies.recipes import STUDIES

REPOSITORY = Path(__file__).parent.parent
MINUTES = 15


def smoke(name: str, folder: Path) -> tuple[float, bool]:
    """Run one study; return its seconds, and True if its results are complete."""
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "RAYTRIEVER_CACHE": str(folder / "cache"),
    }
    output = folder / name
    command = [sys.executable, str(REPOSITORY / "jobs" / "study.py"), name, "--scale", "smoke", "--output", str(output)]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        print(f"{name}: exit code {done.returncode}\n{done.stderr[-2000:]}", file=sys.stderr)
        return seconds, False
    results = json.loads((output / "results.json").read_text())
    finished = len(list(output.glob("arms/*/seed-*/metrics.json")))
    left = all((output / file).is_file() for file in ("table.md", "table.tex", "study.md"))
    print(f"{name}: {seconds:.1f} s, {finished} trainings", file=sys.stderr, flush=True)
    return seconds, left and finished == len(results["trainings"])


def main() -> None:
    """Run the studies and report."""
    own = parser(__doc__ or "")
    own.add_argument("--only", nargs="+", choices=STUDIES, default=STUDIES, metavar="NAME", help="some of them")
    own.add_argument("--keep", type=Path, metavar="DIR", help="where the studies are kept")
    arguments = own.parse_args()
    ends: dict[str, End] = {}
    with TemporaryDirectory() as temporary:
        folder = (arguments.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.only:
            seconds, whole = smoke(name, folder)
            ends[f"{name} (s)"] = End(seconds, "reported, and complete", whole)
    total = sum(end.value for end in ends.values()) / 60
    title = f"all {len(STUDIES)} at smoke (min)" if len(arguments.only) == len(STUDIES) else "these at smoke (min)"
    ends[title] = End(total, f"at most {MINUTES}", total <= MINUTES and all(end.holds for end in ends.values()))
    report("studies", ends, arguments.json)


if __name__ == "__main__":
    main()
