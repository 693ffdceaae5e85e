"""Figures of one GPU: losses, training steps, encoding, search, mining and resuming, against what users have today.

Run: `python benchmarks/gpu.py [--sections losses,training] [--output DIR]`. It takes under 25 minutes on one card. It
needs torch, transformers, triton, numba and scipy, not Ray. Rows of sentence-transformers appear where it is installed.
Each section runs in a process of its own with a time limit, prints its table, and writes `gpu-SECTION-DATE.json` with
the name of the card. `--device cpu --size tiny` runs the same code with small sizes on any machine.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from datetime import date
from pathlib import Path

import torch

from ends import report

# Seconds that a section may take; together under 25 minutes.
SECTIONS = {"losses": 330, "training": 600, "retrieval": 330, "repeat": 180}
SIZES = ("full", "tiny")


def main() -> int:
    """Run the chosen sections, each in its own process, and return the number of those that ended with an error."""
    options = _options()
    if options.section:
        module = importlib.import_module(f"on_gpu.{options.section}")
        ends = module.measure(torch.device(options.device), options.size)
        name = f"gpu-{options.section}-{date.today()}.json"
        report(options.section, ends, options.output and options.output / name)
        return 0
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py: torch finds no CUDA device: use a machine with one, or --device cpu --size tiny")
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
    failed = 0
    for section in options.sections:
        command = [sys.executable, __file__, "--section", section, "--device", options.device, "--size", options.size]
        if options.output:
            command += ["--output", str(options.output)]
        try:
            code = subprocess.run(command, timeout=SECTIONS[section], check=False).returncode
        except subprocess.TimeoutExpired:
            code = f"no result in {SECTIONS[section]} seconds"
        if code:
            print(f"{section}: {f'exit status {code}' if isinstance(code, int) else code}", flush=True)
        failed += bool(code)
    return failed


def _options() -> argparse.Namespace:
    line = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    line.add_argument(
        "--sections", type=_sections, default=list(SECTIONS), metavar="NAME,...", help=", ".join(SECTIONS)
    )
    line.add_argument("--output", type=Path, metavar="DIR", help="write each section's figures there as JSON")
    line.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    line.add_argument("--size", choices=SIZES, default="full", help="tiny: only to see that everything runs")
    line.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    return line.parse_args()


def _sections(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in SECTIONS]:
        raise argparse.ArgumentTypeError(f"no section {', '.join(unknown)}; choose from {', '.join(SECTIONS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
