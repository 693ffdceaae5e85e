"""Real process groups: a step with a guide is one step, plain or cached, on one worker or two."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))
from process_group import run_groups


@pytest.mark.slow
def test_one_and_two_workers_mask_the_same_pairs(tiny_encoder: Path, other_encoder: Path, tiny_dataset: Path) -> None:
    groups = run_groups(Path(__file__).with_name("guide_worker.py"), (1, 2), tiny_encoder, other_encoder, tiny_dataset)
    expected = groups[0][0]["whole"]
    assert 0 < float(expected[1]) < float(expected[2]) < 1
    assert len(expected) > 20
    for ways in (way for group in groups for way in group):
        for results in ways.values():
            for ours, theirs in zip(results, expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
