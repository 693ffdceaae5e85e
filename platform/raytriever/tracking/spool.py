"""Tracker of a run: everything logged is stored next to the run first, then sent by a thread.

A server that goes away during a run costs the run only a log line. At its end the run waits for the server for a
limited time; the same command sends the rest when called again. Only at the start is an unreachable server an
error, because then the address is most likely wrong.

If a job writes its output directory whole at its end, the data waits in a hidden folder next to it (`open_adjacent`).
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from raytriever.activity import activity
from raytriever.errors import StorageError, UserError
from raytriever.progress import say as log_above_progress
from raytriever.storage import disk_errors, files_below
from raytriever.tracking.mlflow_tracker import MlflowServer, flatten
from raytriever.tracking.outbox import IDENTITY, Outbox, OutboxSender
from raytriever.tracking.tracker import Backlog, DatasetRecord, Point

# Seconds to wait for a failing server at the end of a run, and of one that was interrupted or failed.
END_SECONDS, SHORT_END_SECONDS = 60.0, 5.0

Log = Callable[[str], None]


class Spool:
    """A `PersistentTracker` that stores its data in a run directory.

    Args:
        outbox: of this run.
        sender: sends the outbox. It is closed when the run is finished, unless the run has a parent.
        log: called with lines for the user.
        parent: the parent run.
    """

    def __init__(self, outbox: Outbox, sender: OutboxSender, log: Log, parent: Spool | None = None) -> None:
        self._outbox, self._sender, self._log, self._parent = outbox, sender, log, parent
        self._children: dict[str, Spool] = {}
        sender.add(outbox)
        for folder in outbox.children:
            if (outbox.folder / folder / IDENTITY).is_file():
                self._child(folder)

    @classmethod
    def open(
        cls,
        server: MlflowServer,
        folder: Path,
        run_name: str,
        parent: str | None = None,
        log: Log = log_above_progress,
    ) -> Self:
        """Start or resume a run.

        Args:
            server: a server that answers.
            folder: the run directory, which exists.
            run_name: shown by the server.
            parent: id of the parent run.
            log: called with lines for the user, from another thread.

        Raises:
            ConfigError: the server refuses the run.
            StorageError: `run.json` is damaged, was changed, or cannot be written.
        """
        outbox = Outbox(folder, parent)
        outbox.begin(run_name)
        outbox.connect(server.connect)
        return cls(outbox, OutboxSender(server.connect, log, server.masked_uri), log)

    @property
    def folder(self) -> Path:
        """The run directory."""
        return self._outbox.folder

    @property
    def run_id(self) -> str | None:
        """See `PersistentTracker`; never None after `open`."""
        return self._outbox.run_id

    def child(self, run_name: str, folder: Path) -> Spool:
        """See `PersistentTracker`; a child can be started while the server does not answer."""
        name = os.path.relpath(folder, self._outbox.folder)
        self._outbox.put_child(name)
        child = self._child(name)
        child._outbox.begin(run_name)
        return child

    def _child(self, folder: str) -> Spool:
        if folder not in self._children:
            outbox = Outbox(self._outbox.folder / folder, self._outbox)
            self._children[folder] = Spool(outbox, self._sender, self._log, self)
        return self._children[folder]

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
        """See `Tracker`."""
        self._outbox.put_description(flatten(config), dataset, tags)
        self._sender.wake()

    def log(self, points: Sequence[Point]) -> None:
        """See `Tracker`; points whose name and step were logged before are left out."""
        self._outbox.put_points(points)
        self._sender.wake()

    def log_file(self, path: Path, folder: str = "") -> None:
        """See `Tracker`; the file must exist until it is sent.

        Raises:
            StorageError: the file does not exist.
        """
        if not path.exists():
            raise StorageError("does not exist, so it cannot be logged as an artifact", str(path), "write it first")
        if path.is_file():
            self._outbox.put_file(path, folder)
        else:
            for file in files_below(path):
                inner = file.parent.relative_to(path).as_posix()
                self._outbox.put_file(file, f"{folder or path.name}/{inner}".removesuffix("/."))
        self._sender.wake()

    def backlog(self) -> Backlog:
        """See `PersistentTracker`; includes all runs that the same thread sends."""
        return self._sender.backlog()

    def finish(self, status: str) -> None:
        """Close the run. A run without a parent waits for the server, and logs the data that remains unsent."""
        self._outbox.put_status(status)
        self._sender.wake()
        if self._parent is None:
            self.drain(END_SECONDS if status == "FINISHED" else SHORT_END_SECONDS)

    @activity("sending what remains to MLflow")
    def drain(self, patience: float) -> bool:
        """Send all remaining data, then stop the thread. Return whether all data was sent.

        Args:
            patience: seconds to wait for a failing server.
        """
        before = self.backlog()
        if before.failures and before.points:
            self._log(f"waiting up to {patience:.0f} s for MLflow, to send {before.points:,} points")
        if self._sender.close(patience):
            return True
        left = self.backlog()
        self._log(
            f"{left.points:,} points and {left.files:,} files wait for MLflow in {self._outbox.folder}; "
            "the same command sends them"
        )
        return False


def send_pending(folder: Path, uri: str, log: Log) -> bool:
    """Send the unsent data of a finished run and its child runs.

    A server that does not answer is no error here, because the run is finished and its results are stored.

    Returns:
        Whether all data has been sent.
    """
    if not _has_unsent_data(folder):
        return True
    try:
        server = MlflowServer(uri)
        outbox = Outbox(folder)
        outbox.connect(server.connect)
    except UserError as error:
        log(f"{error}; repeat this command when MLflow answers, to send the data in {folder}")
        return False
    return Spool(outbox, OutboxSender(server.connect, log, server.masked_uri), log).drain(END_SECONDS)


def _has_unsent_data(folder: Path) -> bool:
    if not (folder / IDENTITY).is_file():
        return False
    outbox = Outbox(folder)
    return outbox.has_unsent_data or any(_has_unsent_data(folder / child) for child in outbox.children)


class TemporarySpool(Spool):
    """A `Spool` that removes its folder when all data has been sent."""

    def drain(self, patience: float) -> bool:
        """See `Spool`."""
        is_empty = super().drain(patience)
        if is_empty:
            _remove(self.folder)
        return is_empty


def open_adjacent(uri: str, output: Path, log: Log) -> Spool:
    """Start a run for a job that writes `output` at its end.

    Args:
        uri: of the server or database.
        output: may not exist; its name is the name of the run.
        log: called with lines for the user.

    Raises:
        ConfigError: the server does not answer.
        StorageError: the folder of `output` is not writable.
    """
    server = MlflowServer(uri)
    name = output.resolve().name
    parent = output.resolve().with_name(f".{name}.tracking")
    for earlier in sorted(parent.iterdir()) if parent.is_dir() else []:
        if send_pending(earlier, uri, log):
            _remove(earlier)
    folder = parent / secrets.token_hex(6)
    with disk_errors(folder):
        folder.mkdir(parents=True)
    try:
        return TemporarySpool.open(server, folder, name, log=log)
    except BaseException:
        _remove(folder)
        raise


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # it holds folders of other jobs
        folder.parent.rmdir()
