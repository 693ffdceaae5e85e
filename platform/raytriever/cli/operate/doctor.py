"""`doctor`: print a line for each device, server, disk and lock; exit code 1 if one of them is an error."""

from __future__ import annotations

import sys

from raytriever.cli.arguments import Parser
from raytriever.operation.doctor import ERROR, WARNING, examine
from raytriever.terminal import show


def main(words: list[str]) -> None:
    """Parse, examine, print."""
    _parser().parse(words)
    findings = examine()
    for _, line in findings:
        show(line)
    errors, warnings = (sum(level == wanted for level, _ in findings) for wanted in (ERROR, WARNING))
    show(f"\n{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}")
    if errors:
        sys.exit(1)


def _parser() -> Parser:
    return Parser("doctor", "Check devices, servers, disks and locks.")
