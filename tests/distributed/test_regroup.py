"""A real group of three that becomes one of fewer, as a whole and for all that look at the default group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MEMBER = """
import os, sys
import torch
from torch import distributed
from raytriever.cluster.train.worker import regroup
from raytriever.losses.distributed import current_workers
rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
stays = regroup(size, torch.device("cpu"))
assert os.environ["WORLD_SIZE"] == str(size)
workers = current_workers() if stays else None
values = workers.all_gather(torch.tensor([[rank]])).flatten().tolist() if stays else None
print(rank, workers.size if stays else None, values, distributed.is_initialized())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (2, ["0 2 [0, 1] True", "1 2 [0, 1] True", "2 None None False"]),
        (1, ["0 1 [0] False", "1 None None False", "2 None None False"]),
    ],
)
def test_the_first_ones_are_a_group_and_the_others_none(size: int, expected: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    group = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(rank), str(size), str(tmp_path / "store")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    ended = [process.communicate(timeout=200) for process in group]
    assert [process.returncode for process in group] == [0, 0, 0], ended
    assert [out.strip() for out, _ in ended] == expected
