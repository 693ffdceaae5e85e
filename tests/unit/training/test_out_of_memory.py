"""A step that runs out of memory is done again with smaller chunks, and ends with the same result."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from simulated_gpu import CUDA, Counts, simulated_gpu, values

from raytriever.core.errors import ConfigError
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.device_memory import is_out_of_memory
from raytriever.training.loop import train
from raytriever.training.parallel.chunk_size import FILE
from raytriever.training.parallel.out_of_memory import OutOfMemory
from raytriever.training.parallel.strategies import Replicas

ERRORS = (
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("NCCL Error 1: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"),
)
SETTINGS = {"total_steps": 3, "eval_steps": 3, "dev_batches": 1, "loss": LossConfig("infonce", 0.1)}


@pytest.fixture
def counts(own_cache: Path) -> Iterator[Counts]:
    with simulated_gpu() as counts:
        yield counts


Trained = tuple[list[float], list[torch.Tensor]]
_UNDISTURBED: list[Trained] = []


@pytest.fixture
def expected(make_assignment, counts: Counts, tmp_path: Path) -> Trained:
    """Losses and weights of a run that has enough memory; it is made once."""
    if not _UNDISTURBED:
        work, recorder = make_assignment(device=CUDA, folder=tmp_path / "whole", **SETTINGS)
        train(work)
        _UNDISTURBED.append((recorder.losses, [values(parameter).clone() for parameter in work.retriever.parameters()]))
    return _UNDISTURBED[0]


def fail_once(counts: Counts, is_due: Callable[[str], bool], error: BaseException) -> None:
    """Raise an error before the first operator that is due."""

    def failure(operator: str) -> BaseException | None:
        if not is_due(operator):
            return None
        counts.failure = lambda _: None
        return error

    counts.failure = failure


def is_in(function: str) -> bool:
    """Return whether a function of this name is running."""
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_qualname.endswith(function):
        frame = frame.f_back
    return frame is not None


def is_in_step() -> bool:
    """Return whether a step is running, and not the search for a chunk or a validation."""
    return is_in("Trainer.step")


@pytest.mark.fast_every(99)
@pytest.mark.parametrize("error", ERRORS, ids=["torch", "cuBLAS", "NCCL"])
@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("native_layer_norm", "Trainer.step"),
        ("native_layer_norm_backward", "Trainer.step"),
        ("zeros_like", "_init_group"),  # of AdamW, for its moments
        ("_foreach_norm", "Trainer.step"),
    ],
    ids=["forward", "backward", "optimizer_state", "clipping"],
)
def test_a_step_is_done_again(
    make_assignment, counts: Counts, expected: Trained, operator: str, function: str, error: BaseException
) -> None:
    losses, weights = expected
    work, second = make_assignment(device=CUDA, **SETTINGS)
    # Moments are allocated in the first step. Of the steps before the third, one is reported.
    reported, at = (0, 0) if operator == "zeros_like" else (1, 2)
    fail_once(counts, lambda name: name == operator and len(second.steps) == reported and is_in(function), error)
    train(work)
    assert counts.failure("mm") is None
    assert second.losses == pytest.approx(losses, rel=1e-5)
    assert len(second.notices) == 1
    line = str(error).splitlines()[0]
    assert second.notices[0].startswith(f"Step {at} ran out of memory ({line}); ")
    for parameter, other in zip(work.retriever.parameters(), weights, strict=True):
        torch.testing.assert_close(values(parameter), other, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_a_worker_that_cannot_repeat_a_step_restarts(
    make_assignment, counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replicas, "abandon", lambda self: False)
    work, recorder = make_assignment(device=CUDA, folder=tmp_path / "failing", **SETTINGS)
    fail_once(counts, lambda name: name == "_foreach_norm" and is_in("Trainer.step"), ERRORS[0])
    with pytest.raises(OutOfMemory, match="Step 0 ran out of memory on worker 0"):
        train(work)
    assert recorder.notices[0].endswith(" at a time.")


@pytest.mark.slow
def test_memory_that_another_process_takes_shrinks_the_chunk(
    make_assignment, counts: Counts, expected: Trained, tmp_path: Path
) -> None:
    work, second = make_assignment(device=CUDA, folder=tmp_path / "limited", **SETTINGS)

    chunks = iter(range(3))  # that do not fit

    def take_memory(operator: str) -> BaseException | None:
        is_due = operator == "native_layer_norm" and len(second.steps) == 1 and is_in_step()
        return ERRORS[0] if is_due and next(chunks, None) is not None else None

    counts.failure = take_memory
    train(work)
    assert second.losses == pytest.approx(expected[0], rel=1e-5)
    assert len(second.notices) == 3
    assert all(line.startswith("Step 2 ran out of memory (CUDA out of memory. Tried ") for line in second.notices)
    [chunk] = json.loads((tmp_path / "cache" / FILE).read_text()).values()
    assert chunk >= 1


def test_one_text_that_does_not_fit_is_an_error_of_the_user(make_assignment, counts: Counts, tmp_path: Path) -> None:
    work, recorder = make_assignment(device=CUDA, folder=tmp_path / "never", **SETTINGS)
    counts.failure = lambda operator: ERRORS[0] if operator == "native_layer_norm" and is_in_step() else None
    with pytest.raises(ConfigError, match="a step ran out of memory with one text at a time") as raised:
        train(work)
    assert "\n" not in str(raised.value)
    assert not recorder.losses


def test_other_errors_are_not_taken_for_memory(make_assignment, counts: Counts, tmp_path: Path) -> None:
    work, recorder = make_assignment(device=CUDA, folder=tmp_path / "other", **SETTINGS)
    counts.failure = lambda operator: RuntimeError("an illegal memory access") if is_in_step() else None
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        train(work)
    assert not recorder.notices
    assert not is_out_of_memory(RuntimeError("something else"))
    assert all(map(is_out_of_memory, ERRORS))
