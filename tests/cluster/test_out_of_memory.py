"""A group of Ray Train restarts with a smaller chunk where one worker runs out of memory while the others wait."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import ray

from raytriever.cluster.events import Event, LogMessage, StepEvent
from raytriever.cluster.train.trainer import train_on_cluster
from raytriever.config import Config
from raytriever.data.config import DataConfig
from raytriever.data.prepare.open import open_dataset
from raytriever.encoding.shards import tokenisation_of
from raytriever.losses.config import LossConfig
from raytriever.mining.bm25 import Bm25Index
from raytriever.mining.miner import build_negatives_table
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.training.config import TrainingConfig

SUPPORT = Path(__file__).parents[1] / "support"
STEPS = 4


def losses(events: list[Event]) -> dict[int, float]:
    return {one.step: one.metrics["loss"] for one in events if isinstance(one, StepEvent) and "loss" in one.metrics}


@pytest.mark.slow
def test_by_block_a_worker_without_memory_restarts_the_group(
    tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT), prepend=os.pathsep)  # for Ray's workers, which inherit it
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [str(SUPPORT), *sys.path])
    settings = TrainingConfig(
        batch_size=16, learning_rate=1e-3, precision="fp32", max_steps=STEPS, eval_steps=STEPS, dev_batches=1
    )
    alone = Config(
        data=DataConfig(dataset=str(tiny_dataset), negatives_per_query=1),
        model=ModelConfig(str(tiny_encoder)),
        loss=LossConfig("infonce", temperature=0.05),
        training=settings,
    )
    together = replace(alone, training=replace(settings, num_workers="2", strategy="fsdp2", checkpoint_steps=1))
    tokenisation = tokenisation_of(load_retriever(alone.model))
    dataset = open_dataset(tiny_dataset, ["train", "dev", "test"], tokenisation=tokenisation)
    table = build_negatives_table(dataset, alone.data, "", lambda: Bm25Index(dataset.passages()))
    location = [str(dataset.location)]
    environment = {"worker_process_setup_hook": "scarce_memory.install"}
    ray.init("local", num_cpus=5, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    try:
        events: list[Event] = []
        train_on_cluster(together, location, table, STEPS, tmp_path / "together", events.append)
        expected: list[Event] = []
        train_on_cluster(alone, location, table, STEPS, tmp_path / "alone", expected.append, in_process=True)
    finally:
        ray.shutdown()
    lines = [one.text for one in events if isinstance(one, LogMessage)]
    [failure] = [line for line in lines if "ran out of memory" in line]
    assert failure.startswith("Step 2 ran out of memory on worker 1 (CUDA out of memory. Tried to allocate 2.00 MiB.)")
    assert "; restarting all workers, to encode at most " in failure
    assert any("esumed from checkpoint step-2" in line for line in lines), lines
    assert losses(events) == pytest.approx(losses(expected), rel=1e-4)
    assert sorted(losses(events)) == list(range(1, STEPS + 1))
    assert (tmp_path / "together" / "model").is_dir()
