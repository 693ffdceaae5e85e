"""Results of a benchmark with their thresholds, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path


@dataclass(frozen=True)
class End:
    """One result; `value` and `target` have the unit that its name states."""

    value: float
    target: str
    holds: bool


def report(title: str, ends: dict[str, End], to: Path | None) -> None:
    """Print the results as a table, and write them as JSON if `json` is a path."""
    width = max(len(name) for name in ends)
    print(f"{title}, {date.today()}, {machine()}")
    for name, end in ends.items():
        print(f"{name:<{width}}  {end.value:>10.4g}  {end.target:<22} {'holds' if end.holds else 'FAILS'}")
    if to is not None:
        to.write_text(json.dumps({name: asdict(end) for name, end in ends.items()}, indent=2) + "\n")


def machine() -> str:
    """Return the name of the processor and its number of cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()} x {os.cpu_count()}"


def parser(about: str) -> argparse.ArgumentParser:
    """Return a parser with the flag `--json PATH`."""
    arguments = argparse.ArgumentParser(description=about)
    arguments.add_argument("--json", type=Path, metavar="PATH", help="write the ends there too")
    return arguments
