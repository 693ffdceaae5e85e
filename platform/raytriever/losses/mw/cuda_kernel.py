"""Mann-Whitney loss on a GPU: compile `walk.cu`, launch its pass on panels, and tabulate the positives.

NVRTC compiles the kernels when a process first needs them. PyTorch's CUDA builds include NVRTC and `cuda.bindings` from
2.11 on. Without them, and for grids with cells of different widths, `TensorWalk` does the pass.

Positions in a subcell are measured from its middle here: y = x - 1/2. The kernel sums 1, y and y^2. The sum of y^3 is
replaced by 3/16 of the sum of y. The difference y^3 - 3y/16 is a Chebyshev polynomial of magnitude at most 1/32. So the
loss changes by a factor of at most 1 + 1.3e-6. This is the worst case: all scores of a subcell are on one side of its
middle. If they are spread over it, the factor is about 1 + 1e-9. Rounding y to 2^-15 moves a score by at most 1e-6 tau.

`CudaPositives` computes the sums that depend on the positives. It needs two kernels, and two products with
matrices: softplus and sigmoid of the difference of each two nodes. Steps with the same grid share these matrices. The
banded sums of `grid` would take ten times as long: they need many launches, each slower than such a product."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.losses.mw.grid import NODES, SUBCELLS, TERMS, Grid, chebyshev, refinement

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("walk.cu")
OPTIONS = ("--std=c++17", "--fmad=false")
THREADS = 1024
# A block reads tiles of at most 2^16 scores, 4 per thread at once. In a larger tile, 32-bit sums could overflow.
TILE, STEP = 1 << 16, 4 * THREADS
MOMENTS = 3
UNITS = (1.0, 2.0**-15, 2.0**-16)
# Bytes of shared memory: per subcell, for a cubic and three sums; and per block, because CUDA itself reserves 1 KiB.
SUBCELL_BYTES, RESERVED_BYTES = 4 * (TERMS + MOMENTS), 1 << 10
WALK = (
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_float, ctypes.c_float, ctypes.c_int),
)
CELLS = (ctypes.c_void_p, ctypes.c_int, ctypes.c_double, ctypes.c_double, ctypes.c_int, ctypes.c_void_p)
NAMES = {torch.float32: "walk_float32", torch.bfloat16: "walk_bfloat16"}
# Types of the arguments of each kernel.
PARAMETERS = {
    **{f"{name}_{memory}": WALK for name in NAMES.values() for memory in ("shared", "global")},
    "place": (*CELLS, ctypes.c_void_p, ctypes.c_void_p),
    "finish": (*CELLS, *[ctypes.c_void_p] * 5, ctypes.c_double, ctypes.c_void_p),
}
WEIGHT_UNIT = 2.0**-40
# Bytes of shared memory of `finish`: four sums of 256 threads.
FINISH_BYTES = 4 * 256 * 8
# The number of cells is rounded up to a multiple of this, so that more grids share the matrices of all nodes.
DENSE_STEP = 16


def compile_walk(architecture: str) -> bytes:
    """Return the machine code of `walk.cu` for an architecture such as `sm_90`.

    Raises:
        RuntimeError: NVRTC refuses the source or does not know the architecture.
        ImportError: `cuda.bindings` is missing.
    """
    from cuda.bindings import nvrtc

    program = _checked(nvrtc.nvrtcCreateProgram(SOURCE.read_bytes(), b"walk.cu", 0, [], []))
    options = [option.encode() for option in (f"--gpu-architecture={architecture}", *OPTIONS)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytes(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"NVRTC for {architecture}: {' '.join(log.decode().strip(chr(0)).split()) or status}")
    code = bytes(_checked(nvrtc.nvrtcGetCUBINSize(program)))
    _checked(nvrtc.nvrtcGetCUBIN(program, code))
    return code


class CudaKernels:
    """The compiled kernels, loaded on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        from cuda.bindings import driver

        self._driver = driver
        torch.empty(1, device=device)  # creates the device's context, which must exist before the module is loaded
        major, minor = torch.cuda.get_device_capability(device)
        self._code = ctypes.create_string_buffer(compile_walk(f"sm_{major}{minor}"))
        number = _checked(driver.cuDeviceGet(device.index))
        attributes = driver.CUdevice_attribute
        self.processors, self.block_bytes, self.processor_bytes = (
            _checked(driver.cuDeviceGetAttribute(attribute, number))
            for attribute in (
                attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                attributes.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                attributes.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            )
        )
        self._functions: dict[str, Any] = {}
        with torch.cuda.device(device):
            module = _checked(driver.cuModuleLoadData(ctypes.addressof(self._code)))
        for name in PARAMETERS:
            function = _checked(driver.cuModuleGetFunction(module, name.encode()))
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _checked(driver.cuFuncSetAttribute(function, limit, self.block_bytes))
            self._functions[name] = function

    def launch(self, name: str, blocks: int, shared_bytes: int, arguments: Sequence[Tensor | int | float]) -> None:
        """Launch a kernel on the current stream of the arguments' device. `PARAMETERS` has the types."""
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        values = tuple(x.data_ptr() if isinstance(x, Tensor) else x for x in arguments)
        with torch.cuda.device(tensors[0].device):
            stream = torch.cuda.current_stream().cuda_stream
            sizes = (blocks, 1, 1, THREADS, 1, 1, shared_bytes)
            _checked(self._driver.cuLaunchKernel(self._functions[name], *sizes, stream, (values, PARAMETERS[name]), 0))


def _checked(result: tuple[Any, ...]) -> Any:
    """Return the value of a call of `cuda.bindings`. If the call failed, raise `RuntimeError` with its error."""
    status, *values = result
    if int(status):
        raise RuntimeError(f"CUDA returned {status.name}")
    return values[0] if values else None


@cache
def kernels_of(device: torch.device) -> CudaKernels | None:
    """Return the compiled kernels of a device. If they cannot be compiled, log a warning and return None."""
    try:
        return CudaKernels(device)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        logger.warning(
            "The kernel of the mw loss cannot run on %s (%s). PyTorch operations replace it, and take about 30 times "
            "as long. Install cuda-bindings and nvidia-cuda-nvrtc.",
            device,
            reason[:300],
        )
        return None


@cache
def _from_middle(device: torch.device) -> Float[Tensor, "terms terms"]:
    """Return the matrix whose row k has the coefficients of the polynomial (y + 1/2)^k in y."""
    rows = [[1, 0, 0, 0], [1 / 2, 1, 0, 0], [1 / 4, 1, 1, 0], [1 / 8, 3 / 4, 3 / 2, 1]]
    return torch.tensor(rows, dtype=torch.float64).to(device)


@cache
def _to_cubics(device: torch.device) -> Float[Tensor, "nodes terms"]:
    """Return the matrix that converts values at the nodes of a cell to the cubics of its subcells, in y."""
    cubics = refinement(device).T.reshape(NODES * SUBCELLS, TERMS) @ _from_middle(device)
    return cubics.view(NODES, SUBCELLS * TERMS)


@cache
def _from_integers(device: torch.device) -> Float[Tensor, "moments terms"]:
    """Return the matrix that converts the kernel's integer sums to the sums of 1, x, x^2, x^3."""
    ones, first, second = torch.eye(TERMS, dtype=torch.float64)[:MOMENTS] * torch.tensor(UNITS).double()[:, None]
    first[3] = first[1] * (3 / 16)
    return torch.stack([ones, first, second]).to(device) @ _from_middle(device).T


@cache
def _lagrange_table(device: torch.device) -> Float[Tensor, " nodes_and_factors"]:
    """Return the nodes of a cell, and after them the factors of their Lagrange polynomials."""
    nodes = chebyshev(NODES)
    return torch.cat([nodes, 1 / (nodes[:, None] - nodes).fill_diagonal_(1).prod(1)]).to(device)


@lru_cache(maxsize=2)
def _between_nodes(cells: int, width: float, device: torch.device) -> Float[Tensor, "two_nodes nodes"]:
    """Return softplus(t - p), and below it sigmoid(t - p), for all nodes t and p of `cells` cells of equal width."""
    nodes = chebyshev(NODES, device) * width / 2
    apart = torch.arange(1 - cells, cells, dtype=torch.float64, device=device) * width
    difference = apart[:, None, None] + (nodes[:, None] - nodes)
    softplus = torch.logaddexp(difference, torch.zeros_like(difference))
    cell = torch.arange(cells, device=device)
    blocks = torch.stack([softplus, torch.sigmoid(difference)])[:, cell[:, None] - cell + cells - 1]
    return blocks.transpose(2, 3).reshape(2 * cells * NODES, cells * NODES)


class CudaPositives:
    """Kernel sums that depend on the positives, on an even grid of few cells. Also computes the loss and the AUC.

    Sums over positives are integers, so the order of summation does not change them.

    Args:
        grid: an even grid of at most `mann_whitney.DENSE_CELLS` cells.
        positives: scores in units of tau, in double precision; NaN in empty slots.
        weight: weight of one pair.
        kernels: kernels of the positives' device.
    """

    def __init__(self, grid: Grid, positives: Tensor, weight: float, kernels: CudaKernels) -> None:
        device, self._kernels, self._weight = positives.device, kernels, weight
        padded = -(-grid.cells // DENSE_STEP) * DENSE_STEP
        self._nodes, self._padded_nodes = grid.cells * NODES, padded * NODES
        self._between = _between_nodes(padded, grid.width, device)
        self._positives = positives.contiguous()
        table = _lagrange_table(device)
        self._place = (self._positives, positives.numel(), grid.even_start, 1 / grid.width, grid.cells, table)
        sums = torch.zeros(self._padded_nodes + 2 * SUBCELLS * grid.cells, dtype=torch.int64, device=device)
        by_node, self._areas = sums[: self._padded_nodes], sums[self._padded_nodes :]
        kernels.launch("place", self._blocks(), 0, (*self._place, by_node, self._areas))
        # The product with a float64 CPU scalar converts the integers to float64.
        both = self._between @ (by_node * torch.tensor(weight * WEIGHT_UNIT, dtype=torch.float64))
        self.total = both[: self._nodes].view(-1, NODES)
        self.slope = both[self._padded_nodes :][: self._nodes].view(-1, NODES)

    def result(self, own: Tensor, all: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return, in float32, this worker's partial loss, its derivative with respect to the positives, and the AUC."""
        own_nodes = _to_nodes(own)
        all_nodes = own_nodes if all is own else _to_nodes(all)
        sigmoid = self._between[self._padded_nodes :][: self._nodes]
        results = torch.empty(2 + self._positives.numel(), device=own.device)
        arguments = (self._areas, all, sigmoid.T @ all_nodes, self.total, own_nodes, self._weight, results)
        self._kernels.launch("finish", 1 + self._blocks(), FINISH_BYTES, (*self._place, *arguments))
        return results[0], results[2:], results[1]

    def _blocks(self) -> int:
        return -(-self._positives.numel() // THREADS)


def _to_nodes(sums: Tensor) -> Float[Tensor, " nodes"]:
    """Convert the sums of 1, x, x^2, x^3 in the subcells to weights at the nodes."""
    return (sums.reshape(-1, SUBCELLS * TERMS) @ refinement(sums.device)).flatten()


class CudaWalk:
    """Pass over panels of float32 scores on a GPU. Every panel is added to the sums over the subcells of an even grid.

    Args:
        grid: an even grid.
        slope: derivative with respect to the unscaled score at the nodes [cells, nodes].
        scale: factor that converts the scores to units of tau.
        kernels: kernels of the device.
    """

    def __init__(self, grid: Grid, slope: Tensor, scale: float, kernels: CudaKernels) -> None:
        assert grid.first_subcell is not None
        self._kernels = kernels
        self._subcells = grid.cells * SUBCELLS
        self._cubics = (slope @ _to_cubics(slope.device)).view(-1, TERMS).float()
        self._sums = torch.zeros(MOMENTS, self._subcells, dtype=torch.int64, device=slope.device)
        exact = SUBCELLS / grid.width * scale
        rounded = float(np.float32(exact))
        self._place = (self._subcells, grid.first_subcell, rounded, exact - rounded)
        shared = self._subcells * SUBCELL_BYTES
        self._shared_bytes = shared if shared <= kernels.block_bytes else 0
        twice = 2 * (shared + RESERVED_BYTES) <= kernels.processor_bytes or not self._shared_bytes
        self._blocks = kernels.processors * (2 if twice else 1)

    def add(self, scores: Tensor, derivatives: Tensor, rows: Tensor, columns: Tensor) -> None:
        """Add a panel without the excluded pairs (rows, columns). `derivatives` (float32 or bf16) may be `scores`."""
        excluded = scores[rows, columns]
        self._launch(scores, derivatives, 1)
        if len(excluded):
            # The excluded pairs were added too. The sums are integers, so these pairs can be subtracted exactly.
            self._launch(excluded, torch.empty_like(excluded), -1)
            derivatives.index_put_((rows, columns), derivatives.new_zeros(()))

    def sums(self) -> Tensor:
        """Return the sums of 1, x, x^2, x^3 over the scores in each subcell. x is a score's position in its subcell."""
        return self._sums.double().T @ _from_integers(self._sums.device)

    def _launch(self, scores: Tensor, derivatives: Tensor, sign: int) -> None:
        count = scores.numel()
        tile = min(TILE, -(-count // (self._blocks * STEP)) * STEP)
        name = f"{NAMES[derivatives.dtype]}_{'shared' if self._shared_bytes else 'global'}"
        arguments = (scores, derivatives, count, tile, self._cubics, self._sums, *self._place, sign)
        self._kernels.launch(name, min(self._blocks, -(-count // tile)), self._shared_bytes, arguments)
