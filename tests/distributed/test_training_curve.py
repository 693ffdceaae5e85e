"""Real process groups: 2 workers with a batch of 8 each train as 1 worker with a batch of 16."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))
from process_group import run_groups

LOSSES = ("mw", "infonce")
TOLERANCE = 1e-5
Results = dict[tuple[int, int], dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Path, tiny_dataset: Path) -> Results:
    folder = tmp_path_factory.mktemp("curve")
    groups = run_groups(Path(__file__).with_name("curve_worker.py"), (1, 2), folder, tiny_encoder, tiny_dataset)
    return {(len(group), rank): result for group in groups for rank, result in enumerate(group)}


@pytest.mark.parametrize("loss", LOSSES)
def test_the_curves_are_one(loss: str, results: Results) -> None:
    for name, count in {"loss": 6, "temperature": 6, "gradient_norm": 6, "dev_loss": 2}.items():
        one, two = (results[member][f"{loss}/curve/{name}"] for member in ((1, 0), (2, 0)))
        assert len(one) == count
        torch.testing.assert_close(two, one, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda text, n=name: f"{n}: {text}")
    curve = results[1, 0][f"{loss}/curve/loss"]
    assert curve[-1] < curve[0]  # something was trained
    assert len(set(results[1, 0][f"{loss}/curve/temperature"].tolist())) == 6


@pytest.mark.parametrize("loss", LOSSES)
def test_the_parameters_are_one(loss: str, results: Results) -> None:
    expected = {key: value for key, value in results[1, 0].items() if key.startswith(f"{loss}/parameter/")}
    assert f"{loss}/parameter/loss.log_temperature" in expected
    assert len(expected) > 30
    for rank in (0, 1):
        for key, value in expected.items():
            if key.endswith("attention.self.key.bias"):
                continue  # the softmax of attention cancels it: its gradient is noise, which AdamW scales up
            torch.testing.assert_close(
                results[2, rank][key], value, rtol=0, atol=TOLERANCE, msg=lambda text, k=key: f"{k}: {text}"
            )


@pytest.mark.parametrize("loss", LOSSES)
def test_the_workers_agree_to_the_bit(loss: str, results: Results) -> None:
    for key, value in results[2, 0].items():
        if key.startswith(f"{loss}/parameter/"):
            assert torch.equal(value, results[2, 1][key]), key
