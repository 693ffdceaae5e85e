"""The newest figures of a run as Ray's own metrics, for whoever scrapes the cluster: `ray_raytriever_NAME`.

Ray 2.60 exports what was set since its last report and forgets it 20 s later: a gauge that is set once is gone from the
scrape when a step takes longer than that. So what was told is told again, for as long as who told it is there; what has
ended or was killed leaves the scrape by itself. Rates are left to who asks: what is told are moments and totals.
"""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import ray
from ray.util.metrics import Gauge

from raytriever.config import STAGES, TRIALS

PREFIX = "raytriever_"
# Half of Ray's default interval between two reports.
AGAIN_SECONDS = 5.0


class Gauges:
    """Keeps a gauge at the newest value told of it; where no Ray runs there is nobody to tell.

    Args:
        run: the value of every gauge's tag `run`.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._told: dict[str, tuple[Gauge, float]] = {}
        self._lock = threading.Lock()
        self._again: threading.Thread | None = None

    def tell(self, name: str, value: float, about: str) -> None:
        """Set one gauge, `ray_raytriever_NAME{run=...}`; from any thread.

        Args:
            name: lower case, with underscores and the unit at the end.
            value: its newest value.
            about: what it is, for the scrape's HELP line; the first one told of a name stays.
        """
        if not ray.is_initialized():
            return
        with self._lock:
            gauge = self._told[name][0] if name in self._told else Gauge(PREFIX + name, about, tag_keys=("run",))
            self._told[name] = gauge, float(value)
            gauge.set(float(value), {"run": self._run})
            if self._again is None or not self._again.is_alive():
                self._again = threading.Thread(target=_again, args=(weakref.ref(self),), name="gauges", daemon=True)
                self._again.start()

    def set_again(self) -> bool:
        """Set all gauges to what was told last; answers whether there is anybody to tell."""
        with self._lock:
            if not ray.is_initialized():
                self._told.clear()  # another session has gauges of its own
                return False
            for gauge, value in self._told.values():
                gauge.set(value, {"run": self._run})
            return True


def run_of(folder: Path) -> str:
    """A run's name to who watches: its directory's, and for a stage or a trial that of the whole before it."""
    folder = folder.resolve()
    return f"{folder.parent.parent.name}/{folder.name}" if folder.parent.name in (STAGES, TRIALS) else folder.name


def _again(one: weakref.ref[Gauges]) -> None:
    """The thread: as long as there is a session, and somebody who may tell more."""
    waiting = threading.Event()
    while not waiting.wait(AGAIN_SECONDS):
        gauges = one()
        if gauges is None or not gauges.set_again():
            return
        del gauges
