"""Trials that share a GPU, on a Ray cluster with a declared GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray import tune

from raytriever.cluster.gpus_and_placement import count_slots, gpus_of_trial
from raytriever.cluster.train.train_worker import TrainingJob
from raytriever.cluster.train.trainer import ClusterError, train_on_cluster
from raytriever.core.errors import ConfigError
from raytriever.core.options import check_options
from raytriever.experiments.tuning.ray.ray_tuner import resources_of_trial
from raytriever.experiments.tuning.ray.sweep import plan_sweep
from raytriever.experiments.tuning.space import SearchConfig
from raytriever.training.run_config import Config, override

pytestmark = pytest.mark.slow


@pytest.fixture
def one_gpu() -> Iterator[None]:
    ray.init(address="local", num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def meet(config: dict[str, Any]) -> None:
    """Report the GPUs that the trial sees after four trials run at the same time."""
    folder = Path(config["folder"])
    (folder / str(config["number"])).touch()
    end = time.monotonic() + 60
    while len(list(folder.iterdir())) < 4 and time.monotonic() < end:
        time.sleep(0.05)
    tune.report({"met": len(list(folder.iterdir())), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")})


def test_four_trials_share_a_gpu(one_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    gpus = gpus_of_trial(0.25)
    assert count_slots(1, gpus) == 4
    assert count_slots(1, gpus_of_trial(None)) == count_slots(1, gpus_of_trial(0.6)) == 1
    (tmp_path / "trials").mkdir()
    results = tune.Tuner(
        tune.with_resources(meet, tune.PlacementGroupFactory([resources_of_trial(1, gpus)])),
        param_space={"number": tune.grid_search([0, 1, 2, 3]), "folder": str(tmp_path / "trials")},
        run_config=tune.RunConfig(storage_path=str(tmp_path / "state"), verbose=0),
    ).fit()
    assert [(result.metrics["met"], result.metrics["gpus"]) for result in results] == [(4, "0")] * 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_that_pytorch_cannot_use_is_one_line(one_gpu: None, tmp_path: Path) -> None:
    job = TrainingJob(config=Config(), datasets=(), negatives=None, total_steps=2, folder=tmp_path)
    with pytest.raises(ClusterError) as raised:
        train_on_cluster(job, [].append)
    assert str(raised.value).startswith(
        "the Ray cluster: has a GPU that PyTorch cannot use in a worker (doesn't have N"
    )
    assert "\n" not in str(raised.value)


def test_a_fraction_without_a_gpu_or_with_several_workers_is_refused() -> None:
    ray.init(address="local", num_cpus=1, num_gpus=0, include_dashboard=False, log_to_driver=False)
    try:
        with pytest.raises(ConfigError, match="trial_gpus: the cluster has no GPU"):
            gpus_of_trial(0.5)
    finally:
        ray.shutdown()
    several = override(Config(), {"training": {"num_workers": "2"}})
    with pytest.raises(ConfigError, match="trial_gpus: applies to trials of one worker"):
        plan_sweep(several, SearchConfig(trial_gpus=0.5))
    for wrong in (0.0, 1.5):
        with pytest.raises(ConfigError, match="is out of range"):
            check_options(SearchConfig(trial_gpus=wrong))
