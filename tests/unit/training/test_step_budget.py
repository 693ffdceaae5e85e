"""Host waits and copies of a training step on a GPU, counted on a simulated one by line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from simulated_gpu import CUDA, Counts, simulated_gpu, values
from torch import nn

from raytriever.losses.build_loss import build_loss
from raytriever.losses.loss import LossOutput
from raytriever.losses.loss_settings import LossConfig
from raytriever.training.loop import train
from raytriever.training.parallel.strategies import NotFiniteError

CPU = torch.device("cpu")
STEPS, MEASURED = 4, 2  # a step, counted from 0; in the first one torch allocates and compiles
CHUNK = 200  # tokens
# Of each kind one: rows, a kernel of its own, both ways, a teacher. numerics/test_mw_on_a_device.py has all losses.
LOSSES = ("infonce", "mw", "infonce-symmetric", "kl")


@pytest.mark.fast_every(99)
@pytest.mark.parametrize("cached", [False, True], ids=["whole", "cached"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_step_waits_and_copies_little(taught, name: str, cached: bool, own_cache: Path) -> None:
    settings = {"grad_cache_tokens": CHUNK} if cached else {}
    with simulated_gpu() as counts:
        work, recorder = taught(
            device=CUDA, precision="bf16", total_steps=STEPS, eval_steps=STEPS, loss=LossConfig(name, 0.1), **settings
        )
        reported: dict[int, Counts] = {}

        def on_metrics(step: int, metrics: Mapping[str, float]) -> None:
            recorder.step(step, metrics)
            if "loss" in metrics:
                reported[step - 1] = counts.snapshot()

        train(replace(work, on_metrics=on_metrics))
        whole, side_copies, stream_waits = counts.snapshot(), counts.side_copies, counts.stream_waits
    assert sorted(reported) == list(range(STEPS))
    assert len(recorder.losses) == STEPS
    # A step is reported while the next one runs: this is what happens between two reports.
    for kind in ("syncs", "pageable", "pinned"):
        getattr(reported[MEASURED - 1], kind).subtract(getattr(reported[MEASURED - 2], kind))
    step = reported[MEASURED - 1]
    assert step.syncs.total() <= 1, step.table()  # the event of the step before
    assert step.pageable.total() <= 1, step.table()
    assert sum(count for line, count in step.pinned.items() if line.startswith("to the host")) == 1, step.table()
    # The loader copies ahead of the steps: each batch once, on a stream of its own that the step's stream waits for.
    batches = STEPS + work.training.dev_batches
    assert sum(count for line, count in whole.pinned.items() if line.startswith("to the device")) == batches
    assert side_copies == stream_waits == batches


class Spoiled(nn.Module):
    """Loss that is not finite in its third step, at which it calls `notice`."""

    def __init__(self, loss: nn.Module, notice: Callable[[], None]) -> None:
        super().__init__()
        self.loss, self.notice, self.steps = loss, notice, 0

    def forward(self, *inputs: object) -> LossOutput:
        output: LossOutput = self.loss(*inputs)
        self.steps += 1
        if self.steps != 3:
            return output
        self.notice()
        return replace(output, value=output.value * torch.nan)


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("device", [CPU, CUDA], ids=["CPU", "GPU"])
def test_no_weight_changes_from_the_step_on_that_is_not_finite(
    make_assignment, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the next step has been done when the first is read: it is finite, and must change nothing either."""
    losses, before = list[Spoiled](), list[torch.Tensor]()

    def spoiled(config: LossConfig, unit_length: bool) -> Spoiled:
        notice = lambda: before.extend(values(parameter).clone() for parameter in work.retriever.parameters())  # noqa: E731
        losses.append(Spoiled(build_loss(config, unit_length), notice))
        return losses[0]

    monkeypatch.setattr("raytriever.training.loop.build_loss", spoiled)
    with simulated_gpu() if device == CUDA else nullcontext():
        work, recorder = make_assignment(device=device, total_steps=9, eval_steps=9)
        with pytest.raises(NotFiniteError, match="step 2: the loss is nan"):
            train(work)
        for parameter, other in zip(work.retriever.parameters(), before, strict=True):
            assert torch.equal(values(parameter), other)
    assert losses[0].steps == (4 if device == CUDA else 3)
    assert sorted(recorder.steps) == [1, 2]
    assert not list(work.folder.glob("step-*"))


@pytest.mark.slow
def test_what_is_saved_and_validated_comes_after_the_report_of_its_step(make_assignment) -> None:
    with simulated_gpu():
        work, _ = make_assignment(device=CUDA, total_steps=5, eval_steps=2, dev_batches=1)
        order: list[tuple[int, str]] = []
        train(
            replace(
                work,
                on_metrics=lambda step, metrics: order.append((step, "loss" if "loss" in metrics else "dev_loss")),
                before_commit=lambda step: order.append((step, "saved")),
            )
        )
    metrics = [item for item in order if item[1] != "saved"]
    kinds = [
        (1, ["loss"]),
        (2, ["loss", "dev_loss"]),
        (3, ["loss"]),
        (4, ["loss", "dev_loss"]),
        (5, ["loss", "dev_loss"]),
    ]
    assert metrics == [(step, kind) for step, names in kinds for kind in names]
    for step in (2, 4, 5):
        assert order.index((step, "loss")) < order.index((step, "saved"))
