"""The whole training on one GPU, once undisturbed, and once killed in the middle and started again: the same bits?

Run: `PYTHONPATH=platform python benchmarks/on_gpu/mission.py FOLDER [--strategies zero1,zero3,fsdp2] [--output DIR]`,
after `mission_data.py FOLDER`. Each strategy trains with the MW loss, bf16 products and a refresh of the hard negatives
that training waits for, under Ray Train, at the same time as the others. The second run gets SIGKILL, all its processes
too, once it has a checkpoint. Then the same command continues. The weights of both runs must be equal bit for bit."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
STEPS, SAVED, REFRESHED = 24, 6, 8
# Kill once this many steps are done: after a checkpoint and a refresh.
KILLED = 14


def main() -> int:
    """Run the strategies, print a line for each, and return the number of those that failed."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--shape", default="minilm")
    options.add_argument("--strategies", default="zero1,zero3,fsdp2")
    options.add_argument("--batch-size", type=int, default=256)
    options.add_argument("--output", type=Path)
    arguments = options.parse_args()
    ends = []
    with ThreadPoolExecutor() as pool:
        trainings = [
            Training(arguments.folder, arguments.shape, name, arguments.batch_size)
            for name in arguments.strategies.split(",")
        ]
        runs = [
            (training, pool.submit(training.peace), pool.submit(training.kill_and_continue)) for training in trainings
        ]
        for item, peace, killed in runs:
            end = {"strategy": item.strategy, **peace.result(), **killed.result()}
            end["same bits"] = item.digest("peace") == item.digest("killed")
            ends.append(end)
            print(" | ".join(f"{key} {value}" for key, value in end.items()), flush=True)
            if arguments.output:
                (arguments.output / "mission.json").write_text(json.dumps(ends, indent=1))
    return sum(not end["same bits"] for end in ends)


class Training:
    """Command of a training, in a session of its own."""

    def __init__(self, folder: Path, shape: str, strategy: str, batch: int) -> None:
        self.folder, self.strategy = folder, strategy
        self.words = [
            *("--loss", "mw", "--loss-precision", "bf16", "--strategy", strategy, "--tracker", "none"),
            *("--dataset", str(folder / "data"), "--model", str(folder / shape), "--batch-size", str(batch)),
            *("--query-length", "32", "--passage-length", "64", "--negatives-per-query", "2"),
            *("--max-steps", str(STEPS), "--eval-steps", str(SAVED), "--checkpoint-steps", str(SAVED)),
            *("--refresh-every", str(REFRESHED), "--refresh-mode", "sync", "--refresh-pool", "1"),
        ]

    def peace(self) -> dict[str, object]:
        """Train undisturbed."""
        began = time.monotonic()
        code = self.start("peace").wait()
        return {"seconds": round(time.monotonic() - began), **self._failure("peace", code)}

    def kill_and_continue(self) -> dict[str, object]:
        """Train, kill the command and all of its processes in the middle, and start it again."""
        began = time.monotonic()
        process = self.start("killed")
        while process.poll() is None and self.steps("killed") < KILLED:
            time.sleep(0.05)
        killed = self.steps("killed")
        if process.poll() is None:
            # The whole session: Ray's processes and the workers too, as when a machine is switched off.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.end_session(process.pid)
        code = self.start("killed").wait()
        ends = {"killed at step": killed, "seconds with the kill": round(time.monotonic() - began)}
        return {**ends, **self._failure("killed", code)}

    def _failure(self, name: str, code: int) -> dict[str, object]:
        return {f"exit code of {name}": code, "last lines": self.last_lines(name)} if code else {}

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start the command for a run directory; its lines are appended to `NAME.log`."""
        with self._path(name, ".log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(REPOSITORY / "jobs" / "train.py"), *self.words, "--output", self._path(name)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def steps(self, name: str) -> int:
        """Return the number of steps that a run has recorded."""
        with suppress(FileNotFoundError):
            return len((self._path(name) / "steps.jsonl").read_bytes().splitlines())
        return 0

    def digest(self, name: str) -> str:
        """Return the digest of the weights of the last step."""
        files = sorted((self._path(name) / "model").rglob("*.safetensors"))
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest() if files else f"none of {name}"

    def last_lines(self, name: str) -> str:
        """Return the end of what a run printed."""
        return self._path(name, ".log").read_text(errors="replace")[-1_500:]

    def end_session(self, session: int) -> None:
        """End what a killed command left."""
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                if entry.name.isdigit() and os.getsid(int(entry.name)) == session:
                    os.kill(int(entry.name), signal.SIGKILL)

    def _path(self, name: str, suffix: str = "") -> Path:
        return self.folder / f"{self.strategy}-{name}{suffix}"


if __name__ == "__main__":
    sys.exit(main())
