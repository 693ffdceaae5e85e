"""What a run tells whoever watches the cluster, beside the figures of its steps."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from raytriever.cluster.gauges import Gauges, run_of
from raytriever.errors import LossInputError
from raytriever.parallel.strategy import NotFiniteError

_STEP = "step_timestamp_seconds", "when the newest step of training was heard of; its beginning before the first"
_CHECKPOINT = "checkpoint_timestamp_seconds", "when the newest checkpoint was committed; the beginning before the first"
_STATE = "training", "1 while the run trains, 0 when its training has ended as it should"


class RunGauges(Gauges):
    """The gauges of one training.

    Args:
        folder: the run directory.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(run_of(folder))
        self._folder = folder

    @contextmanager
    def training(self, total_steps: int, checkpoint_minutes: float, refresh_every: int | None) -> Iterator[None]:
        """The length of a training: what its figures are to be held against, and how it ended.

        Args:
            total_steps: after which it ends at the latest.
            checkpoint_minutes: after which there is a checkpoint at the latest.
            refresh_every: steps between two refreshes of the hard negatives; None without.
        """
        self.tell("total_steps", total_steps, "after which training ends at the latest")
        self.tell("checkpoint_interval_seconds", 60 * checkpoint_minutes, "after which there is a checkpoint")
        if refresh_every is not None:
            self.tell("refresh_every_steps", refresh_every, "steps between two refreshes of the hard negatives")
        self.tell(_STEP[0], time.time(), _STEP[1])
        self.tell("not_finite", 0.0, "1 when the loss or its gradient was not finite, which ended the run")
        self.saved()
        self.tell(_STATE[0], 1.0, _STATE[1])
        try:
            yield
        except (NotFiniteError, LossInputError):  # the latter of embeddings and scores, before there is a loss
            # The end of the session exports it, and a cluster that was joined shows it for 20 s more.
            self.tell("not_finite", 1.0, "")
            raise
        self.tell(_STATE[0], 0.0, _STATE[1])

    def saved(self) -> None:
        """A checkpoint is about to be committed."""
        self.tell(_CHECKPOINT[0], time.time(), _CHECKPOINT[1])
        disk = shutil.disk_usage(self._folder)
        self.tell("disk_free_share", disk.free / disk.total, "of the run directory's disk, 0 to 1, at the checkpoint")

    def set(self, step: int, measured: Mapping[str, float]) -> None:
        """Take the figures of a step, whether it is done for the first time or not."""
        figures = dict(measured)
        if "loss" in measured:  # else it is a look at a checkpoint, and later steps may be done
            figures["step"] = float(step)
            self.tell(_STEP[0], time.time(), _STEP[1])
        for name, value in figures.items():
            self.tell(name, value, f"{name.replace('_', ' ')} of the newest step of training")
