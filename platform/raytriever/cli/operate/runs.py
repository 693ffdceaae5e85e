"""`runs`: list and clean run directories."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from raytriever.cli.command import Given
from raytriever.cli.suggestions import removed
from raytriever.errors import ConfigError
from raytriever.operation.cache import format_time
from raytriever.operation.runs import (
    FINISHED,
    INTERRUPTED,
    RunEntry,
    cleanable_runs,
    describe_loss,
    find_runs,
    remove_checkpoints,
)
from raytriever.options import did_you_mean
from raytriever.paths import runs_folder
from raytriever.store.capacity import format_size
from raytriever.store.lock import InUseError
from raytriever.terminal import text_table, warn

ACTIONS = ("list", "clean")


def run(given: Given) -> Iterator[str]:
    """List the runs or clean them."""
    if given.action not in ACTIONS:
        if instead := removed(f"runs {given.action}"):
            raise ConfigError(f"'runs {given.action}' was removed", remedy=instead)
        raise ConfigError(f"unknown action {given.action!r}", remedy=did_you_mean(given.action, ACTIONS))
    if given.action != "clean" and (given.finished or given.interrupted or given.yes):
        raise ConfigError(
            "only `runs clean` has --finished, --interrupted and --yes",
            remedy=f"leave them out of `runs {given.action}`",
        )
    runs = find_runs(map(Path, given.folders or [runs_folder()]))
    states = [FINISHED] * given.finished + [INTERRUPTED] * given.interrupted
    yield from _list(runs) if given.action == "list" else _clean(runs, states, given.yes)


def _list(runs: list[RunEntry]) -> Iterator[str]:
    if not runs:
        yield "no runs"
        return
    rows = [["state", "kind", "ended", "size", "run"]]
    rows += [
        [
            run.state,
            run.kind,
            format_time(run.ended),
            format_size(run.size),
            f"{run.path}" + (f" ({run.detail})" if run.detail else ""),
        ]
        for run in runs
    ]
    yield text_table(rows)
    for run in runs:
        if run.command:
            yield f"continue with: {run.command}"


def _clean(runs: list[RunEntry], states: list[str], yes: bool) -> Iterator[str]:
    if not states:
        raise ConfigError(
            "`runs clean` needs the state of the runs to clean", remedy="give --finished, --interrupted or both"
        )
    chosen = cleanable_runs(runs, states)
    size = sum(one.size for run in chosen for one in run.checkpoints)
    for run in chosen:
        yield f"{run.path}: {describe_loss(run)}, {format_size(sum(one.size for one in run.checkpoints))}"
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
        except InUseError as error:  # it has been resumed since it was listed
            warn(f"kept: {error}")
    yield f"removed {format_size(freed)}"


def _agrees(question: str) -> bool:
    """Ask on the terminal; without a terminal the answer is no."""
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    warn(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
