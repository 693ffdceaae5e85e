"""Adapters over a base in bf16: what is trained, what a checkpoint has, and which runs it continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import parameters
from safetensors import safe_open
from safetensors.torch import load_file

from raytriever.core.errors import StorageError
from raytriever.models.model_settings import ModelConfig
from raytriever.training.loop import TrainingSetup, train
from raytriever.training.parallel.model_state import frozen_digest

STEPS = 4


def setup(make_assignment: Any, tiny_encoder: Path, precision: str = "bf16", **settings: Any) -> TrainingSetup:
    model = ModelConfig(str(tiny_encoder), lora_rank=2)
    return make_assignment(total_steps=STEPS, model=model, precision=precision, **settings)[0]


def test_only_adapters_are_trained_and_saved_cached_or_not(make_assignment, tiny_encoder: Path, tmp_path: Path) -> None:
    results = []
    for number, settings in enumerate(({}, {"grad_cache_chunk": 5})):
        work = setup(make_assignment, tiny_encoder, folder=tmp_path / f"run-{number}", **settings)
        before = parameters(work.retriever)
        train(work)
        after = parameters(work.retriever)
        results.append(after)
        changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
        assert changed == {name for name in before if ".lora_" in name}
        assert all(after[name].dtype == (torch.float32 if name in changed else torch.bfloat16) for name in after)
        folder = work.folder / f"step-{STEPS}"
        saved = load_file(folder / "weights-0-of-1.safetensors")
        assert saved.keys() == {f"retriever.{name}" for name in changed}
        with safe_open(folder / "optimizer-0-of-1.safetensors", "pt") as optimizer_state:
            assert {name.partition(":")[0] for name in optimizer_state.keys()} == saved.keys()  # noqa: SIM118 - not a mapping
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, rtol=0.05, atol=2e-3)


@pytest.mark.slow
def test_another_base_is_refused_and_another_precision_of_it_is_not(make_assignment, tiny_encoder: Path) -> None:
    first, second = (setup(make_assignment, tiny_encoder, precision) for precision in ("bf16", "fp32"))
    assert frozen_digest(first.retriever) == frozen_digest(second.retriever)
    train(first)
    train(second)
    other = setup(make_assignment, tiny_encoder)
    with torch.no_grad():
        next(other.retriever.parameters())[3, 3] += 0.5
    with pytest.raises(StorageError, match=r"was made with frozen weights '\w{16}', but this run has") as caught:
        train(other)
    assert "\n" not in str(caught.value)
