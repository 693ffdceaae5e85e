"""`compare`: write one HTML page that compares finished runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raytriever.cli.arguments import Parser, path_type
from raytriever.errors import ConfigError
from raytriever.paths import OUTPUT, RUN
from raytriever.storage import check_writable
from raytriever.terminal import show

if TYPE_CHECKING:
    from raytriever.report.finished_runs import FinishedRun

_RUN_ID = re.compile(r"[0-9a-f]{32}")
_FILTER = re.compile(r"[=<>]|\b(?i:like|in)\b")


def main(words: list[str]) -> None:
    """Parse, read, write, print."""
    arguments = _parser().parse(words)
    for word in arguments.runs:
        if not (Path(word).is_dir() or _RUN_ID.fullmatch(word) or _FILTER.search(word)):
            raise ConfigError(
                f"{word!r} is neither a directory nor an MLflow run",
                remedy="give a directory, a run id of 32 digits, or a filter such as \"params.loss.loss = 'mw'\"",
            )
    output = Path(arguments.output)
    if output.is_dir():
        raise ConfigError("is a directory", f"--output {output}", "give the path of the HTML file to write")
    check_writable(output.parent)

    from raytriever.report.comparison import write_comparison

    write_comparison(output, _number_duplicates(_read_runs(arguments.runs)))
    show(f"{output} (open it in a browser)")


def _read_runs(words: Sequence[str]) -> Iterator[FinishedRun]:
    """Yield the runs of the command line, in order."""
    from raytriever.evaluation.names import distinct_names
    from raytriever.report.finished_runs import MlflowRuns, read_directory

    names = iter(distinct_names([word for word in words if Path(word).is_dir()]))
    for word in words:
        if Path(word).is_dir():
            yield read_directory(Path(word), next(names))
        elif _RUN_ID.fullmatch(word):
            yield MlflowRuns().by_id(word)
        else:
            yield from MlflowRuns().by_filter(word)


def _number_duplicates(runs: Iterator[FinishedRun]) -> list[FinishedRun]:
    """Return the runs; append a number to each name that an earlier run has."""
    import dataclasses

    renamed: list[FinishedRun] = []
    for run in runs:
        names = {one.name for one in renamed}
        name, number = run.name, 2
        while name in names:
            name, number = f"{run.name} {number}", number + 1
        renamed.append(dataclasses.replace(run, name=name))
    return renamed


def _parser() -> Parser:
    parser = Parser(
        prog="compare", description="Write one HTML page that compares finished runs of training and evaluation."
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=path_type(RUN, ""),
        metavar="RUN",
        help="a run directory, a run id of MLflow, or a filter of MLflow's search",
    )
    parser.add_argument(
        "--output",
        type=path_type(OUTPUT, "--output"),
        default="report.html",
        metavar="FILE",
        help="the page to write (default: report.html)",
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser
