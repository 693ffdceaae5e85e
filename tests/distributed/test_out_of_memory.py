"""Real process groups: one worker runs out of memory, and all of them do the step again with smaller chunks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))
from processes import run_workers

SCRIPT = Path(__file__).with_name("out_of_memory_worker.py")


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("zero2", marks=pytest.mark.slow)])
def test_all_workers_do_the_step_again(tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, strategy: str) -> None:
    outputs = [tmp_path / f"{rank}.pt" for rank in range(2)]
    settings = (tiny_encoder, tiny_dataset, strategy)
    run_workers((SCRIPT, rank, tmp_path / "store", output, *settings) for rank, output in enumerate(outputs))
    first, second = (torch.load(output, weights_only=True) for output in outputs)
    whole = first[0]
    assert whole["lines"] == []
    for one, other in zip(first[1:], second[1:], strict=True):
        assert one["losses"] == pytest.approx(whole["losses"], rel=1e-5)
        assert len(one["losses"]) == 4
        [line] = one["lines"]  # the chunk of nine texts is halved once
        assert line.startswith("Step 2 ran out of memory (")
        assert line.endswith("); encoding at most 4 texts at a time from now on.")
        for here, there, expected in zip(one["parameters"], other["parameters"], whole["parameters"], strict=True):
            assert torch.equal(here, there)
            torch.testing.assert_close(here, expected, rtol=1e-4, atol=1e-6)
