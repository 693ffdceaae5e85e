"""What the twelve studies of the papers' tables take at scale `smoke`, each a command from start to table.

Run: `python benchmarks/studies.py [--json PATH] [--only NAME ...] [--keep DIR]`. One after another on this machine,
with a cache of their own that is empty at first and a tracking database of their own, so that the first pays for
building the embedded data set. A study counts when it ended well and left its table, its page and the runs of all its
arms.
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
    """Seconds of one study, and whether it left what it should."""
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
    """Run them all."""
    own = parser(__doc__ or "")
    own.add_argument("--only", nargs="+", choices=STUDIES, default=STUDIES, metavar="NAME", help="some of them")
    own.add_argument("--keep", type=Path, metavar="DIR", help="where the studies shall stay")
    arguments = own.parse_args()
    ends: dict[str, End] = {}
    with TemporaryDirectory() as place:
        folder = (arguments.keep or Path(place)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.only:
            seconds, whole = smoke(name, folder)
            ends[f"{name} (s)"] = End(seconds, "told, and whole", whole)
    total = sum(end.value for end in ends.values()) / 60
    title = "all twelve at smoke (min)" if len(arguments.only) == len(STUDIES) else "these at smoke (min)"
    ends[title] = End(total, f"at most {MINUTES}", total <= MINUTES and all(end.holds for end in ends.values()))
    report("studies", ends, arguments.json)


if __name__ == "__main__":
    main()
