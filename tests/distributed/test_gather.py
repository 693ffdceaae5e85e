"""Real process groups of 1, 2 and 4 gather embeddings: their gradients return to the owner, exactly or in bf16."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))
from process_group import run_groups

SIZES = (1, 2, 4)
ROWS = 5
# Largest differences of bf16 from fp32, relative to the largest gradient; bf16 rounds by at most 2^-9.
VALUE_ERROR, GRADIENT_ERROR = 2e-3, 1e-2
Results = dict[tuple[int, int], dict[str, object]]


@pytest.fixture(scope="module")
def results() -> Results:
    groups = run_groups(Path(__file__).with_name("gather_worker.py"), SIZES)
    return {(len(group), rank): result for group in groups for rank, result in enumerate(group)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sent", [None, torch.bfloat16])
def test_rows_are_gathered_and_their_gradients_summed_at_the_owner(
    sent: torch.dtype | None, size: int, results: Results
) -> None:
    of = [results[size, rank][f"{sent}"] for rank in range(size)]

    def rounded(values: torch.Tensor) -> torch.Tensor:
        return values.to(sent or values.dtype).to(values.dtype)

    for rank, (_, _, gathered, gradient) in enumerate(of):
        assert torch.equal(gathered, torch.cat([rounded(rows) for rows, *_ in of]))
        # Each contribution is rounded once; their sum is not.
        shares = [rounded(weights)[rank * ROWS :][:ROWS] for _, weights, *_ in of]
        torch.testing.assert_close(gradient, torch.stack(shares).sum(0), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", SIZES)
def test_the_error_of_bf16_is_small_and_the_same_with_any_number_of_workers(size: int, results: Results) -> None:
    (value, *gradients), (rounded_value, *rounded) = (
        results[size, 0][f"loss {precision}"] for precision in ("fp32", "bf16")
    )
    assert 0 < abs(float(rounded_value / value) - 1) < VALUE_ERROR
    for one, other in zip(gradients, rounded, strict=True):
        assert 0 < float((one - other).abs().max() / one.abs().max()) < GRADIENT_ERROR
    torch.testing.assert_close(rounded_value, results[1, 0]["loss bf16"][0], rtol=1e-6, atol=0)
