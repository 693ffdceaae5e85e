"""Figures of one GPU: losses, training steps, encoding, search, mining, kernels and resuming, against what users have.

Run: `python benchmarks/gpu.py [--sections losses,training] [--cases xlm-r-large-64] [--output DIR]`. It takes under 25
minutes on one card, and with `--size short` under 4. It needs torch, transformers, triton, numba and scipy, not Ray.
Rows of sentence-transformers appear where it is installed. Each section runs in a process of its own with a time limit.
Each figure is printed as soon as it is there, and kept in `gpu-SECTION-DATE.json` with the name of the card. A case
that fails is one line. `--device cpu --size tiny` runs the same code with small sizes on any machine."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import traceback
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from ends import End, end_line, machine, read_ends, write_ends
from on_gpu.measuring import release

# Seconds that a section may take; together under 25 minutes.
SECTIONS = {"losses": 330, "training": 600, "retrieval": 330, "repeat": 180, "kernels": 120}
SIZES = ("full", "short", "tiny")


def main() -> int:
    """Run the chosen sections, each in its own process, and return the number of those that ended with an error."""
    options = _options()
    if options.section:
        return measure(options)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py: torch finds no CUDA device: use a machine with one, or --device cpu --size tiny")
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
    failed = 0
    for section in options.sections:
        command = [sys.executable, __file__, "--section", section, "--device", options.device, "--size", options.size]
        if options.output:
            command += ["--output", str(options.output)]
        if options.cases:
            command += ["--cases", ",".join(options.cases)]
        try:
            code = subprocess.run(command, timeout=SECTIONS[section], check=False).returncode
        except subprocess.TimeoutExpired:
            code = f"no result in {SECTIONS[section]} seconds"
        if code:
            print(f"{section}: {f'exit status {code}' if isinstance(code, int) else code}", flush=True)
        failed += bool(code)
    return failed


def measure(options: argparse.Namespace) -> int:
    """Measure the cases of one section, print and keep each figure at once, and return the number of failed cases."""
    device = torch.device(options.device)
    file = options.output and options.output / f"gpu-{options.section}-{date.today()}.json"
    # Other cases of the same day are kept.
    ends = read_ends(file) if file and file.exists() else dict[str, End]()
    failed, names = 0, list[str]()
    print(f"{options.section}, {date.today()}", flush=True)
    with TemporaryDirectory() as scratch:
        for name, figures in cases(options.section, device, options.size, Path(scratch)):
            names.append(name)
            if options.cases and name not in options.cases:
                continue
            try:
                for title, end in figures:
                    print(end_line(title, end), flush=True)
                    ends[title] = end
                    if file:
                        write_ends(ends, file)
            except Exception as error:  # the other cases still run
                failed += 1
                place = traceback.extract_tb(error.__traceback__)[-1]
                text = " ".join(str(error).split())[:300]
                print(f"{name}: {type(error).__name__}: {text} at {place.filename}:{place.lineno}", flush=True)
            release(device)
    if options.cases and not set(options.cases) & set(names):
        print(f"no case {', '.join(options.cases)}; choose from {', '.join(names)}", flush=True)
        failed += 1
    print(machine(), flush=True)
    return failed


def cases(
    section: str, device: torch.device, size: str, scratch: Path
) -> Iterator[tuple[str, Iterator[tuple[str, End]]]]:
    """Yield the names of a section's cases, most worth first, and their figures."""
    module = importlib.import_module(f"on_gpu.{section}")
    yield from module.cases(device, size, scratch)


def _options() -> argparse.Namespace:
    line = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    line.add_argument(
        "--sections", type=_sections, default=list(SECTIONS), metavar="NAME,...", help=", ".join(SECTIONS)
    )
    line.add_argument("--cases", type=lambda text: text.split(","), metavar="NAME,...", help="of the sections")
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
