"""Real process groups of 1, 2 and 4: every loss has one value and one gradient, whatever the number of workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from raytriever.losses.config import LOSS_NAMES, SOFT_LABEL_LOSSES

sys.path.append(str(Path(__file__).parents[1] / "support"))
sys.path.append(str(Path(__file__).parent))
from loss_worker import OWN_LOSSES, SUMS
from process_group import run_groups

SIZES = (1, 2, 4)
Results = dict[tuple[int, int], dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def results() -> Results:
    groups = run_groups(Path(__file__).with_name("loss_worker.py"), SIZES)
    return {(len(group), rank): result for group in groups for rank, result in enumerate(group)}


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize(
    "name",
    [
        *LOSS_NAMES,
        *OWN_LOSSES,
        *SUMS,
        f"{SUMS[0]} nested",
        *(f"{name} {way}" for way in ("nested", "guided") for name in (*LOSS_NAMES, *OWN_LOSSES)),
        *(f"{name} soft" for name in SOFT_LABEL_LOSSES),
    ],
)
def test_equals_one_process_with_the_whole_batch(name: str, size: int, results: Results) -> None:
    expected = {key: value for key, value in results[1, 0].items() if key.startswith(f"{name}/")}
    assert sum("gradient" in key for key in expected) == 4 + (name.split()[0] != "triplet")
    assert name.endswith("nested") == (f"{name}/batch_auc_at_2" in expected)
    assert not name.endswith("guided") or 0.1 < float(expected[f"{name}/guide_masked"]) < 0.9
    has_agreement = name.split()[0] in ("kl", "margin-mse", SUMS[1]) or name.endswith("soft")
    assert has_agreement == (f"{name}/teacher_agreement" in expected)
    assert all(float(value.abs().max()) > 0 for key, value in expected.items() if "gradient" in key)
    for rank in range(size):
        for key, value in expected.items():
            rtol = 1e-7 if value.dtype == torch.float64 else 1e-6  # the temperature is trained in float32
            torch.testing.assert_close(results[size, rank][key], value, rtol=rtol, atol=1e-9, msg=f"{key} on {rank}")


@pytest.mark.parametrize("size", SIZES[1:])
def test_unequal_shares_are_refused_by_every_worker(size: int, results: Results) -> None:
    for rank in range(size):
        message = bytes(results[size, rank]["refused"].tolist()).decode()
        assert "(queries, passages) differ between workers" in message
