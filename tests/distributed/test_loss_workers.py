"""Real process groups of 1, 2 and 4: every loss has one value and one gradient for any number of workers, and
gathered embeddings return their gradients to the owner, exactly or in bf16."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parent))
from gather_worker import ROWS
from loss_worker import CASES, SUMS
from process_group import run_group

SEVERAL = (2, pytest.param(4, marks=pytest.mark.slow))
# Largest differences of bf16 from fp32, relative to the largest gradient; bf16 rounds by at most 2^-9.
VALUE_ERROR, GRADIENT_ERROR = 2e-3, 1e-2
Results = Callable[[int], list[dict[str, Any]]]


def results_of(script: str) -> Results:
    """Return the results of each rank of a group, by the size of the group, which runs once."""
    return cache(lambda size: run_group(Path(__file__).with_name(script), size))


@pytest.fixture(scope="module")
def results() -> Results:
    return results_of("loss_worker.py")


@pytest.fixture(scope="module")
def gathered() -> Results:
    return results_of("gather_worker.py")


@pytest.mark.parametrize("size", SEVERAL)
@pytest.mark.parametrize("name", CASES)
def test_equals_one_process_with_the_whole_batch(name: str, size: int, results: Results) -> None:
    expected = {key: value for key, value in results(1)[0].items() if key.startswith(f"{name}/")}
    assert sum("gradient" in key for key in expected) == 4 + (name.split()[0] != "triplet")
    assert name.endswith("nested") == (f"{name}/batch_auc_at_2" in expected)
    assert not name.endswith("guided") or 0.1 < float(expected[f"{name}/guide_masked"]) < 0.9
    has_agreement = name.split()[0] in ("kl", "margin-mse", SUMS[1]) or name.endswith("soft")
    assert has_agreement == (f"{name}/teacher_agreement" in expected)
    assert all(float(value.abs().max()) > 0 for key, value in expected.items() if "gradient" in key)
    for rank in range(size):
        for key, value in expected.items():
            rtol = 1e-7 if value.dtype == torch.float64 else 1e-6  # the temperature is trained in float32
            torch.testing.assert_close(results(size)[rank][key], value, rtol=rtol, atol=1e-9, msg=f"{key} on {rank}")


@pytest.mark.parametrize("size", SEVERAL)
def test_unequal_shares_are_refused_by_every_worker(size: int, results: Results) -> None:
    for rank in range(size):
        message = bytes(results(size)[rank]["refused"].tolist()).decode()
        assert "(queries, passages) differ between workers" in message


@pytest.mark.parametrize("size", [1, *SEVERAL])
@pytest.mark.parametrize("sent", [None, torch.bfloat16])
def test_rows_are_gathered_and_their_gradients_summed_at_the_owner(
    sent: torch.dtype | None, size: int, gathered: Results
) -> None:
    of = [gathered(size)[rank][f"{sent}"] for rank in range(size)]

    def rounded(values: torch.Tensor) -> torch.Tensor:
        return values.to(sent or values.dtype).to(values.dtype)

    for rank, (_, _, received, gradient) in enumerate(of):
        assert torch.equal(received, torch.cat([rounded(rows) for rows, *_ in of]))
        # Each contribution is rounded once; their sum is not.
        shares = [rounded(weights)[rank * ROWS :][:ROWS] for _, weights, *_ in of]
        torch.testing.assert_close(gradient, torch.stack(shares).sum(0), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [1, *SEVERAL])
def test_the_error_of_bf16_is_small_and_the_same_with_any_number_of_workers(size: int, gathered: Results) -> None:
    (value, *gradients), (rounded_value, *rounded) = (
        gathered(size)[0][f"loss {precision}"] for precision in ("fp32", "bf16")
    )
    assert 0 < abs(float(rounded_value / value) - 1) < VALUE_ERROR
    for one, other in zip(gradients, rounded, strict=True):
        assert 0 < float((one - other).abs().max() / one.abs().max()) < GRADIENT_ERROR
    torch.testing.assert_close(rounded_value, gathered(1)[0]["loss bf16"][0], rtol=1e-6, atol=0)
