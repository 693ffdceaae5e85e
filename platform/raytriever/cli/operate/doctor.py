"""`doctor`: a line for each thing on this machine that a run needs; exit code 1 where one is an error."""

from __future__ import annotations

import sys

from raytriever.cli.arguments import Parser
from raytriever.operation.doctor import ERROR, WARNING, examine
from raytriever.terminal import show


def main(words: list[str]) -> None:
    """Parse, examine, print."""
    _parser().parse(words)
    found = examine()
    for line in found:
        show(str(line))
    errors, warnings = (sum(line.level == level for line in found) for level in (ERROR, WARNING))
    show(f"\n{errors} errors, {warnings} warnings")
    if errors:
        sys.exit(1)


def _parser() -> Parser:
    parser = Parser("doctor", "Check versions, processor, memory, devices, servers, disks, locks and tokens.")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error too")
    return parser
