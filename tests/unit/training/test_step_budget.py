"""Host waits, copies and kernel launches of a training step on a GPU, counted on the sham device by line."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from raytriever.losses.config import LOSS_NAMES, LossConfig
from raytriever.losses.engine.workers import ALONE
from raytriever.models.precision import autocast
from raytriever.training.loop import train
from raytriever.training.parallel.grad_cache import Chunk, cut

sys.path.append(str(Path(__file__).parents[2] / "support"))
from sham_device import CUDA, Counts, sham_device

STEP = 2  # counted from 1; in the first step torch allocates and compiles
CHUNK = 200  # tokens


def outside_losses(counter: Counter[str]) -> Counter[str]:
    return Counter({line: count for line, count in counter.items() if " losses/" not in f" {line}"})


def plain_launches(work: object, counts: Counts, cached: bool) -> int:
    """Return the launches of the encoder alone, forward and backward, over the same parts."""
    retriever = work.retriever  # type: ignore[attr-defined]
    batch = work.train.batch(STEP - 1, retriever, ALONE).to(CUDA)  # type: ignore[attr-defined]
    total = 0
    for texts, side in retriever.passes(batch.queries, batch.passages):
        parts = cut(texts, Chunk(tokens=CHUNK)).buckets if cached else texts.buckets
        for part in parts:
            counts.reset()
            with autocast("bf16", CUDA):
                output = retriever.encode(part, side)
            forward = counts.launches.total()
            output.float().sum().backward()
            total += counts.launches.total() + forward * cached
    retriever.zero_grad(set_to_none=True)
    return total


@pytest.mark.parametrize("cached", [False, True], ids=["whole", "cached"])
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_a_step_waits_and_copies_little(
    taught, name: str, cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    settings = {"grad_cache_tokens": CHUNK} if cached else {}
    with sham_device() as counts:
        work, _ = taught(
            device=CUDA, precision="bf16", total_steps=3, eval_steps=3, loss=LossConfig(name, 0.1), **settings
        )
        found: dict[int, Counts] = {}

        def on_metrics(step: int, metrics: Mapping[str, float]) -> None:
            if "loss" in metrics:
                found[step] = counts.snapshot()
            counts.reset()

        train(replace(work, on_metrics=on_metrics))
        plain = plain_launches(work, counts, cached)
    step = found[STEP]
    assert outside_losses(step.syncs).total() <= 3, step.table()
    assert outside_losses(step.pageable).total() <= 2, step.table()
    assert step.pinned.total() == 1, step.table()
    assert outside_losses(step.launches).total() <= 1.3 * plain, f"{plain}\n{step.table()}"
