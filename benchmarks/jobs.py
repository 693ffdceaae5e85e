"""The cost of submitting a run to a cluster: seconds from the command to the end of the first step.

Run: `python benchmarks/jobs.py [--json PATH] [--rounds 3]`. `ray start` starts a head with its own ports and folder.
The same run of `jobs/train.py` is started in three ways in turn, one at a time: as a direct command, which starts its
own Ray; as a direct command that joins the head; and by `ray job submit --working-dir .`. Costs that occur once (a
tracking database, a prepared data set, compiled code) occur before the first round. The last round uploads a checkout
with one changed file, as after an edit; Ray then reuses nothing of the earlier uploads.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from ends import End, parser, report
from startup import REPOSITORY, write_dataset

UPLOADED = ["platform", "jobs", ".gitignore", ".rayignore", "pyproject.toml", "constraints.txt"]
TARGET = 5.0
WAYS = ("direct", "joined", "submitted")


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def copy_checkout(to: Path) -> Path:
    """Copy the files that a submission uploads to a folder."""
    for name in UPLOADED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, to)
    return to


@contextmanager
def head(folder: Path) -> Iterator[dict[str, str]]:
    """Start a head with four CPUs on this machine; return the environment of its clients."""
    token = folder / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(32))
    port, dashboard = free_port(), free_port()
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}",
        "RAYTRIEVER_HOME": str(folder / "home"),
        "RAYTRIEVER_CACHE": str(folder / "cache"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
    }
    environment.pop("RAY_ADDRESS", None)
    others = [f"--ray-client-server-port={free_port()}", f"--dashboard-agent-listen-port={free_port()}"]
    own = [f"--port={port}", f"--dashboard-port={dashboard}", f"--temp-dir={folder / 'ray'}", *others]
    with (folder / "log").open("w") as log:
        started = subprocess.Popen(
            ["ray", "start", "--head", "--block", "--num-cpus=4", "--disable-usage-stats", *own],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        while "Ray runtime started" not in (folder / "log").read_text():
            if started.poll() is not None:
                raise RuntimeError((folder / "log").read_text())
            time.sleep(0.1)
        yield environment | {"JOINED": f"127.0.0.1:{port}"}
    finally:
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and str(folder / "ray").encode() in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
        started.wait()


def seconds_to_first_step(way: str, checkout: Path, folder: Path, environment: dict[str, str], name: str) -> float:
    """Return the seconds from the command to the end of the first step."""
    run = folder / "runs" / name
    words = ["jobs/train.py", "--dataset", str(folder / "pairs"), "--max-steps", "1", "--batch-size", "16"]
    words += ["--output", str(run)]
    if way == "submitted":
        command = ["ray", "job", "submit", "--working-dir", ".", "--", "python", *words]
    else:
        command = [sys.executable, *words]
    more = {"RAY_ADDRESS": environment["JOINED"]} if way == "joined" else {}
    began = time.time()
    done = subprocess.run(command, cwd=checkout, env=environment | more, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{way}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    first = json.loads((run / "steps.jsonl").read_text().split("\n")[0])
    seconds = float(first["milliseconds"] / 1000 - began)
    size = re.search(r"upload: .*", done.stdout)
    print(f"{name}: {seconds:.1f} s{', ' + size[0] if size else ''}", file=sys.stderr, flush=True)
    return seconds


def main() -> None:
    """Measure and report."""
    line = parser((__doc__ or "").splitlines()[0])
    line.add_argument("--rounds", type=int, default=3, help="of one run each way")
    options = line.parse_args()
    with TemporaryDirectory(prefix="rt", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        write_dataset(folder / "pairs")
        checkout = copy_checkout(folder / "checkout")
        with head(folder) as environment:
            for way in WAYS:
                seconds_to_first_step(way, checkout, folder, environment, f"warm-{way}")
            durations: dict[str, list[float]] = {way: [] for way in WAYS}
            for number in range(options.rounds):
                for way in WAYS:
                    name = f"{number}-{way}"
                    durations[way].append(seconds_to_first_step(way, checkout, folder, environment, name))
            with (checkout / "platform" / "raytriever" / "__init__.py").open("a") as module:
                module.write("\n# changed\n")
            changed = seconds_to_first_step("submitted", checkout, folder, environment, "changed-submitted")
    over = {way: median(a - b for a, b in zip(durations["submitted"], durations[way], strict=True)) for way in WAYS[:2]}
    ends = {
        "submitted over the direct command, to the first step (s)": End(
            over["direct"], f"at most {TARGET:g}", over["direct"] <= TARGET
        ),
        "submitted over a command that joins the same head (s)": End(over["joined"], "reported", True),
        "submitted after an edit, over the direct command (s)": End(
            changed - median(durations["direct"]),
            f"at most {TARGET:g}",
            changed - median(durations["direct"]) <= TARGET,
        ),
        **{f"{way}: to the first step (s)": End(median(durations[way]), "reported", True) for way in WAYS},
    }
    report("jobs, MiniLM, 160 documents", ends, options.json)


if __name__ == "__main__":
    main()
