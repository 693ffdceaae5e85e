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
from raytriever.progress import say as say_beside_progress
from raytriever.storage import disk_errors, files_below
from raytriever.tracking.mlflow_tracker import MlflowServer, flatten
from raytriever.tracking.outbox import IDENTITY, Outbox, OutboxSender
from raytriever.tracking.tracker import Backlog, DatasetRecord, Point

# How long a server that fails is waited for at the end of a run, and of one that was interrupted or failed.
END_SECONDS, SHORT_END_SECONDS = 60.0, 5.0

Say = Callable[[str], None]


class Spool:
    """A `LastingTracker` over a run directory.

    Args:
        outbox: of this run.
        sender: sends it; it is closed when the run is finished, unless the run is within another.
        say: hears lines for the person.
        parent: the run within which this one is.
    """

    def __init__(self, outbox: Outbox, sender: OutboxSender, say: Say, parent: Spool | None = None) -> None:
        self._outbox, self._sender, self._say, self._parent = outbox, sender, say, parent
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
        say: Say = say_beside_progress,
    ) -> Self:
        """Begin or continue a run.

        Args:
            server: has just answered.
            folder: the run directory, which exists.
            run_name: shown by the server.
            parent: the id of the run within which this one is shown.
            say: hears lines for the person, from another thread.

        Raises:
            ConfigError: the server refuses the run.
            StorageError: `run.json` is torn or changed, or cannot be written.
        """
        outbox = Outbox(folder, parent)
        outbox.begin(run_name)
        outbox.connect(server.connect)
        return cls(outbox, OutboxSender(server.connect, say, server.shown), say)

    @property
    def folder(self) -> Path:
        """Where what is told is kept."""
        return self._outbox.folder

    @property
    def run_id(self) -> str | None:
        """See `LastingTracker`; never None for a run that `open` gave."""
        return self._outbox.run_id

    def child(self, run_name: str, folder: Path) -> Spool:
        """See `LastingTracker`; it may be begun while the server is away."""
        name = os.path.relpath(folder, self._outbox.folder)
        self._outbox.put_child(name)
        child = self._child(name)
        child._outbox.begin(run_name)
        return child

    def _child(self, folder: str) -> Spool:
        if folder not in self._children:
            outbox = Outbox(self._outbox.folder / folder, self._outbox)
            self._children[folder] = Spool(outbox, self._sender, self._say, self)
        return self._children[folder]

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
        """See `Tracker`."""
        self._outbox.put_description(flatten(config), dataset, tags)
        self._sender.wake()

    def log(self, points: Sequence[Point]) -> None:
        """See `Tracker`; a point whose name and step were told before is left out."""
        self._outbox.put_points(points)
        self._sender.wake()

    def log_file(self, path: Path, folder: str = "") -> None:
        """See `Tracker`; the file has to stay where it is until it is sent.

        Raises:
            StorageError: there is none.
        """
        if not path.exists():
            raise StorageError("is not there to be kept as an artifact", str(path), "write it first")
        if path.is_file():
            self._outbox.put_file(path, folder)
        else:
            for file in files_below(path):
                inner = file.parent.relative_to(path).as_posix()
                self._outbox.put_file(file, f"{folder or path.name}/{inner}".removesuffix("/."))
        self._sender.wake()

    def backlog(self) -> Backlog:
        """See `LastingTracker`; of all runs that the same thread sends."""
        return self._sender.backlog()

    def finish(self, status: str) -> None:
        """Close the run; one that is not within another waits for its server, and says what waits if in vain."""
        self._outbox.put_status(status)
        self._sender.wake()
        if self._parent is None:
            self.settle(END_SECONDS if status == "FINISHED" else SHORT_END_SECONDS)

    @activity("sending what remains to MLflow")
    def settle(self, patience: float) -> bool:
        """Wait for the server, and send no more; answers whether nothing waits.

        Args:
            patience: seconds of a server that fails.
        """
        before = self.backlog()
        if before.failures and before.points:
            self._say(f"waiting up to {patience:.0f} s for MLflow, for which {before.points:,} points wait")
        if self._sender.close(patience):
            return True
        left = self.backlog()
        self._say(
            f"{left.points:,} points and {left.files:,} files wait for MLflow in {self._outbox.folder}; "
            "the same command sends them"
        )
        return False


def send_pending(folder: Path, uri: str, say: Say) -> bool:
    """Send what a finished run, or one within it, has told and its server does not have yet; `say` hears of it.

    A server that does not answer is no mistake here: the run is finished, and its figures stand.

    Returns:
        Whether nothing waits any more.
    """
    if not _waits(folder):
        return True
    try:
        server = MlflowServer(uri)
        outbox = Outbox(folder)
        outbox.connect(server.connect)
    except UserError as error:
        say(f"{error}; what waits in {folder} is sent by this command when it answers")
        return False
    return Spool(outbox, OutboxSender(server.connect, say, server.shown), say).settle(END_SECONDS)


def _waits(folder: Path) -> bool:
    if not (folder / IDENTITY).is_file():
        return False
    outbox = Outbox(folder)
    return outbox.waits or any(_waits(folder / child) for child in outbox.children)


class TemporarySpool(Spool):
    """A `Spool` that removes its folder when nothing waits."""

    def settle(self, patience: float) -> bool:
        """See `Spool`."""
        done = super().settle(patience)
        if done:
            _remove(self.folder)
        return done


def open_adjacent(uri: str, output: Path, say: Say) -> Spool:
    """Begin a run for a job that writes `output`.

    Args:
        uri: of the server or database.
        output: need not exist; its name becomes the run's.
        say: hears lines for the person.

    Raises:
        ConfigError: the server does not answer.
        StorageError: nothing can be written beside `output`.
    """
    server = MlflowServer(uri)
    name = output.resolve().name
    place = output.resolve().with_name(f".{name}.tracking")
    for left in sorted(place.iterdir()) if place.is_dir() else []:
        if send_pending(left, uri, say):
            _remove(left)
    folder = place / secrets.token_hex(6)
    with disk_errors(folder):
        folder.mkdir(parents=True)
    try:
        return TemporarySpool.open(server, folder, name, say=say)
    except BaseException:
        _remove(folder)
        raise


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # of others it holds some
        folder.parent.rmdir()
