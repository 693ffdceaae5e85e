"""Results of a benchmark with their thresholds, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

REPOSITORY = Path(__file__).parents[1]

# Instructions that decide how fast a processor multiplies matrices, by their name in /proc/cpuinfo.
FEATURES = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512-VNNI",
    "avx512_bf16": "AVX-512-bf16",
    "amx_bf16": "AMX-bf16",
}

# Environment that holds every library that multiplies to the instructions of a processor without AVX-512.
AVX2 = """ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 OPENBLAS_CORETYPE=Zen
FAISS_OPT_LEVEL=avx2 NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR" NUMBA_CPU_NAME=znver3
NUMBA_CPU_FEATURES="+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt,+sse4.2" NUMBA_CACHE_DIR=FOLDER-OF-ITS-OWN"""


@dataclass(frozen=True)
class End:
    """One result; `value` and `target` have the unit that its name states."""

    value: float
    target: str
    holds: bool


def reported(value: float) -> End:
    """Return a figure without a goal."""
    return End(value, "reported", True)


def at_most(value: float, limit: float) -> End:
    """Return a figure with an upper bound."""
    return End(value, f"at most {limit}", bool(value <= limit))


def at_least(value: float, limit: float) -> End:
    """Return a figure with a lower bound."""
    return End(value, f"at least {limit}", bool(value >= limit))


def exactly(value: float, wanted: float) -> End:
    """Return a figure that must equal a number."""
    return End(value, f"{wanted}", bool(value == wanted))


def report(title: str, ends: dict[str, End], to: Path | None) -> None:
    """Print the results as a table, and write them as JSON if `json` is a path."""
    dim = max(len(name) for name in ends)
    print(f"{title}, {date.today()}, {machine()}")
    for name, end in ends.items():
        print(end_line(name, end, dim))
    if to is not None:
        write_ends(ends, to)


def end_line(name: str, end: End, dim: int = 75) -> str:
    """Return a result as a line of a table."""
    return f"{name:<{dim}}  {end.value:>10.4g}  {end.target:<22} {'holds' if end.holds else 'FAILS'}"


def write_ends(ends: dict[str, End], to: Path) -> None:
    """Write results as JSON, with the machine."""
    content = {"machine": machine(), "ends": {name: asdict(end) for name, end in ends.items()}}
    part = to.with_name(f"{to.name}.part")
    part.write_text(json.dumps(content, indent=2) + "\n")
    part.replace(to)


def read_ends(path: Path) -> dict[str, End]:
    """Read the results of a file."""
    return {name: End(**end) for name, end in json.loads(path.read_text())["ends"].items()}


def machine() -> str:
    """Return the processor with its number of cores and the vector instructions that this process uses, and the GPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    known = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(known.get("flags", "").split())
    features = [name for flag, name in FEATURES.items() if flag in flags and (flag == "avx2" or not _limited_to_avx2())]
    cores = f"{known.get('model name', platform.processor() or platform.machine())} x {os.cpu_count()}"
    return ", ".join([" ".join([cores, *([f"({', '.join(features)})"] if features else [])]), *_cards()])


def _limited_to_avx2() -> bool:
    """Return True if oneDNN is held to the instructions of a processor without AVX-512."""
    return os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() == "AVX2"


def _cards() -> list[str]:
    """Return the name of the GPU that torch has used in this process."""
    torch = sys.modules.get("torch")
    return [torch.cuda.get_device_name()] if torch is not None and torch.cuda.is_initialized() else []


def own_places(folder: Path | str, name: str = "cache") -> dict[str, str]:
    """Return the environment of a command of this checkout with a cache and a tracking database of its own."""
    places = {"RAYTRIEVER_CACHE": f"{folder}/{name}", "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/{name}.db"}
    return os.environ | places | {"PYTHONPATH": str(REPOSITORY / "platform")}


def job(name: str) -> list[str]:
    """Return the first words of a command: this Python and the program in `jobs/`."""
    return [sys.executable, str(REPOSITORY / "jobs" / f"{name}.py")]


def result_of(words: list[str], scratch: Path | None) -> dict[str, float]:
    """Run a script in a process with its own cache, in a folder of `scratch`; return the JSON of its last line."""
    with TemporaryDirectory(dir=scratch) as cache:
        environment = {**os.environ, "RAYTRIEVER_CACHE": cache}
        process = subprocess.run([sys.executable, *words], check=True, stdout=subprocess.PIPE, env=environment)
        return dict(json.loads(process.stdout.splitlines()[-1]))


def add_device(arguments: argparse.ArgumentParser) -> None:
    """Add the flag `--device`."""
    arguments.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where it runs (default: cpu)")


def check_device(device: str) -> None:
    """End the program with one line if torch has no such device; hide GPUs from a run on the CPU."""
    import torch

    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        sys.exit(f"{Path(sys.argv[0]).name}: torch finds no CUDA device: use a machine with one, or --device cpu")


def parser(about: str) -> argparse.ArgumentParser:
    """Return a parser with the flag `--json PATH`; its help names the environment of AVX2 alone."""
    arguments = argparse.ArgumentParser(description=about, epilog=f"The environment of AVX2 alone: {AVX2}")
    arguments.add_argument("--json", type=Path, metavar="PATH", help="write the ends there too")
    return arguments
