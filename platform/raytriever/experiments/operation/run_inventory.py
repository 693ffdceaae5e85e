"""Inventory of run directories: kind, state, progress and checkpoints of each.

The inventory reads the files of a directory instead of a registry, so it also lists runs that were moved or copied.
Every command writes certain files first; a directory without them is not a run, and is neither listed nor cleaned."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raytriever.core.errors import ConfigError, StorageError, UserError, disk_errors, flag_of
from raytriever.core.reading.json_and_yaml import parse_json, read_json, read_yaml
from raytriever.core.store.commit import MANIFEST, one_writer, remove
from raytriever.core.store.lock import owner_of
from raytriever.core.store.remote_folders import pull
from raytriever.experiments.operation.cache_inventory import size_of
from raytriever.experiments.run.run_directory import CONFIG, METRICS
from raytriever.tracking.step_log import training_folders
from raytriever.training.run_config import FOLDERS

RUNNING, INTERRUPTED, FINISHED, DAMAGED = "running", "interrupted", "finished", "damaged"
TRAINING, SWEEP = "training", "sweep"
CHECKPOINTS, MODEL, STEPS, IDENTITY = "checkpoints", "model", "steps.jsonl", "run.json"
_TRIALS, _RESULTS, _STUDY, _PLAN = "trials.json", "results.json", "study.json", "plan.json"
_TABLE, _BEST = "table.md", "best"  # table of a sweep, which is written last, and folder of its best trial
_TAIL = 1 << 16  # bytes to read from the end of `steps.jsonl`


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of a run, written after a step."""

    path: Path
    step: int
    size: int


@dataclass(frozen=True)
class RunEntry:
    """One directory that a command wrote."""

    path: Path
    kind: str  # `training`, `evaluation`, `sweep`, `study`, or the kind in its manifest
    state: str  # `running`, `interrupted`, `finished` or `damaged`
    detail: str  # text about the state: the process that writes the directory, the progress, or the damage
    ended: float | None = None  # end in seconds since 1970; None if the work has not ended
    size: int = 0
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def command(self) -> str | None:
        """The command that continues an interrupted training run; None for any other entry."""
        if self.kind != TRAINING or self.state != INTERRUPTED:
            return None
        return shlex.join(
            ["raytriever", "train", flag_of("config"), str(self.path / CONFIG), flag_of("output"), str(self.path)]
        )


def find_runs(folders: Iterable[Path]) -> list[RunEntry]:
    """Return the runs in folders: the folder itself if it is a run, else the runs directly below it."""
    entries: list[RunEntry] = []
    for folder in folders:
        pull(folder)  # copies only small files, not checkpoints
        if not folder.is_dir():
            raise ConfigError("no such folder", str(folder), "give a run directory, or a folder of run directories")
        entry = read_run(folder)
        children = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        entries += [entry] if entry is not None else [run for path in children if (run := read_run(path)) is not None]
    return entries


def read_run(folder: Path) -> RunEntry | None:
    """Return the run in a directory; None if no command wrote it."""
    owner = owner_of(folder)
    try:
        entry = _read(folder)
    except UserError as error:
        detail = str(error).removesuffix("; ")
        kind = TRAINING if (folder / CONFIG).is_file() else "unknown"  # the manifest may be unreadable
        entry = RunEntry(folder, kind, DAMAGED, detail, size=size_of(folder))
    if owner is None:
        return entry
    if entry is None:
        kind = owner.command.removeprefix("raytriever ")
        return RunEntry(folder, kind, RUNNING, str(owner), size=size_of(folder))
    return replace(entry, state=RUNNING, detail=f"{owner}{_progress(entry)}")


def describe_loss(run: RunEntry) -> str:
    """Describe the work that is lost if the checkpoints of a run are removed."""
    count, last = len(run.checkpoints), run.checkpoints[-1].step
    checkpoints = f"{count} checkpoint{'s' * (count > 1)}"
    if run.kind == SWEEP:
        if run.state == FINISHED:
            return f"{checkpoints} of the trials of a finished sweep"
        return f"{checkpoints} of the trials of an interrupted sweep; trials that have not ended then start at step 1"
    if run.state == FINISHED:
        return f"{checkpoints} of a finished run; the model, the metrics and the report are kept"
    return f"{checkpoints} of an interrupted run: {last:,} steps are lost; the same command then starts at step 1"


def remove_checkpoints(run: RunEntry) -> int:
    """Remove the checkpoints of a run that no process is writing. Return the number of freed bytes."""
    freed = 0
    with one_writer(run.path, remedy="wait for it"):
        now = _read(run.path)  # read the run again: another process may have resumed it since it was listed
        if now is None or now.state != run.state:
            raise StorageError("the run has changed since it was listed", str(run.path), "list the runs again")
        for folder in _checkpoint_folders(run.path):
            freed += size_of(folder)
            remove(folder, whole=True)
    return freed


def _read(folder: Path) -> RunEntry | None:
    kind = _kind(folder)
    if kind is None:
        return None
    if kind == TRAINING:
        return _training(folder)
    if kind == SWEEP:
        return _sweep(folder)
    size, changed = size_of(folder), folder.stat().st_mtime
    state, detail = FINISHED, ""
    if kind == "study":
        state = FINISHED if (folder / _RESULTS).is_file() else INTERRUPTED
        detail = str(_json(folder / _STUDY).get("study", ""))
    elif kind == "evaluation":
        models = _json(folder / _RESULTS).get("models", {})
        detail = ", ".join(map(str, models))
    elif not (folder / MANIFEST).is_file():
        state = INTERRUPTED
    return RunEntry(folder, kind, state, detail, ended=changed if state == FINISHED else None, size=size)


def _kind(folder: Path) -> str | None:
    """Return the kind of a directory, judged by the files that a command writes first; None if no command wrote it."""
    if (folder / _TRIALS).is_file():
        return SWEEP
    if (folder / _STUDY).is_file():
        return "study"
    if (folder / CONFIG).is_file():
        sections = [TRAINING] if (folder / METRICS).is_file() else _sections(folder / CONFIG)
        if sections:
            return SWEEP if SWEEP in sections else TRAINING
    if (folder / _RESULTS).is_file():
        return "evaluation"
    if (folder / MANIFEST).is_file():
        meta = _json(folder / MANIFEST).get("meta")
        kind = meta.get("kind") if isinstance(meta, dict) else None
        return str(kind) if kind else "committed directory"
    return "unfinished store" if any(map(Path.is_file, folder.glob(f"*/work/{_PLAN}"))) else None


def _sections(file: Path) -> Collection[str]:
    """Return the section names of a run's `config.yaml`; none if the file belongs to another program."""
    try:
        content = _yaml(file)
    except StorageError:
        is_run = (file.parent / STEPS).is_file() or (file.parent / IDENTITY).is_file()
        return [TRAINING] if is_run else []
    return content.keys() if {"data", "model", "training"} <= content.keys() else []


def _sweep(folder: Path) -> RunEntry:
    log = _json(folder / _TRIALS) if (folder / _TRIALS).is_file() else {}  # the first trial writes the file
    trials = [trial for trial in log.get("trials", []) if isinstance(trial, dict)]
    statuses = [trial.get("status") for trial in trials]
    ended, failed, planned = len(trials) - statuses.count(RUNNING), statuses.count("failed"), log.get("planned")
    state = FINISHED if (folder / _TABLE).is_file() else INTERRUPTED
    is_evaluated = (folder / _BEST / METRICS).is_file()
    detail = f"{ended} of {planned} trials" if planned else "no trial has begun"
    detail += f", {failed} failed" * bool(failed)
    detail += "; the best is not evaluated" * (state == INTERRUPTED and ended == planned and not is_evaluated)
    return RunEntry(
        path=folder,
        kind=SWEEP,
        state=state,
        detail=detail,
        ended=(folder / _TABLE).stat().st_mtime if state == FINISHED else None,
        size=size_of(folder),
        checkpoints=_checkpoints(folder),
    )


def _training(folder: Path) -> RunEntry:
    config = _yaml(folder / CONFIG)
    folders = list(dict.fromkeys([folder, *training_folders(folder)]))
    steps = [step for folder in folders for step in _last_steps(folder / STEPS)]
    step = steps[-1] if steps else 0
    checkpoints = _checkpoints(folder)
    finished = (folder / METRICS).is_file()
    if finished:
        _json(folder / METRICS)  # raises an error if the run is damaged
    total = _total_steps(config, checkpoints)
    part = f"{folders[-1].relative_to(folder)}, " if len(folders) > 1 else ""
    progress = f"{part}step {step:,} of {total:,}" if total else f"{part}step {step:,}"
    return RunEntry(
        path=folder,
        kind=TRAINING,
        state=FINISHED if finished else INTERRUPTED,
        detail=progress if finished else f"at {progress}",
        ended=(folder / METRICS).stat().st_mtime if finished else None,
        size=size_of(folder),
        checkpoints=checkpoints,
    )


def _total_steps(config: Mapping[str, Any], checkpoints: Sequence[Checkpoint]) -> int | None:
    training = config.get("training")
    if isinstance(training, Mapping) and isinstance(training.get("max_steps"), int):
        return int(training["max_steps"])
    if checkpoints:
        origin = _json(checkpoints[-1].path / "state.json").get("origin")
        if isinstance(origin, Mapping) and isinstance(origin.get("total_steps"), int):
            return int(origin["total_steps"])
    return None


def _checkpoints(folder: Path) -> tuple[Checkpoint, ...]:
    return tuple(
        Checkpoint(path, int(path.name[5:]), size_of(path))
        for checkpoint in _checkpoint_folders(folder)
        for path in sorted(checkpoint.glob("step-*"), key=lambda path: path.name[5:].zfill(12))
        if path.name[5:].isdigit() and (path / MANIFEST).is_file()
    )


def _checkpoint_folders(folder: Path) -> list[Path]:
    """Return the `checkpoints` folders of a run and of its trainings or trials. Symbolic links are left out."""
    below = [path for name in FOLDERS for path in sorted((folder / name).glob(f"*/{CHECKPOINTS}"))]
    paths = [folder / CHECKPOINTS, *below]
    return [path for path in paths if path.is_dir() and not path.is_symlink()]


def _last_steps(file: Path) -> list[int]:
    """Return the training steps in the last lines of a `steps.jsonl`. Lines that are no valid JSON are skipped."""
    if not file.is_file():
        return []
    with disk_errors(file), open(file, "rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL))
        lines = stream.read().splitlines()
    steps = []
    for raw in lines:
        with suppress(StorageError):
            line = parse_json(raw, STEPS, dict[str, Any], "")
            if isinstance(line.get("step"), int) and "loss" in line.get("metrics", {}):
                steps.append(line["step"])
    return steps


def _json(file: Path) -> dict[str, Any]:
    return read_json(file, dict[str, Any], "")


def _yaml(file: Path) -> dict[str, Any]:
    content = read_yaml(file, "")
    if not isinstance(content, dict):
        raise StorageError("the file holds no settings", str(file))
    return content


def _progress(entry: RunEntry) -> str:
    return f", {entry.detail.removeprefix('at ')}" if entry.kind in (TRAINING, SWEEP) and entry.detail else ""
