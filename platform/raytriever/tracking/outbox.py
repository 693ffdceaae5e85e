"""Outbox of a run for one tracker: the logged data that the tracker does not have yet, and the thread that sends it.

1. Points are in `steps.jsonl`. `run.json` (`run-NAME.json` for trackers other than MLflow) says up to which byte the
   tracker has them. It also holds all other data (descriptions, names of files, the status), and what of it is unsent.
2. A message is marked as sent when the tracker has confirmed it. If a crash comes first, the message is sent again. The
   repetition is harmless: MLflow, Trackio and W&B store a point once, and a run is created only if its key is unknown.
3. If the tracker refuses a file, everything else is sent first. At the end, the file is tried once more.
4. When a run is connected, the tracker reports how many points it has. Later points are sent again. If a server has
   lost the run, or if the tracker rewrites its files, as TensorBoard does, all points and files are sent again.
   Descriptions are sent again with each connection.
5. One thread sends in order, and retries while the server does not answer. The outbox is on disk, so memory does not
   grow, and no caller waits for a server. A line is logged when a server is lost, and another when it is back."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from raytriever.core.errors import disk_errors
from raytriever.core.masking import masked
from raytriever.core.store.commit import write_atomically
from raytriever.tracking.run_state import RunDescription, RunState, read_state, state_file
from raytriever.tracking.step_log import StepLog
from raytriever.tracking.tracker import Backlog, DatasetRecord, RemoteRun, TrackerClient

POINTS_PER_MESSAGE = 1000
# A message costs the server more than its points do. So a few points wait until there are more.
GATHER_SECONDS = 1.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 20.0  # seconds before a message is sent again; doubled after each failure
END_PAUSE = 2.0  # longest pause after the end of the run
REPORTED_FAILURES = 2  # consecutive failures before a line is logged; a database may be locked for a moment


def one_line(error: Exception) -> str:
    """Return the text of an error on one line, without passwords."""
    return " ".join(masked(str(error) or type(error).__name__).split())


class Outbox:
    """Outbox of one run for one tracker. The driver adds data, and the thread of an `OutboxSender` removes it. Only
    files below `output` are sent, by default the directory of the points."""

    def __init__(
        self, steps: StepLog, client: TrackerClient, parent: Outbox | None = None, output: Path | None = None
    ) -> None:
        self.folder, self.client, self._parent, self._steps = steps.folder, client, parent, steps
        self._output = (output or steps.folder).resolve()
        self._file = self.folder / state_file(client.name)
        self._lock = threading.RLock()
        self._run: RemoteRun | None = None
        state = read_state(self._file) or RunState(secrets.token_hex(16))
        self._state = replace(state, sent=min(state.sent, steps.size))
        self._sent_points = steps.points - steps.count(self._state.sent)
        self._refused: dict[tuple[str, ...], str] = {}  # files that the tracker refused, each with the reason
        self._due = 0.0  # `time.monotonic()` at which also a few points are sent

    @property
    def run_id(self) -> str | None:
        """Id of the run on the server; None before the server has created the run."""
        return self._state.tracking_id

    @property
    def children(self) -> list[str]:
        """Folders of the child runs, relative to this run's folder."""
        return list(self._state.children)

    @property
    def _unsent(self) -> int:
        """Number of unsent points, at least 0: a point may be sent before `StepLog` has counted it."""
        return max(0, self._steps.points - self._sent_points)

    @property
    def has_unsent_data(self) -> bool:
        """Return whether there is data that the server does not have."""
        with self._lock:
            return self.has_data_to_send or bool(self._state.files)

    @property
    def has_data_to_send(self) -> bool:
        """Return whether there is unsent data other than refused files."""
        with self._lock:
            return bool(self._unsent) or self._other_data()

    def _other_data(self) -> bool:
        return bool(self._state.descriptions or self._state.status or self._next_file())

    def _next_file(self) -> tuple[str, ...] | None:
        return next((entry for entry in self._state.files if entry not in self._refused), None)

    def retry_files(self) -> bool:
        """Mark refused files as unsent, so that they are sent again. Return whether there were any."""
        with self._lock:
            refused, self._refused = self._refused, {}
            return bool(refused)

    @property
    def refusals(self) -> list[str]:
        """Reason of each refused file."""
        return list(self._refused.values())

    @property
    def due_in(self) -> float:
        """Seconds until the unsent data should be sent; 0 if it should be sent now."""
        with self._lock:
            if self._unsent >= POINTS_PER_MESSAGE or self._other_data():
                return 0.0
            return max(0.0, self._due - time.monotonic())

    def backlog(self) -> Backlog:
        """Return the amount of unsent data."""
        with self._lock:
            oldest = self._steps.read_from(self._state.sent, 1).points if self._unsent else []
            behind = max(0.0, time.time() - oldest[0].milliseconds / 1000) if oldest else 0.0
            return Backlog(self._unsent, len(self._state.files), behind)

    def put_description(
        self, params: Mapping[str, str], dataset: DatasetRecord | None, tags: Mapping[str, str]
    ) -> None:
        """Store settings, data and tags. They replace those of the same data set or, without one, of the same tags."""
        new = RunDescription(dict(params), dataset and replace(dataset, counts=dict(dataset.counts)), dict(tags))
        with self._lock:
            waiting, sent = (
                tuple(entry for entry in entries if (entry.dataset or [*entry.tags]) != (new.dataset or [*new.tags]))
                for entries in (self._state.descriptions, self._state.sent_descriptions)
            )
            self._change(descriptions=(*waiting, new), sent_descriptions=sent)

    def put_file(self, path: Path, folder: str) -> None:
        """Store the path of a file. Its content is read when it is sent."""
        with self._lock:
            entry = (str(path.resolve()), folder)
            if entry not in self._state.files:
                self._change(files=(*self._state.files, entry))

    def begin(self, run_name: str) -> None:
        """Start or resume the run. The server shows it under `run_name`."""
        self._change(name=run_name, status=None)

    def put_status(self, status: str) -> None:
        """Store the final status of the run."""
        self._change(status=status)

    def put_child(self, folder: str) -> None:
        """Store the folder of a child run."""
        with self._lock:
            if folder not in self._state.children:
                self._change(children=(*self._state.children, folder))

    def connect(self) -> RemoteRun:
        """Return the run at the tracker. Create a missing run. Raise the errors of `TrackerClient.connect`."""
        if self._run is None:
            parent = self._parent.run_id if self._parent else None
            self._change()  # store the key before a run is created with it
            state = self._state
            run = self.client.connect(state.name, self.run_id, parent, state.key, self._sent_points)
            with self._lock:
                state = self._state  # includes data that was stored while `connect` waited for the tracker
                has_nothing, offset = run.run_id != self.run_id or not run.points, state.sent
                if has_nothing or run.points != self._sent_points:
                    self._sent_points, offset = self._steps.locate(run.points)
                for name in ["descriptions", *(["files"] * has_nothing)]:
                    waiting, sent = getattr(state, name), getattr(state, f"sent_{name}")
                    again = (*(entry for entry in sent if entry not in waiting), *waiting)
                    self._change(**{name: again, f"sent_{name}": ()})
                self._change(tracking_id=run.run_id, view=run.view, sent=offset)
                self._run = run
        return self._run

    def send(self) -> None:
        """Send one message, or raise the error. After an error, the next call connects again."""
        run = self.connect()
        try:
            self._send(run)
        except BaseException:
            self._run = None
            raise

    def _send(self, run: RemoteRun) -> None:
        state = self._state
        if state.descriptions:
            description = state.descriptions[0]
            run.describe(description.params, description.dataset, description.tags)
            self._confirm("descriptions", description)
        elif self._unsent:
            batch = self._steps.read_from(state.sent, POINTS_PER_MESSAGE)
            run.log(batch.points)
            with self._lock:
                self._sent_points += len(batch.points)
                self._change(sent=batch.end)
                self._due = time.monotonic() + GATHER_SECONDS
        elif entry := self._next_file():
            path, folder = entry
            # A file that was removed cannot be sent, and a file outside the output does not belong to the run.
            if Path(path).is_file() and Path(path).resolve().is_relative_to(self._output):
                try:
                    run.log_file(Path(path), folder)
                except Exception as error:  # any error: metrics and status must not wait for a file
                    self._refused[entry] = one_line(error)
                    return
            self._confirm("files", entry)
        elif status := state.status:
            run.finish(status)
            with self._lock:
                if self._state.status == status:  # unless another status was stored in the meantime
                    self._change(status=None)

    def _confirm(self, name: str, entry: Any) -> None:
        with self._lock:
            before, sent = getattr(self._state, name), getattr(self._state, f"sent_{name}")
            waiting = tuple(other for other in before if other is not entry)
            if len(waiting) < len(before):
                self._change(**{name: waiting, f"sent_{name}": (*sent, entry)})

    def _change(self, **values: Any) -> None:
        with self._lock:
            state = replace(self._state, **values)
            if state != self._state or not self._file.exists():  # do not rewrite the file of a finished run
                self._state = state
                write_atomically(self._file, json.dumps(asdict(state)) + "\n")


class OutboxSender:
    """Thread that sends the data of outboxes to one tracker until it is closed."""

    def __init__(self, client: TrackerClient, log: Callable[[str], None]) -> None:
        self.client, self._log = client, log
        self._outboxes: list[Outbox] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._ending_since = 0.0  # `time.monotonic()`; 0 before the end of the run
        self._failures_in_a_row = 0
        self._failing_since: float | None = None
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name=f"raytriever-{client.name}", daemon=True)

    def add(self, outbox: Outbox) -> None:
        """Add an outbox. Its data is sent after that of earlier outboxes. Start the thread if it is not running."""
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
        return sum((outbox.backlog() for outbox in self._outboxes), Backlog(failures=self.failures))

    def end(self) -> None:
        """From now on, send all data without delay, even a few points."""
        with self._changed:
            self._ending_since = self._ending_since or time.monotonic()
            self._changed.notify_all()

    @property
    def refusals(self) -> list[str]:
        """Reason for each file that the tracker refused."""
        return [reason for outbox in self._outboxes for reason in outbox.refusals]

    def close(self, patience: float) -> bool:
        """Send all data, then stop the thread. Return whether all was sent. Refused files are tried once more. A
        failing tracker has `patience` seconds from the call of `end`. A tracker that accepts data has no time limit."""
        self.end()
        if self._wait(patience) and sum(outbox.retry_files() for outbox in self._outboxes):
            self.wake()
            self._wait(patience)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        return not any(outbox.has_unsent_data for outbox in self._outboxes)

    def _wait(self, patience: float) -> bool:
        with self._changed:
            while self._next_outbox() is not None and self._thread.is_alive():
                since = self._failing_since
                if since is not None and time.monotonic() - max(self._ending_since, since) >= patience:
                    break
                self._changed.wait(0.1)
            return self._next_outbox() is None

    def _next_outbox(self) -> Outbox | None:
        return next((outbox for outbox in self._outboxes if outbox.has_data_to_send), None)

    def _due_outbox(self) -> Outbox | None:
        """Return the first outbox whose data is due. At the end of the run, all data is due."""
        due = (
            outbox for outbox in self._outboxes if outbox.has_data_to_send and (self._ending_since or not outbox.due_in)
        )
        return next(due, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                while (outbox := self._due_outbox()) is None and not self._is_closed:
                    waiting = (outbox.due_in for outbox in self._outboxes if outbox.has_data_to_send)
                    self._changed.wait(min(waiting, default=None))
                if outbox is None or self._is_closed:
                    return
            try:
                with disk_errors(self.client.address):
                    outbox.send()
            except Exception as error:  # any error: the run continues, and the error is logged
                self._record_failure(error)
            else:
                self._record_success()

    def _record_success(self) -> None:
        if self._failures_in_a_row >= REPORTED_FAILURES and self._failing_since is not None:
            seconds = time.monotonic() - self._failing_since
            self._log(
                f"{self.client.address}: {self.client.title} answers again after {seconds:.0f} s; "
                "the stored data is being sent"
            )
        with self._changed:
            self._failures_in_a_row, self._failing_since = 0, None
            self._changed.notify_all()

    def _record_failure(self, error: Exception) -> None:
        self.failures += 1
        self._failures_in_a_row += 1
        if self._failures_in_a_row == REPORTED_FAILURES:
            self._log(f"{one_line(error)}; the run continues, and its data is stored and sent later")
        with self._changed:
            if self._failing_since is None:
                self._failing_since = time.monotonic()
            pause = min(FIRST_PAUSE * 2 ** (self._failures_in_a_row - 1), LONGEST_PAUSE)
            end = time.monotonic() + pause
            while not self._is_closed and (left := end - time.monotonic()) > 0:
                if self._ending_since:
                    left = min(left, END_PAUSE)
                    end = min(end, time.monotonic() + END_PAUSE)
                self._changed.wait(left)
