"""Trackers of a run. All logged data is first stored in the run directory. Then one thread per tracker sends it.

If a tracker stops answering during a run, the run only logs a line. At the end, the run waits for the tracker for a
limited time. If the same command is run again, it sends the rest. An unreachable MLflow server is an error only at the
start of a run, because then the address is probably wrong.

If a job writes its output directory at its end, the data is stored in a hidden folder next to it (`open_adjacent`)."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from raytriever.core.errors import StorageError, UserError
from raytriever.core.progress import activity
from raytriever.core.store.disk import files_below
from raytriever.core.terminal import warn
from raytriever.tracking.mlflow_tracker import flatten
from raytriever.tracking.outbox import Outbox, OutboxSender
from raytriever.tracking.run_state import has_unsent_data, state_file
from raytriever.tracking.step_log import StepLog
from raytriever.tracking.tracker import Backlog, DatasetRecord, Point, Tracker, TrackerClient
from raytriever.tracking.tracker_names import TITLES, open_trackers

# Seconds to wait for a failing server at the end of a finished run, and of a run that was interrupted or failed.
END_SECONDS, SHORT_END_SECONDS = 60.0, 5.0
_ADJACENT = ".tracking"  # suffix of the hidden folder next to an output directory

Log = Callable[[str], None]


class Spool(Tracker):
    """Tracker that stores its data in a run directory, and sends it to any number of trackers, with one sender for
    each tracker. The senders are closed when a run without a parent is finished."""

    def __init__(self, folder: Path, senders: Sequence[OutboxSender], log: Log, parent: Spool | None = None) -> None:
        self.folder, self._senders, self._log, self._parent = folder, senders, log, parent
        self._steps = StepLog(folder)
        parents = parent._outboxes if parent else [None] * len(senders)
        self._outboxes: list[Outbox] = [
            Outbox(self._steps, sender.client, above, _output_of(folder))
            for sender, above in zip(senders, parents, strict=True)
        ]
        self._children: dict[str, Spool] = {}

    def _start(self) -> None:
        for sender, outbox in zip(self._senders, self._outboxes, strict=True):
            sender.add(outbox)
            for folder in outbox.children:
                if (self.folder / folder / state_file(outbox.client.name)).is_file():
                    self._child(folder)

    @classmethod
    def open(cls, clients: Sequence[TrackerClient], folder: Path, run_name: str, log: Log = warn) -> Self:
        """Start or resume a run."""
        spool = cls(folder, [OutboxSender(client, log) for client in clients], log)
        for outbox in spool._outboxes:
            outbox.begin(run_name)
        spool._connect()
        spool._start()
        return spool

    def _connect(self) -> None:
        for outbox in self._outboxes:
            if outbox.client.name == "mlflow":
                outbox.connect()

    @property
    def run_id(self) -> str | None:
        """Id of the run at the first tracker; None without trackers, or before the tracker has created the run."""
        return self._outboxes[0].run_id if self._outboxes else None

    def child(self, run_name: str, folder: Path) -> Spool:
        """Return a child run with its own settings, metrics, files and run directory. The child run can be started even
        if a tracker does not answer."""
        name = os.path.relpath(folder, self.folder)
        for outbox in self._outboxes:
            outbox.put_child(name)
        child = self._child(name)
        for outbox in child._outboxes:
            outbox.begin(run_name)
        return child

    def _child(self, folder: str) -> Spool:
        if folder not in self._children:
            child = self._children[folder] = Spool(self.folder / folder, self._senders, self._log, self)
            child._start()
        return self._children[folder]

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord | None, tags: Mapping[str, str]) -> None:
        """See `Tracker`."""
        for outbox in self._outboxes:
            outbox.put_description(flatten(config), dataset, tags)
        self._wake()

    def log(self, points: Sequence[Point]) -> None:
        """See `Tracker`. A point is skipped if a point of its name and step was already logged."""
        self._steps.add(points)
        self._wake()

    def log_file(self, path: Path, folder: str = "") -> None:
        """See `Tracker`. The file must exist until it is sent."""
        if not path.exists():
            raise StorageError("does not exist, so it cannot be logged as an artifact", str(path), "write it first")
        for outbox in self._outboxes:
            if path.is_file():
                outbox.put_file(path, folder)
                continue
            for file in files_below(path):
                inner = file.parent.relative_to(path).as_posix()
                outbox.put_file(file, f"{folder or path.name}/{inner}".removesuffix("/."))
        self._wake()

    def _wake(self) -> None:
        for sender in self._senders:
            sender.wake()

    def backlog(self) -> Backlog:
        """Return the amount of unsent data of this run and its child runs. A point or file counts once per tracker."""
        return sum((sender.backlog() for sender in self._senders), Backlog())

    def finish(self, status: str) -> None:
        """Close the run. A run without a parent waits for the trackers, and logs how much data is still unsent."""
        for outbox in self._outboxes:
            outbox.put_status(status)
        self._wake()
        if self._parent is None:
            self.drain(END_SECONDS if status == "FINISHED" else SHORT_END_SECONDS)

    @activity("sending the remaining data to the trackers")
    def drain(self, patience: float) -> bool:
        """Send all remaining data, then stop; failing trackers get `patience` seconds. Return whether all was sent. If
        all was sent, the hidden folder of a job that writes its output at its end is removed."""
        for sender in self._senders:
            sender.end()
            before = sender.backlog()
            if before.failures and before.points:
                title = sender.client.title
                self._log(f"waiting up to {patience:.0f} s for {title}, to send {before.points:,} points")
        closed = [self._close(sender, patience) for sender in self._senders]
        if all(closed) and _output_of(self.folder) != self.folder:
            _remove(self.folder)
        return all(closed)

    def _close(self, sender: OutboxSender, patience: float) -> bool:
        if sender.close(patience):
            return True
        left = sender.backlog()
        if refusals := sender.refusals:
            count = f"{len(refusals):,} files" if len(refusals) > 1 else "a file"
            self._log(
                f"{sender.client.title} has the metrics and the status, but refused {count}: {refusals[0]}; repeat the "
                f"same command to send what is stored in {self.folder}"
            )
            return False
        self._log(
            f"{left.points:,} points and {left.files:,} files for {sender.client.title} are stored in {self.folder}; "
            "repeat the same command to send them"
        )
        return False


def send_pending(folder: Path, trackers: Sequence[str], log: Log) -> bool:
    """Send the unsent data of a finished run and its child runs to some trackers. Return whether all data was sent. A
    tracker that does not answer is not an error here, because the run is finished and its results are stored."""
    sent = [_send_pending(folder, name, log) for name in trackers if has_unsent_data(folder, name)]
    return all(sent)


def _send_pending(folder: Path, tracker: str, log: Log) -> bool:
    try:
        (client,) = open_trackers([tracker])
        spool = Spool(folder, [OutboxSender(client, log)], log)
        spool._connect()
    except UserError as error:
        log(f"{error}; repeat this command when {TITLES[tracker]} answers, to send the data in {folder}")
        return False
    spool._start()
    return spool.drain(END_SECONDS)


def open_adjacent(trackers: Sequence[str], output: Path, log: Log) -> Spool:
    """Start a run for a job that writes `output` at its end. The run has the name of `output`."""
    clients = open_trackers(trackers)
    name = output.resolve().name
    parent = output.resolve().with_name(f".{name}{_ADJACENT}")
    for earlier in sorted(parent.iterdir()) if parent.is_dir() else []:
        if send_pending(earlier, trackers, log):
            _remove(earlier)
    folder = parent / secrets.token_hex(6)
    folder.mkdir(parents=True)
    try:
        return Spool.open(clients, folder, name, log)
    except BaseException:
        _remove(folder)
        raise


def _output_of(folder: Path) -> Path:
    """Return the directory whose files belong to the run of a folder; see `open_adjacent`."""
    name = folder.resolve().parent.name
    is_adjacent = name.startswith(".") and name.endswith(_ADJACENT)
    return folder.resolve().parent.with_name(name[1:].removesuffix(_ADJACENT)) if is_adjacent else folder


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # the parent folder may also hold folders of other jobs
        folder.parent.rmdir()
