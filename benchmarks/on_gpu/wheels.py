"""A folder of wheels for a machine with a GPU, PyTorch and no network: what a training on Ray needs besides.

Run: `python benchmarks/on_gpu/wheels.py FOLDER [--python 3.12]`, where pip reaches a package index. Versions are those
of `constraints.txt`. On the other machine: `python3 -m pip install --no-index --no-deps --target SITE FOLDER/*.whl`,
and `PYTHONPATH=platform:SITE`. PyTorch, transformers, numba, scipy and pyarrow are expected there. MLflow and faiss are
left out: train with `--tracker none`; exact search needs no faiss."""

from __future__ import annotations

import argparse
import csv
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("pydantic", "pydantic-core", "jsonschema", "jsonschema-specifications", "referencing", "rpds-py"),
    *("annotated-types", "typing-inspection", "tensorboardX", "bm25s", "PyStemmer", "hjson"),
)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
# Parts of Ray that no training reads; without them its wheel has half the size.
DROPPED = ("ray/jars/", "ray/dashboard/client/", "ray/rllib/", "ray/llm/", "ray/cpp/")


def main() -> int:
    """Write the folder, and print its size."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--python", default="3.12", help="version of Python on the other machine (default: 3.12)")
    arguments = options.parse_args()
    folder, pins = arguments.folder, _pins()
    folder.mkdir(parents=True, exist_ok=True)
    # A copy of the pins would also pin torch, which is there in another build.
    os.environ["PIP_CONSTRAINT"] = os.devnull
    _pip("download", "--only-binary=:all:", f"--python-version={arguments.python}", "--implementation=cp",
         *(f"--platform={name}" for name in PLATFORMS), f"--dest={folder}",
         *(f"{name}=={pins[_plain(name)]}" for name in [*PACKAGES, "ray"]))  # fmt: skip
    # Its kernels would need CUDA's compiler; ZeRO runs without them.
    os.environ["DS_BUILD_OPS"] = "0"
    _pip("wheel", "--no-build-isolation", f"--wheel-dir={folder}", f"deepspeed=={pins['deepspeed']}")
    [ray] = folder.glob("ray-*.whl")
    slim(ray)
    files = sorted(folder.glob("*.whl"))
    print(f"{len(files)} wheels, {sum(file.stat().st_size for file in files) / 2**20:.1f} MiB")
    return 0


def slim(wheel: Path) -> None:
    """Leave the parts of Ray out of its wheel that a training does not read."""
    smaller = wheel.with_suffix(".part")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(smaller, "w", zipfile.ZIP_LZMA) as new:
        for item in old.infolist():
            if item.filename.startswith(DROPPED):
                continue
            content = old.read(item)
            if item.filename.endswith(".dist-info/RECORD"):
                rows = [row for row in csv.reader(io.StringIO(content.decode())) if not row[0].startswith(DROPPED)]
                kept = io.StringIO()
                csv.writer(kept, lineterminator="\n").writerows(rows)
                content = kept.getvalue().encode()
            info = zipfile.ZipInfo(item.filename, item.date_time)
            info.external_attr, info.compress_type = item.external_attr, new.compression
            new.writestr(info, content)
    smaller.replace(wheel)


def _pip(command: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", command, "--quiet", "--no-deps", *arguments], check=True)


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split(";")[0].split("==") for line in lines if "==" in line)
    return {_plain(name.strip()): version.strip() for name, version in pairs}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


if __name__ == "__main__":
    sys.exit(main())
