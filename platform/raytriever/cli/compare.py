"""`compare`: write one HTML page that compares finished runs."""

from __future__ import annotations

from pathlib import Path

from raytriever.cli.arguments import Parser, add_path
from raytriever.paths import OUTPUT, RUN
from raytriever.report.request import check_comparison
from raytriever.terminal import show


def main(words: list[str]) -> None:
    """Parse, read, write, print."""
    arguments = _parser().parse(words)
    output = Path(arguments.output)
    check_comparison(arguments.runs, output)

    from raytriever.report.comparison import compare_runs

    compare_runs(arguments.runs, output)
    show(f"{output} (open it in a browser)")


def _parser() -> Parser:
    parser = Parser(
        prog="compare", description="Write one HTML page that compares finished runs of training and evaluation."
    )
    runs = "a run directory, a run id of MLflow, or a filter of MLflow's search"
    add_path(parser, "runs", RUN, "RUN", runs, nargs="+")
    add_path(parser, "--output", OUTPUT, "FILE", "the page to write (default: report.html)", default="report.html")
    return parser
