"""The GPU's kernels compiled for this processor by g++, with the interface of `losses.mw.cuda_kernel.Kernels`."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from raytriever.losses.mw.cuda_kernel import PARAMETERS, SOURCE

HEADER = Path(__file__).with_name("cuda_on_host.h")


class HostKernels:
    """Kernels that run on tensors of the CPU or of a simulated GPU.

    A block has few threads, so that the additions of threads do mix."""

    processors = 3
    threads = 4

    def __init__(self, folder: Path, block_bytes: int = 227 << 10) -> None:
        self.block_bytes = block_bytes
        self.processor_bytes = block_bytes + (1 << 10)
        self.launched: list[str] = []
        library = folder / "walk.so"
        if not library.exists():
            options = (
                "-x",
                "c++",
                "-std=c++20",
                "-O2",
                "-march=native",
                "-ffp-contract=off",
                "-shared",
                "-fPIC",
                "-pthread",
            )
            source = f'-DSOURCE="{SOURCE}"'
            subprocess.run(["g++", *options, source, str(HEADER), "-o", str(library)], check=True, timeout=120)
        self._library = ctypes.CDLL(str(library))

    def launch(
        self, name: str, blocks: int, shared_bytes: int, arguments: Sequence[torch.Tensor | int | float]
    ) -> None:
        """Run a function to its end."""
        assert shared_bytes <= self.block_bytes
        self.launched.append(name)
        for argument in arguments:
            assert not isinstance(argument, torch.Tensor) or argument.is_contiguous()
        values = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in arguments]
        typed = [kind(value) for kind, value in zip(PARAMETERS[name], values, strict=True)]
        self._library[f"{name}_on_host"](ctypes.c_uint(blocks), ctypes.c_uint(self.threads), *typed)
