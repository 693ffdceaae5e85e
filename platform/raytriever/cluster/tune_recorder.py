"""A recorder of one trial among many: no bar of its own, and its lines say whose they are."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from raytriever.cluster.recorder import Recorder
from raytriever.tracking.progress import Progress
from raytriever.tracking.tracker import LastingTracker


class TrialRecorder(Recorder):
    """Hears the news of a trial.

    Args:
        tracker: of the trial.
        folder: its run directory.
        name: of the trial.
        say: hears its notices.
    """

    def __init__(self, tracker: LastingTracker, folder: Path, name: str, say: Callable[[str], None]) -> None:
        super().__init__(tracker, folder, total_steps=0)
        self._name, self._tell_person = name, say

    def _say(self, text: str) -> None:
        if not text.startswith("step "):  # looks are too many to be told of all trials
            self._tell_person(f"trial {self._name}: {text}")

    def _begin_phase(self, text: str) -> None:
        """Report nothing: the sweep reports how many trials run."""

    def _bar(self, done: int) -> Progress:
        if self._progress is None:
            self._progress = Progress("train", 0, "step", stream=io.StringIO())
        return self._progress
