"""Real process groups: all workers take a new table of hard negatives at one step, however late one of them is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from raytriever.training.refresh_ledger import read_ledger

SCRIPT = Path(__file__).with_name("refresh_worker.py")
STEPS, EVERY, LATE = 14, 3, 8  # of refresh_worker


@pytest.mark.parametrize(
    "strategy", ["ddp", *(pytest.param(f"zero{stage}", marks=pytest.mark.slow) for stage in (1, 3))]
)
def test_both_workers_take_a_table_at_the_recorded_step(
    tmp_path: Path, tiny_encoder: Path, tiny_dataset: Path, strategy: str
) -> None:
    how = (strategy, tmp_path)
    outputs = [tmp_path / f"{rank}.pt" for rank in range(2)]
    group = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(rank), "2", tmp_path / "store", output, tiny_encoder, tiny_dataset, *how],
            env={**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, output in enumerate(outputs)
    ]
    try:
        for process in group:
            _, err = process.communicate(timeout=200)
            assert process.returncode == 0, err
    finally:
        for process in group:
            process.kill()
    one, other = (torch.load(output, weights_only=True) for output in outputs)
    first = read_ledger(tmp_path / "negatives").rounds[0]
    assert (first.due, first.snapshot) == (EVERY, EVERY)
    # The other worker's loader had drawn batch `LATE` when it had read the table; two more may have been drawn since.
    assert first.used_from is not None
    assert first.used_from > LATE
    assert one["versions"].tolist() == [int(step >= first.used_from) for step in range(STEPS)]
    assert torch.equal(one["versions"], other["versions"])
    # What the pool was given are the weights after the step of the snapshot, whole, whatever is sharded.
    assert len(one["whole"]) > 30
    assert one["whole"].all()
