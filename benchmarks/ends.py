"""Measured ends: what a benchmark found, what was wanted, and whether it holds, as a table and as JSON."""

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
    """One measured end; `value` and `target` are told in the words of the end's name."""

    value: float
    target: str
    holds: bool


def report(title: str, ends: dict[str, End], to: Path | None) -> None:
    """Print the ends as a table, and write them as JSON where asked."""
    width = max(len(name) for name in ends)
    print(f"{title}, {date.today()}, {machine()}")
    for name, end in ends.items():
        print(f"{name:<{width}}  {end.value:>10.4g}  {end.target:<22} {'holds' if end.holds else 'FAILS'}")
    if to is not None:
        to.write_text(json.dumps({name: asdict(end) for name, end in ends.items()}, indent=2) + "\n")


def machine() -> str:
    """The processor's name and its cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()} x {os.cpu_count()}"


def parser(about: str) -> argparse.ArgumentParser:
    """A command line with `--json PATH`."""
    found = argparse.ArgumentParser(description=about)
    found.add_argument("--json", type=Path, metavar="PATH", help="write the ends there too")
    return found
