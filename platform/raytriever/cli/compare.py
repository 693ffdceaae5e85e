"""`compare`: write one HTML page that compares finished runs."""

from __future__ import annotations

from pathlib import Path

from raytriever.cli.arguments import Parser, path_type
from raytriever.paths import OUTPUT, RUN
from raytriever.terminal import show


def main(words: list[str]) -> None:
    """Parse, read, write, print."""
    arguments = _parser().parse(words)
    output = Path(arguments.output)

    from raytriever.report.comparison import compare_runs

    compare_runs(arguments.runs, output)
    show(f"{output} (open it in a browser)")


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
