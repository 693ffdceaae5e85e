"""`runs`: list and clean run directories."""

from __future__ import annotations

import sys
from pathlib import Path

from raytriever.cli.arguments import Parser, add_path
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
from raytriever.paths import RUN, runs_folder
from raytriever.store.capacity import format_size
from raytriever.store.lock import InUseError
from raytriever.terminal import show, warn

ACTIONS = ("list", "clean")


def main(words: list[str]) -> None:
    """Parse, then list or clean."""
    arguments = _parser().parse(words)
    if arguments.action not in ACTIONS:
        if instead := removed(f"runs {arguments.action}"):
            raise ConfigError(f"'runs {arguments.action}' was removed", remedy=instead)
        raise ConfigError(f"unknown action {arguments.action!r}", remedy=did_you_mean(arguments.action, ACTIONS))
    if arguments.action != "clean" and (arguments.finished or arguments.interrupted or arguments.yes):
        raise ConfigError(
            "only `runs clean` has --finished, --interrupted and --yes",
            remedy=f"leave them out of `runs {arguments.action}`",
        )
    runs = find_runs(map(Path, arguments.folders or [runs_folder()]))
    if arguments.action == "list":
        _list(runs)
    else:
        _clean(runs, arguments.finished, arguments.interrupted, arguments.yes)


def _list(runs: list[RunEntry]) -> None:
    from raytriever.terminal import text_table

    if not runs:
        show("no runs")
        return
    rows = [["state", "kind", "started", "ended", "size", "loss", "metric", "run"]]
    rows += [
        [
            run.state,
            run.kind,
            format_time(run.started),
            format_time(run.ended),
            format_size(run.size),
            "-" if run.loss is None else f"{run.loss:.4g}",
            "-" if run.metric is None else f"{run.metric[0]} {run.metric[1]:.4f}",
            f"{run.path}" + (f" ({run.detail})" if run.detail else ""),
        ]
        for run in runs
    ]
    show(text_table(rows))
    for run in runs:
        if run.command:
            show(f"continue with: {run.command}")


def _clean(runs: list[RunEntry], finished: bool, interrupted: bool, yes: bool) -> None:
    states = [FINISHED] * finished + [INTERRUPTED] * interrupted
    if not states:
        raise ConfigError(
            "`runs clean` needs the state of the runs to clean", remedy="give --finished, --interrupted or both"
        )
    chosen = cleanable_runs(runs, states)
    size = sum(one.size for run in chosen for one in run.checkpoints)
    for run in chosen:
        show(f"{run.path}: {describe_loss(run)}, {format_size(sum(one.size for one in run.checkpoints))}")
    if not chosen:
        show("nothing to remove")
        return
    if not yes and not _agrees(f"remove the checkpoints of {len(chosen)} runs, {format_size(size)}?"):
        show(f"nothing was removed; --yes removes {format_size(size)}")
        return
    freed = 0
    for run in chosen:
        try:
            freed += remove_checkpoints(run)
        except InUseError as error:  # it has been resumed since it was listed
            warn(f"kept: {error}")
    show(f"removed {format_size(freed)}")


def _agrees(question: str) -> bool:
    """Ask on the terminal; without a terminal the answer is no."""
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    warn(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _parser() -> Parser:
    parser = Parser("runs", "List run directories, or remove checkpoints that are no longer needed.")
    parser.add_argument("action", metavar="|".join(ACTIONS), help="list runs, or clean runs of checkpoints")
    folders = "run directories, or folders of them (default: RAYTRIEVER_RUNS, or runs/)"
    add_path(parser, "folders", RUN, "FOLDER", folders, nargs="*", default=[])
    parser.add_argument("--finished", action="store_true", help="clean: remove the checkpoints of finished runs")
    parser.add_argument("--interrupted", action="store_true", help="clean: remove the checkpoints of interrupted runs")
    parser.add_argument("--yes", action="store_true", help="clean: remove without asking")
    return parser
