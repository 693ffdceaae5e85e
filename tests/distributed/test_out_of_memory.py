"""Real process groups: one worker runs out of memory, and all of them go on with smaller chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from process_group import run_group

SCRIPT = Path(__file__).with_name("out_of_memory_worker.py")


@pytest.fixture
def run(
    tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, own_cache: Path
) -> Callable[..., list[list[dict[str, Any]]]]:
    """Return the results of two workers, each a list by pass."""

    def group(strategy: str, *passes: str) -> list[list[dict[str, Any]]]:
        return run_group(SCRIPT, 2, tmp_path, tiny_encoder, tiny_dataset, strategy, *passes)

    return group


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero2"])
def test_all_workers_do_the_step_again(run: Callable[..., list[list[dict[str, Any]]]], strategy: str) -> None:
    first, second = run(strategy, "none", "encoding", "differentiating")
    whole = first[0]
    assert whole["lines"] == []
    for value, other in zip(first[1:], second[1:], strict=True):
        assert value["error"] == other["error"] == ""
        assert value["losses"] == pytest.approx(whole["losses"], rel=1e-5)
        assert len(value["losses"]) == 4
        [line] = value["lines"]  # the chunk is halved once
        assert line.startswith("Step 2 ran out of memory (")
        assert line.endswith("); encoding at most 80 tokens at a time from now on.")
        for here, there, expected in zip(value["parameters"], other["parameters"], whole["parameters"], strict=True):
            assert torch.equal(here, there)
            torch.testing.assert_close(here, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_by_block_the_group_restarts_with_a_smaller_chunk(run: Callable[..., list[list[dict[str, Any]]]]) -> None:
    (whole, one), (_, other) = run("fsdp2", "none", "encoding")
    assert len(whole["losses"]) == 4
    assert one["losses"] == whole["losses"][:2]
    assert one["error"].startswith("RuntimeError: ")  # it lost the other worker, for which it waited
    assert one["lines"] == []
    failure = "Step 2 ran out of memory on worker 1 (CUDA out of memory. Tried to allocate 2.00 MiB.)"
    assert other["error"] == f"OutOfMemory: {failure}", one["error"]
    [line] = other["lines"]
    assert line.startswith(f"{failure}; restarting all workers, to encode at most ")
    (again,), (other,) = run("fsdp2", "encoding")
    assert again["error"] == other["error"] == ""
    assert other["lines"] == []
    assert again["lines"] == ["Resumed from checkpoint step-2."]
    assert again["losses"] == pytest.approx(whole["losses"][2:], rel=1e-5)
    for here, expected in zip(again["parameters"], whole["parameters"], strict=True):
        torch.testing.assert_close(here, expected, rtol=1e-4, atol=1e-6)
