"""Ray Train on four CPUs, with groups of two workers of which the first three die before they can train.

Run as `dying_groups.py FOLDER`; ends well where the fourth group found a place."""

from __future__ import annotations

import os
import sys
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.callback import WorkerGroupCallback

from raytriever.cluster.train.controller_callbacks import FIRST

DEATHS = 3


class Killer(WorkerGroupCallback):
    """Kills a worker and asks it something, as who joins workers in a process group does when one dies."""

    def __init__(self) -> None:
        self._killed = 0

    def after_worker_group_start(self, worker_group: Any) -> None:
        if self._killed < DEATHS:
            self._killed += 1
            ray.kill(worker_group.get_workers()[0].actor)
            while True:  # until it is dead, and the asking fails
                worker_group.execute(os.getpid)


def main(folder: str) -> None:
    os.environ |= FIRST | {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "3"}
    ray.init(address="local", num_cpus=4, log_to_driver=False)
    TorchTrainer(
        lambda: None,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="dying",
            storage_path=folder,
            callbacks=[Killer()],
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=DEATHS),
        ),
    ).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
