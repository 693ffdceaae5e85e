"""`doctor`: print a line for each device, server, disk and lock; exit code 1 if one of them is an error."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from raytriever.cli.command import Given
from raytriever.operation.doctor import ERROR, WARNING, examine


def run(given: Given) -> Iterator[str]:
    """Examine the machine."""
    findings = examine()
    yield from (line for _, line in findings)
    errors, warnings = (sum(level == wanted for level, _ in findings) for wanted in (ERROR, WARNING))
    yield f"\n{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
    if errors:
        sys.exit(1)
