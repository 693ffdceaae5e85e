"""State of a run at a tracker, stored as `run.json` or `run-NAME.json` in the run directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from raytriever.core.errors import StorageError, setting
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.tracking.mlflow_tracker import comparison_view
from raytriever.tracking.step_log import StepLog
from raytriever.tracking.tracker import DatasetRecord

IDENTITY = "run.json"


@dataclass(frozen=True)
class RunDescription:
    """Settings, data and tags of a run: the arguments of `Tracker.describe`."""

    params: dict[str, str]
    dataset: DatasetRecord | None
    tags: dict[str, str]


@dataclass(frozen=True)
class RunState:
    """State of a run at a tracker. The tracker has the first `sent` bytes of `steps.jsonl`, and the fields `sent_...`.

    The run is created with `key`. An entry of `files` is a path and a folder; a child run is a relative folder."""

    key: str
    tracking_id: str | None = None
    name: str = ""
    view: str = ""
    sent: int = 0
    descriptions: tuple[RunDescription, ...] = ()
    sent_descriptions: tuple[RunDescription, ...] = ()
    files: tuple[tuple[str, ...], ...] = ()
    sent_files: tuple[tuple[str, ...], ...] = ()
    status: str | None = None
    children: tuple[str, ...] = ()


def state_file(tracker: str) -> str:
    """Return the name of the file in the run directory that holds the state of the run at a tracker."""
    return IDENTITY if tracker == "mlflow" else f"run-{tracker}.json"


def read_state(path: Path) -> RunState | None:
    """Return the state in a file; None if there is no file. Raise `StorageError` if the file is damaged."""
    if not path.is_file():
        return None
    remedy = f"give another {setting('output')} to start a new run"
    state = read_json(path, RunState, remedy)
    if state.sent < 0 or any(len(entry) != 2 for entry in (*state.files, *state.sent_files)):
        raise StorageError("is damaged or changed: 'sent' is negative, or 'files' are not pairs", str(path), remedy)
    for child in state.children:
        if Path(child).is_absolute() or ".." in Path(child).parts:
            what = f"is damaged or changed: the folder of the child run {child!r} is outside the run"
            raise StorageError(what, str(path), remedy)
    return state


def has_unsent_data(folder: Path, tracker: str) -> bool:
    """Return whether a tracker lacks data of a run or of one of its child runs."""
    state = read_state(folder / state_file(tracker))
    if state is None:
        return False
    own = StepLog(folder).count(state.sent) or state.descriptions or state.files or state.status
    return bool(own) or any(has_unsent_data(folder / child, tracker) for child in state.children)


def view_of(folder: Path, tracker: str) -> str:
    """Return the command or address that shows a run at a tracker, or the comparison of its child runs. Return an empty
    text if the tracker has not created the run."""
    state = read_state(folder / state_file(tracker))
    if state is None or not state.view:
        return ""
    children = [read_state(folder / child / state_file(tracker)) for child in state.children]
    return comparison_view(state.view, [child.tracking_id for child in children if child and child.tracking_id])
