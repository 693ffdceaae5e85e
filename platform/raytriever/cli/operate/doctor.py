"""`doctor`: print one line for each thing that a run needs; exit code 1 if one of them is an error."""

from __future__ import annotations

import sys

from raytriever.cli.arguments import Parser
from raytriever.operation.doctor import ERROR, WARNING, examine
from raytriever.terminal import show


def main(words: list[str]) -> None:
    """Parse, examine, print."""
    _parser().parse(words)
    findings = examine()
    for finding in findings:
        show(str(finding))
    errors, warnings = (sum(finding.level == level for finding in findings) for level in (ERROR, WARNING))
    show(f"\n{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}")
    if errors:
        sys.exit(1)


def _parser() -> Parser:
    return Parser("doctor", "Check versions, processor, memory, devices, servers, disks, locks and tokens.")
