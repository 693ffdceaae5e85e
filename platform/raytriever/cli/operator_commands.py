"""Commands of an operator: `runs`, `cache` and `doctor`."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path

from raytriever.cli.arguments import Argument
from raytriever.cli.command import Command, Given
from raytriever.cli.suggestions import removed
from raytriever.core.errors import ConfigError
from raytriever.core.paths import PATH, runs_folder
from raytriever.core.store.cache import cache_folder, remove_entry
from raytriever.core.store.capacity import UNITS, format_size
from raytriever.core.store.lock import InUseError
from raytriever.core.terminal import text_table, warn
from raytriever.core.unknown_names import check_known
from raytriever.experiments.operation.cache_inventory import CacheEntry, cache_entries, entries_to_prune, format_time
from raytriever.experiments.operation.doctor import ERROR, WARNING, examine
from raytriever.experiments.operation.run_inventory import (
    FINISHED,
    INTERRUPTED,
    RunEntry,
    describe_loss,
    find_runs,
    remove_checkpoints,
)

RUN_ACTIONS, CACHE_ACTIONS = ("list", "clean"), ("list", "prune")


def list_or_clean(given: Given) -> Iterator[str]:
    """List the runs or clean them."""
    if given.action not in RUN_ACTIONS:
        if instead := removed(f"runs {given.action}"):
            raise ConfigError(f"'runs {given.action}' was removed", remedy=instead)
        check_known("action", given.action, RUN_ACTIONS)
    if given.action != "clean" and (given.finished or given.interrupted or given.yes):
        what = "only `runs clean` has --finished, --interrupted and --yes"
        raise ConfigError(what, remedy=f"leave them out of `runs {given.action}`")
    runs = find_runs(map(Path, given.folders or [runs_folder()]))
    states = [FINISHED] * given.finished + [INTERRUPTED] * given.interrupted
    yield from _list_runs(runs) if given.action == "list" else _clean(runs, states, given.yes)


def _list_runs(runs: list[RunEntry]) -> Iterator[str]:
    if not runs:
        yield "no runs"
        return
    rows = [["state", "kind", "ended", "size", "run"]]
    for run in runs:
        path = f"{run.path}" + (f" ({run.detail})" if run.detail else "")
        rows.append([run.state, run.kind, format_time(run.ended), format_size(run.size), path])
    yield text_table(rows)
    for run in runs:
        if run.command:
            yield f"continue with: {run.command}"


def _clean(runs: list[RunEntry], states: list[str], yes: bool) -> Iterator[str]:
    if not states:
        what = "`runs clean` needs the state of the runs to clean"
        raise ConfigError(what, remedy="give --finished, --interrupted or both")
    chosen = [run for run in runs if run.state in states and run.checkpoints]
    size = sum(checkpoint.size for run in chosen for checkpoint in run.checkpoints)
    for run in chosen:
        yield f"{run.path}: {describe_loss(run)}, {format_size(sum(checkpoint.size for checkpoint in run.checkpoints))}"
    if not chosen:
        yield "nothing to remove"
        return
    if not yes and not _agrees(f"remove the checkpoints of {len(chosen)} runs, {format_size(size)}?"):
        yield f"nothing was removed; --yes removes {format_size(size)}"
        return
    freed = 0
    for run in chosen:
        try:
            freed += remove_checkpoints(run)
        except InUseError as error:  # somebody has resumed the run since it was listed
            warn(f"kept: {error}")
    yield f"removed {format_size(freed)}"


def _agrees(question: str) -> bool:
    """Ask the user and return True for yes. Without a terminal, return False."""
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    warn(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


RUNS = Command(
    list_or_clean,
    arguments=[
        Argument("action", "list runs, or clean runs of checkpoints", metavar="|".join(RUN_ACTIONS)),
        Argument(
            "folders", "run directories, or folders of them (default: RAYTRIEVER_RUNS, or runs/)", PATH, nargs="*"
        ),
        Argument("--finished", "clean: remove the checkpoints of finished runs", action="store_true"),
        Argument("--interrupted", "clean: remove the checkpoints of interrupted runs", action="store_true"),
        Argument("--yes", "clean: remove without asking", action="store_true"),
    ],
)


def list_or_prune(given: Given) -> Iterator[str]:
    """List or prune the entries of the cache."""
    check_known("action", given.action, CACHE_ACTIONS)
    limits = {"--max-size": given.max_size, "--max-age": given.max_age}
    flags = [flag for flag, value in limits.items() if value is not None]
    if given.action == "prune" and not flags:
        remedy = "give a size, such as --max-size 10GB, or an age, such as --max-age 30d"
        raise ConfigError("`cache prune` needs --max-size or --max-age", remedy=remedy)
    if given.action == "list" and flags:
        raise ConfigError(f"`cache list` has no {flags[0]}", remedy="leave it out, or use `cache prune`")
    entries = cache_entries()
    yield from _list_cache(entries) if given.action == "list" else _prune(entries, given.max_size, given.max_age)


def _list_cache(entries: list[CacheEntry]) -> Iterator[str]:
    rows = [["last used", "size", "entry"]]
    for entry in entries:
        user = f" (in use by {entry.owner})" if entry.owner is not None else " (in use)" if entry.is_open else ""
        name = str(entry.path.relative_to(cache_folder()))
        rows.append([format_time(entry.used_at), format_size(entry.size), name + user])
    if entries:
        yield text_table(rows)
    yield f"{cache_folder()}: {len(entries)} entries, {format_size(sum(entry.size for entry in entries))}"


def _prune(entries: list[CacheEntry], max_size: int | None, max_age: float | None) -> Iterator[str]:
    left = sum(entry.size for entry in entries)
    limit = inf if max_size is None else max_size
    before = -inf if max_age is None else time.time() - max_age
    for entry in entries_to_prune(entries, limit, before):
        if remove_entry(entry.path):
            left -= entry.size
            yield f"removed {entry.path.relative_to(cache_folder())}, {format_size(entry.size)}"
        else:
            warn(f"{entry.path}: kept, because another process uses it")
    yield f"{cache_folder()}: {format_size(left)} left"
    if left > limit:
        size = format_size(int(limit))
        warn(f"more than {size} is left, because the other entries are in use or cannot be created again")


def read_size(text: str) -> int:
    """Convert a size such as `10GB` to bytes. Raises `ConfigError` for any other text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?b)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{text!r} is not a size", "--max-size", "give a size such as 500MB or 10GB")
    return int(float(match[1]) * UNITS[(match[2] or "").upper()])


def read_age(text: str) -> float:
    """Convert an age such as `30d` to seconds. Raises `ConfigError` for any other text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([hd])", text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{text!r} is not an age", "--max-age", "give an age such as 12h or 30d")
    return float(match[1]) * (3_600 if match[2].lower() == "h" else 86_400)


CACHE = Command(
    list_or_prune,
    arguments=[
        Argument("action", "list the entries, or prune the cache", metavar="|".join(CACHE_ACTIONS)),
        Argument(
            "--max-size",
            "prune: size to keep, such as 500MB or 10GB; the least recently used entries are removed first",
            read_size,
            metavar="SIZE",
        ),
        Argument(
            "--max-age",
            "prune: time since the last use, such as 12h or 30d; entries unused for longer are removed",
            read_age,
            metavar="AGE",
        ),
    ],
)


def diagnose(given: Given) -> Iterator[str]:
    """Examine the machine."""
    findings = examine()
    yield from (line for _, line in findings)
    errors, warnings = (sum(level == wanted for level, _ in findings) for wanted in (ERROR, WARNING))
    yield f"\n{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
    if errors:
        sys.exit(1)


DOCTOR = Command(diagnose)
