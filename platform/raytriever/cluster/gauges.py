"""The newest figures of a run as Ray's own metrics, for whoever scrapes the cluster: `ray_raytriever_NAME`."""

from __future__ import annotations

import time
from collections.abc import Mapping

import ray
from ray.util.metrics import Gauge

PREFIX = "raytriever_"


class Gauges:
    """Sets a gauge for each figure that is told; where no Ray runs there is nobody to tell.

    Args:
        run: the value of every gauge's tag `run`.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._gauges: dict[str, Gauge] = {}
        self._saved: float | None = None

    def saved(self) -> None:
        """A checkpoint is about to be committed."""
        self._saved = time.monotonic()

    def set(self, step: int, measured: Mapping[str, float]) -> None:
        """Take the figures of a step, whether it is done for the first time or not."""
        figures = {"step": float(step), **measured}
        if self._saved is not None:
            figures["checkpoint_age_seconds"] = time.monotonic() - self._saved
        for name, value in figures.items():
            self.tell(name, value, f"{name.replace('_', ' ')} of the newest step of training")

    def tell(self, name: str, value: float, about: str) -> None:
        """Set one gauge, `ray_raytriever_NAME{run=...}`; from any thread.

        Args:
            name: lower case, with underscores and the unit at the end.
            value: its newest value.
            about: what it is, for the scrape's HELP line; the first one told of a name stays.
        """
        if not ray.is_initialized():
            return
        if name not in self._gauges:
            self._gauges[name] = Gauge(PREFIX + name, about, tag_keys=("run",))
        self._gauges[name].set(value, {"run": self._run})
