"""MW's GPU kernel: equal to a NumPy twin and close to float64, compiled for this processor and, marked gpu, on CUDA."""

from __future__ import annotations

import logging
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from examples import double_sum
from host_kernels import HostKernels

from raytriever.losses.mw import cuda_kernel
from raytriever.losses.mw import mann_whitney as pairwise
from raytriever.losses.mw.cuda_kernel import (
    PARAMETERS,
    SUBCELL_BYTES,
    UNITS,
    CudaKernels,
    CudaWalk,
    compile_walk,
    kernels_of,
)
from raytriever.losses.mw.functional import mann_whitney
from raytriever.losses.mw.grid import SUBCELLS
from raytriever.losses.mw.mann_whitney import PairwiseSums

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
on_devices = pytest.mark.parametrize("device", DEVICES, indirect=True)
DTYPES = (torch.float32, torch.bfloat16)


@dataclass
class Device:
    """A device, and the kernels compiled for it."""

    name: str
    kernels: CudaKernels


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device whose positives and results come from the kernels too."""
    if request.param == "cpu":
        kernels = HostKernels(request.getfixturevalue("host_library"))
        monkeypatch.setattr(
            pairwise, "_kernels_of", lambda grid, *_: kernels if grid.first_subcell is not None else None
        )
        return Device("cpu", kernels)
    kernels = kernels_of(torch.device("cuda", torch.cuda.current_device()))
    assert kernels is not None
    return Device("cuda", kernels)


@dataclass
class Walked:
    """What a pass over a matrix returns, and what a twin needs to do the same."""

    derivatives: torch.Tensor
    walk: CudaWalk
    sums: PairwiseSums

    @property
    def integers(self) -> np.ndarray:
        return self.walk._sums.cpu().numpy()


def walked(
    device: Device,
    scores: torch.Tensor,
    dtype: torch.dtype = torch.float32,
    temperature: float = 1.0,
    excluded: torch.Tensor | None = None,
    in_place: bool = False,
    bound: float | None = None,
) -> Walked:
    """Pass over a matrix whose diagonal has the positives, which are excluded."""
    scores = scores.to(device.name)
    diagonal = torch.arange(min(scores.shape), device=device.name)
    rows, columns = (diagonal, diagonal) if excluded is None else excluded.to(device.name)
    positives = scores.diagonal().double() / temperature
    bound = bound or float(scores.abs().max()) / temperature
    sums = PairwiseSums(positives, -bound, bound, 1 / (len(positives) * scores.numel()), torch.float32)
    walk = CudaWalk(sums._grid, sums._slope / temperature, 1 / temperature, device.kernels)
    panel = scores.clone()
    derivatives = panel if in_place else torch.full_like(panel, 7, dtype=dtype)
    walk.add(panel, derivatives, rows, columns)
    return Walked(derivatives, walk, sums)


def twin(scores: np.ndarray, walk: CudaWalk) -> tuple[np.ndarray, np.ndarray]:
    """Return the integer sums [moments, subcells] and the derivatives of the kernel, in NumPy."""
    subcells, first, scale, remainder = walk._place
    nearest = np.rint(scores * np.float32(scale)).astype(np.int64)
    # The product of two floats is exact in double precision; what follows is rounded once, as by `fmaf`.
    x = (scores.astype(np.float64) * np.float32(scale) - nearest).astype(np.float32)
    x = (scores.astype(np.float64) * np.float32(remainder) + x).astype(np.float32)
    subcell = nearest - first
    moments = (np.ones_like(subcell), np.rint(x * np.float32(32768)), np.rint(x * x * np.float32(65536)))
    sums = np.stack([np.bincount(subcell.ravel(), m.ravel(), minlength=subcells) for m in moments])
    c = walk._cubics.cpu().numpy().astype(np.float64)[subcell]
    y = x.astype(np.float64)
    return sums.astype(np.int64), c[..., 0] + y * (c[..., 1] + y * (c[..., 2] + y * c[..., 3]))


def matrix(rows: int, columns: int, spread: float = 5.0, seed: int = 0) -> torch.Tensor:
    scores = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * spread
    scores.diagonal().add_(2 * spread)
    return scores


@on_devices
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "temperature"),
    [((1, 2), 1), ((7, 13), 0.01), ((64, 384), 1), ((33, 1001), 0.07), ((300, 1700), 1)],
    ids=str,
)
def test_equals_the_twin(device: Device, dtype: torch.dtype, shape: tuple[int, int], temperature: float) -> None:
    scores = matrix(*shape, 5 * temperature)
    out = walked(device, scores, dtype, temperature)
    integers, derivatives = twin(scores.numpy(), out.walk)
    diagonal = np.arange(min(shape))
    one_by_one, _ = twin(scores.numpy()[diagonal, diagonal], out.walk)
    np.testing.assert_array_equal(out.integers, integers - one_by_one)
    derivatives[diagonal, diagonal] = 0
    tolerance = 1e-6 if dtype == torch.float32 else 2.0**-8
    np.testing.assert_allclose(out.derivatives.float().cpu().numpy(), derivatives, rtol=tolerance, atol=1e-30)


@on_devices
@pytest.mark.parametrize("kind", ["spread", "narrow", "hopeless", "separated", "equal", "tied", "skewed ties"])
def test_error_against_the_double_sum(device: Device, kind: str) -> None:
    scores = matrix(48, 288, {"spread": 20.0, "narrow": 0.3}.get(kind, 4.0))
    if kind == "hopeless":
        scores.diagonal().sub_(60)
    if kind == "separated":
        scores.diagonal().add_(30)
    if kind in ("tied", "skewed ties"):
        # The second kind puts every score near one end of its subcell, where x^2 is worst as a substitute for x^3.
        scores = (scores * 2).round() / 2 + (0.03 if kind == "skewed ties" else 0)
    if kind == "equal":
        scores = torch.full_like(scores, 3.217)
    value, gradient = double_sum(scores)
    out = walked(device, scores)
    result = out.sums.result(out.walk.sums(), out.walk.sums())
    pairs = len(scores) * (scores.numel() - len(scores))
    weight = len(scores) * scores.numel() / pairs
    assert float(result.partial) * weight == pytest.approx(float(value), rel=1e-6)
    largest = float(gradient.abs().max())
    ours = out.derivatives.cpu().double() * weight
    ours.diagonal().copy_(result.by_positive.cpu() * weight)
    assert float((ours - gradient).abs().max()) < 1e-6 * largest
    np.testing.assert_allclose(ours.numpy(), gradient.numpy(), rtol=1e-5, atol=1e-38)


@on_devices
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_in_any_order_and_cut(device: Device, dtype: torch.dtype) -> None:
    scores = matrix(96, 700)
    none = torch.empty(2, 0, dtype=torch.long)
    first = walked(device, scores, dtype, excluded=none)
    again = walked(device, scores, dtype, excluded=none)
    assert torch.equal(first.derivatives, again.derivatives)
    np.testing.assert_array_equal(first.integers, again.integers)
    order = torch.randperm(scores.numel(), generator=torch.Generator().manual_seed(1))
    walk = CudaWalk(again.sums._grid, again.sums._slope, 1.0, device.kernels)
    empty = torch.empty(0, dtype=torch.long, device=device.name)
    for part in scores.flatten()[order].to(device.name).split(10_007):
        walk.add(part[None], torch.empty_like(part, dtype=dtype)[None], empty, empty)
    np.testing.assert_array_equal(walk._sums.cpu().numpy(), first.integers)


@on_devices
def test_excluded_pairs_leave_no_trace(device: Device) -> None:
    scores = matrix(30, 200)
    rows, columns = torch.tensor([0, 0, 5, 29, 29]), torch.tensor([0, 199, 3, 0, 7])
    out = walked(device, scores, excluded=torch.stack([rows, columns]))
    changed = scores.clone()
    changed[rows, columns] = torch.tensor([3.0, -9.0, 0.25, 12.0, 1.0])
    other = walked(device, changed, excluded=torch.stack([rows, columns]), bound=float(scores.abs().max()))
    np.testing.assert_array_equal(out.integers, other.integers)
    assert bool((out.derivatives[rows, columns] == 0).all())
    assert out.integers[0].sum() == scores.numel() - 5
    is_included = torch.ones_like(scores, dtype=torch.bool)
    is_included[rows, columns] = False
    none = walked(device, scores, excluded=torch.empty(2, 0, dtype=torch.long))
    assert torch.equal(out.derivatives.cpu()[is_included], none.derivatives.cpu()[is_included])


@on_devices
def test_derivatives_may_replace_the_scores(device: Device) -> None:
    scores = matrix(65, 901)
    assert torch.equal(walked(device, scores, in_place=True).derivatives, walked(device, scores).derivatives)


@on_devices
@pytest.mark.parametrize("bound", [60.0, 300.0, 600.0, 4_000.0])
def test_shared_memory_where_it_suffices_and_the_same_result_without(device: Device, bound: float) -> None:
    scores = matrix(64, 500)
    out = walked(device, scores, bound=bound)
    fits = out.sums._grid.cells * SUBCELLS * SUBCELL_BYTES <= device.kernels.block_bytes
    assert bool(out.walk._shared_bytes) == fits
    assert fits == (bound < 200) or 200 < bound < 400
    value, gradient = double_sum(scores)
    result = out.sums.result(out.walk.sums(), out.walk.sums())
    weight = scores.numel() / (scores.numel() - len(scores))
    assert float(result.partial) * weight == pytest.approx(float(value), rel=1e-6)
    gradient.diagonal().zero_()
    assert float((out.derivatives.cpu() * weight - gradient).abs().max()) < 1e-6 * float(gradient.max())


@on_devices
def test_one_subcell_with_more_scores_than_32_bits_of_sums_hold(device: Device) -> None:
    # 2^20 scores at the end of a subcell: each adds 2^14 to the sum of x, so a block must add up in between.
    scores = torch.full((1, 1 << 20), 0.5 / SUBCELLS - 1e-6)
    out = walked(device, scores, excluded=torch.empty(2, 0, dtype=torch.long), bound=4.0)
    used = out.integers[:, out.integers[0] > 0][:, 0]
    assert used[0] == scores.numel()
    assert used[1] * UNITS[1] == pytest.approx(0.5 * scores.numel(), rel=1e-4)
    assert used[2] * UNITS[2] == pytest.approx(0.25 * scores.numel(), rel=1e-4)


@on_devices
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf"), 1e30, 250.0, -250.0])
def test_a_score_outside_the_grid_has_no_finite_derivative(device: Device, wrong: float) -> None:
    scores = matrix(20, 50)
    scores[3, 17] = wrong
    out = walked(device, scores, bound=60.0)
    assert not bool(torch.isfinite(out.derivatives[3, 17]))
    assert int((~torch.isfinite(out.derivatives)).sum()) == 1
    assert out.integers[0].sum() == scores.numel() - 20 - 1


@pytest.mark.fast_every(5)
@on_devices
@pytest.mark.parametrize("bound", [20.0, 120.0, 250.0])
@pytest.mark.parametrize("kind", ["spread", "far above", "far below", "tied", "empty slots"])
def test_the_positives_agree_with_the_banded_sums(
    device: Device, kind: str, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    positives = (torch.rand(3_000, generator=generator).double() * 2 - 1) * bound
    negatives = (torch.rand(40, 300, generator=generator) * 2 - 1) * bound
    if kind in ("far above", "far below"):
        positives = positives / 20 + (0.9 if kind == "far above" else -0.9) * bound
        negatives = negatives / 20 - (0.9 if kind == "far above" else -0.9) * bound
    if kind == "tied":
        positives, negatives = positives.round(), negatives.round()
    if kind == "empty slots":
        positives[torch.rand(3_000, generator=generator) < 0.7] = torch.nan
    positives, negatives = positives.to(device.name), negatives.to(device.name)
    none = torch.empty(0, dtype=torch.long, device=device.name)
    results = []
    for limit in (pairwise.DENSE_CELLS, 0):
        monkeypatch.setattr(pairwise, "DENSE_CELLS", limit)
        sums = PairwiseSums(positives, -bound, bound, 1e-7, torch.float32)
        assert (sums._on_gpu is None) == (limit == 0)
        walk, derivatives = sums.walk(), torch.empty_like(negatives)
        walk.add(negatives, derivatives, none, none)
        result = sums.result(walk.sums(), walk.sums())
        results.append([x.double().cpu() for x in (derivatives, result.partial, result.by_positive, result.auc)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-37)


@pytest.mark.gpu
@pytest.mark.parametrize("temperature", [0.05, 0.01, 0.002])
def test_mann_whitney_on_a_gpu_equals_the_processor(temperature: float) -> None:
    scores, columns = matrix(64, 384, 0.05), torch.arange(64)[:, None]
    results = []
    for name in ("cpu", "cuda"):
        given = scores.to(name).detach().requires_grad_()
        value = mann_whitney(given, columns.to(name), temperature)
        value.backward()
        results.append((value.detach().cpu(), given.grad.cpu()))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-6, atol=0)
    assert float((results[1][1] - results[0][1]).abs().max()) < 1e-6 * float(results[0][1].abs().max())


def test_a_kernel_that_cannot_be_compiled_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(device: torch.device) -> None:
        raise RuntimeError("NVRTC for sm_61: invalid value\nfor --gpu-architecture")

    monkeypatch.setattr(cuda_kernel, "CudaKernels", refuse)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert kernels_of(torch.device("cuda", 7)) is None
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    for words in ("cuda:7", "sm_61: invalid value for --gpu", "30 times", "Install cuda-bindings"):
        assert words in record.getMessage()


ARCHITECTURES = {"sm_80": 163, "sm_90": 227, "sm_100": 227}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_resources_of_the_compiled_kernels(architecture: str, tmp_path: Path) -> None:
    """Registers for 2,048 threads a processor, no spills; shared memory for cosine scores at a temperature of 0.01."""
    (tmp_path / "walk.cubin").write_bytes(compile_walk(architecture))
    import nvidia

    (tool,) = (path for root in nvidia.__path__ for path in Path(root).glob("*/bin/cuobjdump"))
    done = subprocess.run(
        [tool, "--dump-resource-usage", tmp_path / "walk.cubin"], capture_output=True, text=True, check=True
    )
    used = dict(re.findall(r"Function (\w+):\s+(.*)", done.stdout))
    assert set(used) == set(PARAMETERS)
    for name, usage in used.items():
        numbers = {key: int(value) for key, value in (item.split(":") for item in usage.split() if "[" not in item)}
        assert numbers["REG"] <= (32 if name.startswith("walk") else 64), name
        assert numbers["STACK"] == numbers["LOCAL"] == 0, name
        assert numbers["SHARED"] <= 1024, name
    cells = 2 * (100 + 2) + 1
    room = ARCHITECTURES[architecture] << 10
    assert cells * SUBCELLS * SUBCELL_BYTES <= room
    # Two blocks at once from Hopper on.
    assert (2 * (cells * SUBCELLS * SUBCELL_BYTES + 1024) <= room + 1024) == (architecture != "sm_80")


def test_an_unknown_architecture_is_one_line() -> None:
    with pytest.raises(RuntimeError, match=r"^NVRTC for sm_20: .*architecture") as raised:
        compile_walk("sm_20")
    assert "\n" not in str(raised.value)
