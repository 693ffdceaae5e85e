"""The phases of a step are timed, its tokens are counted, and a slow worker is named."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

from raytriever.losses.distributed import ALONE
from raytriever.losses.loss import LossOutput
from raytriever.training.batch_loader import Batch
from raytriever.training.loop import train
from raytriever.training.step_metrics import (
    PHASES,
    WINDOW,
    StepLines,
    Stopwatch,
    StragglerWatch,
    Throughput,
    flops_of,
    peak_flops,
)

CPU = torch.device("cpu")


class Loss(nn.Module):
    """Takes its time."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return value.square().sum()


@pytest.fixture
def timed() -> tuple[Stopwatch, Loss, nn.Parameter, torch.optim.Optimizer]:
    weight = nn.Parameter(torch.ones(3))
    optimizer, loss = torch.optim.SGD([weight], lr=0.1), Loss()
    return Stopwatch(loss, CPU), loss, weight, optimizer


def test_each_phase_has_its_own_time(timed) -> None:
    stopwatch, loss, weight, optimizer = timed
    stopwatch.start()
    time.sleep(0.1)
    value = loss(weight)
    value.backward()
    time.sleep(0.15)
    stopwatch.mark()
    optimizer.step()
    time.sleep(0.2)
    logged = stopwatch.stop()()
    assert list(logged) == [f"{phase}_seconds" for phase in PHASES]
    # Sleeping takes at least what was asked; what it takes at most is the machine's affair.
    for seconds, least in zip(logged.values(), (0.1, 0.05, 0.15, 0.2), strict=True):
        assert seconds >= least - 1e-3


def test_every_training_step_logs_its_times(make_assignment) -> None:
    work, recorder = make_assignment(total_steps=3)
    train(work)
    for logged in recorder.steps.values():
        phases = [logged[f"{phase}_seconds"] for phase in PHASES]
        assert all(seconds > 0 for seconds in phases)
        assert sum(phases) + logged["data_wait_seconds"] <= logged["step_seconds"]
        assert logged["queries_per_second"] == pytest.approx(16 / logged["step_seconds"])
        assert logged["peak_memory_mb"] > 50
        assert logged.keys() >= {"batch_auc", "query_positive_distance", "query_positive_mmd", "gradient_norm"}
        assert "model_flops_utilization" not in logged  # of a processor no peak is known
    for step, logged in recorder.steps.items():
        batch = work.train.batch(step - 1, work.retriever, ALONE)
        tokens = sum(
            int(part["attention_mask"].sum()) for side in (batch.queries, batch.passages) for part in side.buckets
        )
        assert logged["tokens_per_second"] == pytest.approx(tokens / logged["step_seconds"])
    assert recorder.steps[1]["checkpoint_seconds"] == 0
    assert recorder.steps[3]["checkpoint_seconds"] > 0  # of the one at step 2


def test_work_is_counted_as_the_layers_do_it(make_assignment, tiny_encoder: Path) -> None:
    work, _ = make_assignment(negatives_per_query=2)
    batch: Batch = work.train.batch(0, work.retriever, ALONE)
    backbone = work.retriever.query.backbone
    per_token, per_pair = flops_of(backbone)
    # Two layers of dimension 32: four square matrices of attention, two of 64 x 32, with biases and two normalizations.
    layer = 4 * (32 * 32 + 32) + (32 * 64 + 64) + (64 * 32 + 32) + 2 * 2 * 32
    assert per_token == 6 * (2 * layer + 2 * 32)  # and the normalization behind the embeddings
    assert per_pair == 12 * 2 * 32
    sides = batch.queries, batch.passages
    lengths = [torch.cat([part["attention_mask"].sum(1) for part in side.buckets]) for side in sides]
    assert [len(of) for of in lengths] == [16, 48]
    tokens = sum(int(n) for of in lengths for n in of)
    pairs = sum(int(n) ** 2 for of in lengths for n in of)
    counted = Throughput(backbone, backbone, "bf16", CPU, ALONE).count(batch)
    assert counted == (tokens, per_token * tokens + per_pair * pairs)
    # Frozen weights are multiplied forward, and backward once and not twice.
    backbone.requires_grad_(False)
    assert flops_of(backbone)[0] == per_token * 4 // 6


@pytest.mark.parametrize(
    ("name", "precision", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756.0),
        ("NVIDIA H200", "fp32", 67.0),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312.0),
        ("NVIDIA L4", "bf16", 121.0),
        ("NVIDIA L40S", "bf16", 362.0),
        ("NVIDIA L40", "bf16", None),
        ("NVIDIA GeForce RTX 4090", "bf16", None),
    ],
)
def test_a_peak_is_known_or_not(name: str, precision: str, teraflops: float | None) -> None:
    expected = None if teraflops is None else pytest.approx(teraflops * 1e12)
    assert peak_flops(name, precision) == expected


class Rates:
    """Throughput of a group of one."""

    def total(self, work: tuple[float, float]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(work[0]), torch.tensor(work[1])

    def rates(self, tokens: float, flops: float, queries: int, seconds: float) -> dict[str, float]:
        return {"queries_per_second": queries / seconds}


def test_a_step_that_nothing_waited_for_takes_as_long_as_the_device_worked() -> None:
    """The first step, and one after a validation: the processor is done with it before the device begins."""
    logged: list[Mapping[str, float]] = []
    reports = StepLines(cast(Throughput, Rates()), 8, lambda step, metrics: logged.append(metrics), reads_late=True)
    output, norm = LossOutput(torch.tensor(1.0), {}), torch.tensor(1.0)
    phases = {"encode_seconds": 1.5, "backward_seconds": 2.0}
    reports.add(0, output, norm, (1.0, 1.0), lambda: phases, time.perf_counter(), {"data_wait_seconds": 0.5})
    reports.finish()
    assert logged[0]["step_seconds"] == 4.0
    assert logged[0]["queries_per_second"] == 2.0


@pytest.mark.parametrize(
    ("seconds", "is_logged"),
    [([1.0, 1.31], True), ([1.0, 1.29], False), ([0.01, 0.025], False), ([0.01, 0.05], True), ([1.0, 1.0], False)],
)
def test_a_third_more_is_logged_where_it_costs_anything(seconds: list[float], is_logged: bool) -> None:
    notices: list[str] = []
    watch = StragglerWatch(["n0", "n1"], notices.append)
    for _ in range(WINDOW + 1):
        watch.update(seconds)
    assert bool(notices) is is_logged


def watched(*windows: list[float]) -> tuple[list[str], list[dict[str, float]]]:
    notices: list[str] = []
    watch = StragglerWatch(["n0", "n1", "n2"], notices.append)
    watch.update([9.0, 0.0, 0.0])  # the first step counts for nobody
    return notices, [message for window in windows for _ in range(WINDOW) if (message := watch.update(window))]


def test_a_slow_worker_is_named_once_with_its_host_until_it_is_over() -> None:
    slow, even = [1.0, 1.5, 1.0], [1.0, 1.1, 1.0]
    notices, message = watched(slow, slow, even, even, slow, [2.0, 1.0, 1.0])
    assert [notice.split(":")[0] for notice in notices] == [
        "Worker 1 on n1 is slow",
        "Worker 1 on n1 is slow",
        "Worker 0 on n0 is slow",
    ]
    assert "0.5 s per step more than the 1 s of the others (median, 20 steps)" in notices[0]
    assert [item["slowest_worker"] for item in message] == [1, 1, 1, 1, 1, 0]
    assert message[0]["straggler_seconds"] == pytest.approx(0.5)


def test_one_slow_step_is_no_straggler() -> None:
    notices: list[str] = []
    watch = StragglerWatch(["n0", "n1"], notices.append)
    for step in range(3 * WINDOW):
        watch.update([0.1, 0.5 if step == WINDOW else 0.1])
    assert not notices


def test_a_worker_alone_holds_up_nobody() -> None:
    watch = StragglerWatch(["a host"], lambda _: pytest.fail("reported"))
    assert not any(watch.update([float(step)]) for step in range(3 * WINDOW))
