"""Outbox of a run: what it has logged and the server does not have yet, and the thread that sends it.

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
POINTS_A_MESSAGE = 1000
# A message costs a server more than the points in it: a few of them wait so long for those that follow.
GATHER_SECONDS = 1.0
_EMPTY: dict[str, Any] = {"name": "", "sent": 0, "descriptions": [], "files": [], "status": None, "children": []}


class Server(Tracker, Protocol):
    """One run on a server that may fail at any time."""

    @property
    def run_id(self) -> str:
        """The server's name of the run."""


class Connect(Protocol):
    """Makes or continues a run on the server; raises where that does not answer."""

    def __call__(self, run_name: str, run_id: str | None, parent: str | None, key: str) -> Server:
        """See `mlflow_tracker.MlflowTracker`."""


class Outbox:
    """One run's; the driver puts in, the thread of a `OutboxSender` takes out.

    Args:
        folder: the run directory.
        parent: the run within which this one is, or its id.

    Raises:
        StorageError: `run.json` is torn or changed.
    """

    def __init__(self, folder: Path, parent: Outbox | str | None = None) -> None:
        self.folder, self._parent = folder, parent
        self._lock = threading.RLock()
        self._server: Server | None = None
        self._state = {"tracking_id": None, "key": secrets.token_hex(16), **_EMPTY, **_read(folder / IDENTITY)}
        self.steps = StepLog(folder)
        self._state["sent"] = min(int(self._state["sent"]), self.steps.size)
        self._waiting = self.steps.count(self._state["sent"])
        self._oldest: int | None = None  # milliseconds since 1970 of the oldest point that waits
        self._due = 0.0  # `time.monotonic()` from which a few points are sent
        self._see_oldest()

    @property
    def run_id(self) -> str | None:
        """The server's id of the run; None as long as the server has not made it."""
        return self._state["tracking_id"]

    @property
    def children(self) -> list[str]:
        """The folders of the runs within this one, as seen from its own."""
        return list(self._state["children"])

    @property
    def waits(self) -> bool:
        """Whether the server lacks anything."""
        with self._lock:
            state = self._state
            return bool(self._waiting or state["descriptions"] or state["files"] or state["status"])

    @property
    def due_in(self) -> float:
        """Seconds until what waits should be sent, 0 where it should be now."""
        with self._lock:
            state = self._state
            if self._waiting >= POINTS_A_MESSAGE or state["descriptions"] or state["files"] or state["status"]:
                return 0.0
            return max(0.0, self._due - time.monotonic())

    def backlog(self) -> Backlog:
        """How much waits."""
        with self._lock:
            behind = 0.0 if self._oldest is None else max(0.0, time.time() - self._oldest / 1000)
            return Backlog(self._waiting, len(self._state["files"]), behind)

    def put_points(self, points: Sequence[Point]) -> None:
        """Points, made durable; those told before are left out."""
        with self._lock:
            self._waiting += self.steps.add(points)
            if self._oldest is None and self._waiting and points:
                self._oldest = points[0].milliseconds

    def put_description(self, params: Mapping[str, str], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
        """Settings, data and tags, in place of what waits of the same data."""
        about = {**asdict(dataset), "counts": dict(dataset.counts)}
        with self._lock:
            others = [other for other in self._state["descriptions"] if other["dataset"] != about]
            self._change(descriptions=[*others, {"params": dict(params), "dataset": about, "tags": dict(tags)}])

    def put_file(self, path: Path, folder: str) -> None:
        """A file's name; what is sent is what stands under it then."""
        with self._lock:
            entry = [str(path.resolve()), folder]
            if entry not in self._state["files"]:
                self._change(files=[*self._state["files"], entry])

    def begin(self, run_name: str) -> None:
        """The run begins or goes on, under a name that the server shows."""
        self._change(name=run_name, status=None)

    def put_status(self, status: str) -> None:
        """How the run ended."""
        self._change(status=status)

    def put_child(self, folder: str) -> None:
        """Remember a run within this one."""
        with self._lock:
            if folder not in self._state["children"]:
                self._change(children=[*self._state["children"], folder])

    def connect(self, connect: Connect) -> Server:
        """The run on the server, made there where it is not; raises what `connect` does."""
        if self._server is None:
            parent = self._parent.run_id if isinstance(self._parent, Outbox) else self._parent
            self._change()  # the key is kept before anything is made under it
            server = connect(self._state["name"], self.run_id, parent, self._state["key"])
            with self._lock:
                if server.run_id != self.run_id:
                    self._change(tracking_id=server.run_id, sent=0)
                    self._waiting = self.steps.points
                self._server = server
        return self._server

    def send(self, connect: Connect) -> None:
        """Send one message, or raise whatever stands in the way; then the next call connects anew."""
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
        elif self._waiting:
            stretch = self.steps.after(state["sent"], POINTS_A_MESSAGE)
            server.log(stretch.points)
            with self._lock:
                self._waiting -= len(stretch.points)
                self._change(sent=stretch.end)
                self._see_oldest()
                self._due = time.monotonic() + GATHER_SECONDS
        elif state["files"]:
            path, folder = state["files"][0]
            # One that was removed since cannot be sent, and one of elsewhere is none of this run's.
            if Path(path).is_file() and Path(path).resolve().is_relative_to(self.folder.resolve()):
                server.log_file(Path(path), folder)
            with self._lock:
                self._change(files=self._state["files"][1:])
        elif status := state["status"]:
            server.finish(status)
            with self._lock:
                if self._state["status"] == status:  # and not another one, told since
                    self._change(status=None)

    def _see_oldest(self) -> None:
        first = self.steps.after(self._state["sent"], 1).points if self._waiting else []
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
        raise StorageError("is torn or changed: 'sent' is negative, or 'files' are no pairs", str(path), remedy)
    for child in state.get("children", []):
        if Path(child).is_absolute() or ".." in Path(child).parts:
            raise StorageError(f"is torn or changed: the run {child!r} is not within this one", str(path), remedy)
    return content


FIRST_PAUSE, LONGEST_PAUSE = 0.5, 20.0  # seconds before a message is tried again, doubled each time
END_PAUSE = 2.0  # the longest pause once all is told and only the server is waited for
LOST_AFTER = 2  # failures in a row before anybody is told: a database may be locked for a moment


class OutboxSender:
    """Sends until it is closed.

    Args:
        connect: makes or continues a run.
        say: hears lines for the person; called from the thread.
        where: the server's address, as it may be shown.
    """

    def __init__(self, connect: Connect, say: Callable[[str], None], where: str) -> None:
        self._connect, self._say, self._where = connect, say, where
        self._outboxes: list[Outbox] = []
        self._changed = threading.Condition()
        self._over = self._ending = False
        self._in_a_row = 0
        self._failing_since: float | None = None
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name="raytriever-tracking", daemon=True)

    def add(self, outbox: Outbox) -> None:
        """Send what is put into an outbox, after that of the ones before; starts the thread."""
        with self._changed:
            self._outboxes.append(outbox)
            if not self._thread.is_alive():
                self._thread.start()
            self._changed.notify_all()

    def wake(self) -> None:
        """Something was put into an outbox."""
        with self._changed:
            self._changed.notify_all()

    def backlog(self) -> Backlog:
        """How much waits, in all outboxes."""
        parts = [outbox.backlog() for outbox in self._outboxes]
        return Backlog(
            sum(part.points for part in parts),
            sum(part.files for part in parts),
            max((part.seconds for part in parts), default=0.0),
            self.failures,
        )

    def close(self, patience: float) -> bool:
        """Wait until all is sent, and send no more; answers whether all was.

        Args:
            patience: seconds of a server that fails which are waited for; one that takes what is sent is waited for.
        """
        began = time.monotonic()
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            while self._waiting() is not None and self._thread.is_alive():
                since = self._failing_since
                if since is not None and time.monotonic() - max(began, since) >= patience:
                    break
                self._changed.wait(0.1)
            self._over = True
            self._changed.notify_all()
        return self._waiting() is None

    def _waiting(self) -> Outbox | None:
        return next((outbox for outbox in self._outboxes if outbox.waits), None)

    def _due(self) -> Outbox | None:
        """The first whose messages are to be sent now; at the end, the first that has any."""
        return next((outbox for outbox in self._outboxes if outbox.waits and (self._ending or not outbox.due_in)), None)

    def _rest(self) -> float | None:
        """Seconds until one is due, as far as is known."""
        return min((outbox.due_in for outbox in self._outboxes if outbox.waits), default=None)

    def _run(self) -> None:
        while True:
            with self._changed:
                while (outbox := self._due()) is None and not self._over:
                    self._changed.wait(self._rest())
                if outbox is None or self._over:
                    return
            try:
                outbox.send(self._connect)
            except Exception as error:  # whatever it is, the run goes on, and it is told
                self._failed(error)
            else:
                self._took()

    def _took(self) -> None:
        if self._in_a_row >= LOST_AFTER and self._failing_since is not None:
            seconds = time.monotonic() - self._failing_since
            self._say(f"{self._where}: MLflow answers again after {seconds:.0f} s; what waited is being sent")
        with self._changed:
            self._in_a_row, self._failing_since = 0, None
            self._changed.notify_all()

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self._in_a_row += 1
        if self._in_a_row == LOST_AFTER:
            reason = " ".join(masked(str(error) or type(error).__name__).split())
            self._say(f"{reason}; the run goes on, and what it tells is kept and sent later")
        with self._changed:
            if self._failing_since is None:
                self._failing_since = time.monotonic()
            pause = min(FIRST_PAUSE * 2 ** (self._in_a_row - 1), LONGEST_PAUSE)
            end = time.monotonic() + pause
            while not self._over and (left := end - time.monotonic()) > 0:
                if self._ending:
                    left = min(left, END_PAUSE)
                    end = min(end, time.monotonic() + END_PAUSE)
                self._changed.wait(left)
