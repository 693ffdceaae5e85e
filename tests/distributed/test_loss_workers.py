"""Real process groups of 1, 2 and 4: every loss has one value and one gradient for any number of workers, and
gathered embeddings return their gradients to the owner."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parent))
from loss_worker import CASES, ROWS, SUMS
from process_group import run_group

SEVERAL = (2, pytest.param(4, marks=pytest.mark.slow))
Results = Callable[[int], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def results() -> Results:
    """Return the results of each rank of a group, by the size of the group, which runs once."""
    return cache(lambda size: run_group(Path(__file__).with_name("loss_worker.py"), size))


@pytest.mark.parametrize("size", SEVERAL)
@pytest.mark.parametrize("name", CASES)
def test_equals_one_process_with_the_whole_batch(name: str, size: int, results: Results) -> None:
    expected = {key: value for key, value in results(1)[0].items() if key.startswith(f"{name}/")}
    trained = 4 + (name.split()[0] != "triplet") + ("bce" in name)
    assert sum("gradient" in key for key in expected) == trained
    assert name.endswith("nested") == (f"{name}/batch_auc_at_2" in expected)
    assert not name.endswith("guided") or 0.1 < float(expected[f"{name}/guide_masked"]) < 0.9
    has_agreement = name.split()[0] in ("kl", "margin-mse", SUMS[1], "kl+cosent+bce")
    assert has_agreement == (f"{name}/teacher_agreement" in expected)
    assert all(float(value.abs().max()) > 0 for key, value in expected.items() if "gradient" in key)
    for rank in range(size):
        for key, value in expected.items():
            rtol = 1e-7 if value.dtype == torch.float64 else 1e-6  # the temperature is trained in float32
            torch.testing.assert_close(results(size)[rank][key], value, rtol=rtol, atol=1e-9, msg=f"{key} on {rank}")


@pytest.mark.parametrize("size", [1, *SEVERAL])
def test_rows_are_gathered_and_their_gradients_summed_at_the_owner(size: int, results: Results) -> None:
    of = [results(size)[rank]["gathered"] for rank in range(size)]
    for rank, (_, _, received, gradient) in enumerate(of):
        assert torch.equal(received, torch.cat([rows for rows, *_ in of]))
        fractions = [weights[rank * ROWS :][:ROWS] for _, weights, *_ in of]
        torch.testing.assert_close(gradient, torch.stack(fractions).sum(0), rtol=1e-6, atol=1e-7)
