"""What the driver does with the news of a run: a progress bar for the person, batches of points for the tracker,
gauges for whoever watches the cluster.

Every batch the tracker took is appended to `steps.jsonl` in the run directory, a line a step. A continued run reads
it back, so that its curves are whole and no step is told to the tracker twice.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from raytriever.cluster.gauges import Gauges
from raytriever.cluster.news import News, Notice, Saving
from raytriever.config import STAGES
from raytriever.storage import disk_errors
from raytriever.tracking.progress import Progress
from raytriever.tracking.tracker import Point, Tracker

FLUSH_SECONDS = 5.0
STEPS = "steps.jsonl"


class Recorder:
    """Hears the news of training; used as a context so that nothing heard is left unlogged.

    Args:
        tracker: where the numbers go.
        folder: the run directory.
        total_steps: for the progress bar.
    """

    def __init__(self, tracker: Tracker, folder: Path, total_steps: int) -> None:
        self._tracker, self._file, self._total = tracker, folder / STEPS, total_steps
        self._lines, self._torn = _read(self._file)
        self._told = {(line["step"], name) for line in self._lines for name in line["measured"]}
        self._waiting: list[dict[str, Any]] = []
        self._flushed = time.monotonic()
        self._progress: Progress | None = None
        self._gauges = Gauges(_run_of(folder))

    def curve(self, name: str) -> list[tuple[int, float]]:
        """The values of one metric by step, of this call and of earlier ones."""
        points = {line["step"]: line["measured"][name] for line in self._lines if name in line["measured"]}
        return sorted(points.items())

    def hear(self, item: News) -> None:
        """Take one item of news; when a checkpoint is about to be committed, all that was heard is logged first."""
        if isinstance(item, Notice):
            self._say(item.text)
            return
        if isinstance(item, Saving):
            self.flush()
            self._gauges.saved()
            return
        self._gauges.set(item.step, item.measured)
        fresh = {name: value for name, value in item.measured.items() if (item.step, name) not in self._told}
        if fresh:
            self._told |= {(item.step, name) for name in fresh}  # a restarted group of workers repeats steps
            milliseconds = time.time_ns() // 1_000_000
            self._waiting.append({"step": item.step, "milliseconds": milliseconds, "measured": fresh})
        if "dev_loss" in item.measured:
            self._say(f"step {item.step}: dev loss {item.measured['dev_loss']:.5g}")
        else:
            self._bar(item.step - 1).reach(item.step, **glance(item.measured))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Log what has gathered, in one request."""
        lines, self._waiting = self._waiting, []
        self._flushed = time.monotonic()
        if not lines:
            return
        self._tracker.log(
            [
                Point(name, value, line["step"], line["milliseconds"])
                for line in lines
                for name, value in line["measured"].items()
            ]
        )
        self._lines += lines
        with disk_errors(self._file), self._file.open("a", encoding="utf-8") as stream:
            stream.write("\n" if self._torn else "")
            stream.writelines(json.dumps(line) + "\n" for line in lines)
        self._torn = False

    def _say(self, text: str) -> None:
        if self._progress is None:
            print(text, file=sys.stderr, flush=True)
        else:
            self._progress.say(text)

    def _bar(self, done: int) -> Progress:
        if self._progress is None:
            self._progress = Progress("train", self._total, "step", done)
            self._progress.__enter__()
        return self._progress

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.__exit__(kind, error, trace)
        self.flush()


def glance(measured: Mapping[str, float]) -> dict[str, float]:
    """The figures of a step worth a glance, those that matter most first, to three digits."""
    figures = {
        "loss": measured["loss"],
        "auc": measured.get("batch_auc"),
        "s/step": measured.get("step_seconds"),
        "pairs/s": measured.get("queries_per_second"),
        "wait %": None,
    }
    if "data_wait_seconds" in measured and measured.get("step_seconds"):
        figures["wait %"] = 100 * measured["data_wait_seconds"] / measured["step_seconds"]
    return {name: float(f"{value:.3g}") for name, value in figures.items() if value is not None}


def _run_of(folder: Path) -> str:
    """The run's name to who watches: its directory's, and for a stage that of the whole before it."""
    folder = folder.resolve()
    return f"{folder.parent.parent.name}/{folder.name}" if folder.parent.name == STAGES else folder.name


def _read(file: Path) -> tuple[list[dict[str, Any]], bool]:
    """The lines of an earlier call, and whether the last was torn by its end."""
    texts = file.read_text(encoding="utf-8").split("\n") if file.is_file() else [""]
    lines = []
    for text in texts:
        with suppress(json.JSONDecodeError):
            lines.append(json.loads(text))
    return lines, bool(texts[-1])
