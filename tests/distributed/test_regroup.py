"""A real group of three that becomes one of fewer, as a whole and for all that look at the default group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from process_group import run_group
from torch import distributed

from raytriever.cluster.train.train_worker import regroup
from raytriever.losses.distributed import current_workers


def main(size: int) -> tuple[list[int] | None, bool]:
    """Regroup in one worker; return the ranks that it gathers, and whether it has a group."""
    rank = distributed.get_rank()
    stays = regroup(size, torch.device("cpu"))
    assert os.environ["WORLD_SIZE"] == str(size)
    if not stays:
        return None, distributed.is_initialized()
    workers = current_workers()
    assert workers.size == size
    return workers.all_gather(torch.tensor([[rank]])).flatten().tolist(), distributed.is_initialized()


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 1])
def test_the_first_ones_are_a_group_and_the_others_none(size: int) -> None:
    stay, leave = [(list(range(size)), size > 1)] * size, [(None, False)] * (3 - size)
    assert run_group(Path(__file__), 3, size) == [*stay, *leave]
