"""Outbox of a run: the logged data that the server does not have yet, and the thread that sends it.

1. Points are in `steps.jsonl`. `run.json` says up to which byte the server has them and holds what else is unsent: the
   description, the names of files, the status.
2. A message is removed when the server has confirmed it. A crash between the two sends it again, which changes
   nothing: a server keeps points of equal name, step, time and value once, and a run is created under a key that is
   looked up first.
3. If the server has no such run any more, or is another server, a new run is created and all points are sent again.
4. One thread sends in order and retries while the server is away. The outbox is on disk, so memory does not grow and no
   caller waits for a server. A lost server is reported once, and once when it is back."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypedDict

from raytriever.errors import StorageError
from raytriever.masking import masked
from raytriever.reading.structured import conform, read_json
from raytriever.storage import disk_errors, write_atomically
from raytriever.tracking.steps import StepLog
from raytriever.tracking.tracker import Backlog, DatasetRecord, Point, Tracker

IDENTITY = "run.json"
POINTS_PER_MESSAGE = 1000
# A message costs a server more than the points in it, so a few points wait for the ones that follow.
GATHER_SECONDS = 1.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 20.0  # seconds before a message is sent again; doubled each time
END_PAUSE = 2.0  # longest pause after the end of the run
REPORTED_FAILURES = 2  # in a row, before a line is logged: a database may be locked for a moment
_EMPTY: dict[str, Any] = {"name": "", "sent": 0, "descriptions": [], "files": [], "status": None, "children": []}


class Server(Tracker, Protocol):
    """One run on a server that may fail at any time."""

    @property
    def run_id(self) -> str:
        """The server's id of the run."""


class Connect(Protocol):
    """Creates or resumes a run on the server; raises an error if the server does not answer."""

    def __call__(self, run_name: str, run_id: str | None, parent: str | None, key: str) -> Server:
        """See `mlflow_tracker.MlflowTracker`."""


class Outbox:
    """Outbox of one run. The driver adds data, and the thread of an `OutboxSender` removes it.

    Args:
        folder: the run directory.
        parent: outbox of the parent run, or its id.

    Raises:
        StorageError: `run.json` is damaged or was changed.
    """

    def __init__(self, folder: Path, parent: Outbox | str | None = None) -> None:
        self.folder, self._parent = folder, parent
        self._lock = threading.RLock()
        self._server: Server | None = None
        self._state = {"tracking_id": None, "key": secrets.token_hex(16), **_EMPTY, **_read(folder / IDENTITY)}
        self.steps = StepLog(folder)
        self._state["sent"] = min(int(self._state["sent"]), self.steps.size)
        self._unsent = self.steps.count(self._state["sent"])
        self._oldest: int | None = None  # time of the oldest unsent point, in milliseconds since 1970
        self._due = 0.0  # `time.monotonic()` at which a few points are sent
        self._update_oldest()

    @property
    def run_id(self) -> str | None:
        """The server's id of the run; None before the server has created it."""
        return self._state["tracking_id"]

    @property
    def children(self) -> list[str]:
        """Folders of the child runs, relative to this run's folder."""
        return list(self._state["children"])

    @property
    def has_unsent_data(self) -> bool:
        """Return whether the server does not have all data."""
        with self._lock:
            state = self._state
            return bool(self._unsent or state["descriptions"] or state["files"] or state["status"])

    @property
    def due_in(self) -> float:
        """Seconds until the unsent data should be sent; 0 for now."""
        with self._lock:
            state = self._state
            if self._unsent >= POINTS_PER_MESSAGE or state["descriptions"] or state["files"] or state["status"]:
                return 0.0
            return max(0.0, self._due - time.monotonic())

    def backlog(self) -> Backlog:
        """Return the amount of unsent data."""
        with self._lock:
            behind = 0.0 if self._oldest is None else max(0.0, time.time() - self._oldest / 1000)
            return Backlog(self._unsent, len(self._state["files"]), behind)

    def put_points(self, points: Sequence[Point]) -> None:
        """Store points, except those that were logged before."""
        with self._lock:
            self._unsent += self.steps.add(points)
            if self._oldest is None and self._unsent and points:
                self._oldest = points[0].milliseconds

    def put_description(self, params: Mapping[str, str], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
        """Store settings, data and tags; they replace unsent ones of the same data."""
        record = {**asdict(dataset), "counts": dict(dataset.counts)}
        with self._lock:
            others = [other for other in self._state["descriptions"] if other["dataset"] != record]
            self._change(descriptions=[*others, {"params": dict(params), "dataset": record, "tags": dict(tags)}])

    def put_file(self, path: Path, folder: str) -> None:
        """Store the path of a file. Its content is read when it is sent."""
        with self._lock:
            entry = [str(path.resolve()), folder]
            if entry not in self._state["files"]:
                self._change(files=[*self._state["files"], entry])

    def begin(self, run_name: str) -> None:
        """Start or resume the run under a name that the server shows."""
        self._change(name=run_name, status=None)

    def put_status(self, status: str) -> None:
        """Store the final status of the run."""
        self._change(status=status)

    def put_child(self, folder: str) -> None:
        """Store the folder of a child run."""
        with self._lock:
            if folder not in self._state["children"]:
                self._change(children=[*self._state["children"], folder])

    def connect(self, connect: Connect) -> Server:
        """Return the run on the server, which is created if it does not exist. Raises as `connect` does."""
        if self._server is None:
            parent = self._parent.run_id if isinstance(self._parent, Outbox) else self._parent
            self._change()  # the key is stored before a run is created with it
            server = connect(self._state["name"], self.run_id, parent, self._state["key"])
            with self._lock:
                if server.run_id != self.run_id:
                    self._change(tracking_id=server.run_id, sent=0)
                    self._unsent = self.steps.points
                self._server = server
        return self._server

    def send(self, connect: Connect) -> None:
        """Send one message. After an error, which is raised, the next call connects again."""
        server = self.connect(connect)
        try:
            self._send(server)
        except BaseException:
            self._server = None
            raise

    def _send(self, server: Server) -> None:
        state = self._state
        if state["descriptions"]:
            description = state["descriptions"][0]
            dataset = DatasetRecord(**description["dataset"])
            server.describe(description["params"], dataset, description["tags"])
            with self._lock:
                left = [other for other in self._state["descriptions"] if other is not description]
                self._change(descriptions=left)
        elif self._unsent:
            batch = self.steps.read_from(state["sent"], POINTS_PER_MESSAGE)
            server.log(batch.points)
            with self._lock:
                self._unsent -= len(batch.points)
                self._change(sent=batch.end)
                self._update_oldest()
                self._due = time.monotonic() + GATHER_SECONDS
        elif state["files"]:
            path, folder = state["files"][0]
            # A file that was removed since cannot be sent, and a file outside the run directory is not the run's.
            if Path(path).is_file() and Path(path).resolve().is_relative_to(self.folder.resolve()):
                server.log_file(Path(path), folder)
            with self._lock:
                self._change(files=self._state["files"][1:])
        elif status := state["status"]:
            server.finish(status)
            with self._lock:
                if self._state["status"] == status:  # and no other one was stored since
                    self._change(status=None)

    def _update_oldest(self) -> None:
        first = self.steps.read_from(self._state["sent"], 1).points if self._unsent else []
        self._oldest = first[0].milliseconds if first else None

    def _change(self, **values: Any) -> None:
        with self._lock:
            self._state |= values
            write_atomically(self.folder / IDENTITY, json.dumps(self._state) + "\n")


class _Description(TypedDict):
    params: dict[str, str]
    dataset: DatasetRecord
    tags: dict[str, str]


class _State(TypedDict, total=False):
    tracking_id: str | None
    key: str
    name: str
    sent: int
    descriptions: list[_Description]
    files: list[list[str]]
    status: str | None
    children: list[str]


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    remedy = "give --fresh to train again"
    with disk_errors(path, reading=True):
        content = read_json(path, dict[str, Any], remedy)
    state = conform(content, str(path), _State, remedy)
    if state.get("sent", 0) < 0 or any(len(entry) != 2 for entry in state.get("files", [])):
        raise StorageError("is damaged or changed: 'sent' is negative, or 'files' are not pairs", str(path), remedy)
    for child in state.get("children", []):
        if Path(child).is_absolute() or ".." in Path(child).parts:
            raise StorageError(
                f"is damaged or changed: the folder of the child run {child!r} is not in this one", str(path), remedy
            )
    return content


class OutboxSender:
    """Thread that sends the data of outboxes until it is closed.

    Args:
        connect: creates or resumes a run.
        log: called with lines for the user, from the thread.
        uri: the server's address without secrets.
    """

    def __init__(self, connect: Connect, log: Callable[[str], None], uri: str) -> None:
        self._connect, self._log, self._uri = connect, log, uri
        self._outboxes: list[Outbox] = []
        self._changed = threading.Condition()
        self._is_closed = self._is_ending = False
        self._failures_in_a_row = 0
        self._failing_since: float | None = None
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name="raytriever-tracking", daemon=True)

    def add(self, outbox: Outbox) -> None:
        """Send the data of an outbox after that of the earlier ones; start the thread if it does not run."""
        with self._changed:
            self._outboxes.append(outbox)
            if not self._thread.is_alive():
                self._thread.start()
            self._changed.notify_all()

    def wake(self) -> None:
        """Wake the thread after new data."""
        with self._changed:
            self._changed.notify_all()

    def backlog(self) -> Backlog:
        """Return the amount of unsent data of all outboxes."""
        backlogs = [outbox.backlog() for outbox in self._outboxes]
        return Backlog(
            sum(backlog.points for backlog in backlogs),
            sum(backlog.files for backlog in backlogs),
            max((backlog.seconds for backlog in backlogs), default=0.0),
            self.failures,
        )

    def close(self, patience: float) -> bool:
        """Send all data, then stop the thread. Return whether all was sent.

        Args:
            patience: seconds to wait for a failing server. A server that accepts data gets the time it needs.
        """
        started = time.monotonic()
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
            while self._next_outbox() is not None and self._thread.is_alive():
                since = self._failing_since
                if since is not None and time.monotonic() - max(started, since) >= patience:
                    break
                self._changed.wait(0.1)
            self._is_closed = True
            self._changed.notify_all()
        return self._next_outbox() is None

    def _next_outbox(self) -> Outbox | None:
        return next((outbox for outbox in self._outboxes if outbox.has_unsent_data), None)

    def _due_outbox(self) -> Outbox | None:
        """Return the first outbox whose data is due; at the end, the first with any data."""
        return next(
            (outbox for outbox in self._outboxes if outbox.has_unsent_data and (self._is_ending or not outbox.due_in)),
            None,
        )

    def _seconds_until_due(self) -> float | None:
        """Return the seconds until the next outbox is due; None without data."""
        return min((outbox.due_in for outbox in self._outboxes if outbox.has_unsent_data), default=None)

    def _run(self) -> None:
        while True:
            with self._changed:
                while (outbox := self._due_outbox()) is None and not self._is_closed:
                    self._changed.wait(self._seconds_until_due())
                if outbox is None or self._is_closed:
                    return
            try:
                outbox.send(self._connect)
            except Exception as error:  # any error: the run continues, and the error is logged
                self._record_failure(error)
            else:
                self._record_success()

    def _record_success(self) -> None:
        if self._failures_in_a_row >= REPORTED_FAILURES and self._failing_since is not None:
            seconds = time.monotonic() - self._failing_since
            self._log(f"{self._uri}: MLflow answers again after {seconds:.0f} s; the stored data is being sent")
        with self._changed:
            self._failures_in_a_row, self._failing_since = 0, None
            self._changed.notify_all()

    def _record_failure(self, error: Exception) -> None:
        self.failures += 1
        self._failures_in_a_row += 1
        if self._failures_in_a_row == REPORTED_FAILURES:
            reason = " ".join(masked(str(error) or type(error).__name__).split())
            self._log(f"{reason}; the run continues, and its data is stored and sent later")
        with self._changed:
            if self._failing_since is None:
                self._failing_since = time.monotonic()
            pause = min(FIRST_PAUSE * 2 ** (self._failures_in_a_row - 1), LONGEST_PAUSE)
            end = time.monotonic() + pause
            while not self._is_closed and (left := end - time.monotonic()) > 0:
                if self._is_ending:
                    left = min(left, END_PAUSE)
                    end = min(end, time.monotonic() + END_PAUSE)
                self._changed.wait(left)
