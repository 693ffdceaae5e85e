"""State of a run at a tracker, as `run.json` and `run-NAME.json` in the run directory hold it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

from raytriever.errors import StorageError, setting
from raytriever.reading.structured import conform, read_json
from raytriever.tracking.mlflow_tracker import comparison_view
from raytriever.tracking.steps import StepLog
from raytriever.tracking.tracker import DatasetRecord

IDENTITY = "run.json"
EMPTY: dict[str, Any] = {"name": "", "view": "", "sent": 0, "descriptions": [], "sent_descriptions": []}
EMPTY |= {"files": [], "sent_files": [], "status": None, "children": []}


def state_file(tracker: str) -> str:
    """Return the name of the file in the run directory that has what a tracker does not have yet."""
    return IDENTITY if tracker == "mlflow" else f"run-{tracker}.json"


class _Description(TypedDict):
    params: dict[str, str]
    dataset: DatasetRecord | None
    tags: dict[str, str]


class _State(TypedDict, total=False):
    tracking_id: str | None
    key: str
    name: str
    view: str
    sent: int
    descriptions: list[_Description]
    sent_descriptions: list[_Description]
    files: list[list[str]]
    sent_files: list[list[str]]
    status: str | None
    children: list[str]


def read_state(path: Path) -> dict[str, Any]:
    """Return the state that a file holds; nothing without the file. Raises `StorageError` if it is damaged."""
    if not path.is_file():
        return {}
    remedy = f"give another {setting('output')}"
    content = read_json(path, dict[str, Any], remedy)
    state = conform(content, str(path), _State, remedy)
    files = [*state.get("files", []), *state.get("sent_files", [])]
    if state.get("sent", 0) < 0 or any(len(entry) != 2 for entry in files):
        raise StorageError("is damaged or changed: 'sent' is negative, or 'files' are not pairs", str(path), remedy)
    for child in state.get("children", []):
        if Path(child).is_absolute() or ".." in Path(child).parts:
            what = f"is damaged or changed: the folder of the child run {child!r} is not in this one"
            raise StorageError(what, str(path), remedy)
    return content


def has_unsent_data(folder: Path, tracker: str) -> bool:
    """Return whether a tracker of a run, or of a child run, does not have all data."""
    file = folder / state_file(tracker)
    if not file.is_file():
        return False
    state = {**EMPTY, **read_state(file)}
    own = StepLog(folder).count(state["sent"]) or state["descriptions"] or state["files"] or state["status"]
    return bool(own) or any(has_unsent_data(folder / child, tracker) for child in state["children"])


def view_of(folder: Path, tracker: str) -> str:
    """Return the command or address that shows a run at a tracker, or the comparison of its child runs.

    It is empty if the tracker has not created the run.
    """
    state = {**EMPTY, **read_state(folder / state_file(tracker))}
    children = [read_state(folder / child / state_file(tracker)).get("tracking_id") for child in state["children"]]
    return comparison_view(state["view"], [run_id for run_id in children if run_id]) if state["view"] else ""
