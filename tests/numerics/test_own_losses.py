"""Losses that a user writes: those of the tutorial against their formulas, and the built-in ones written again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from batch_ids import build_loss
from examples import Example, example

from raytriever.losses.config import LossConfig

SUPPORT = Path(__file__).parents[1] / "support" / "own_losses.py"
PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "own-loss.md").read_text(encoding="utf-8")
BLOCKS = [block for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) if "rt." not in block]
TAU = 0.7


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("losses") / "my_losses.py"
    file.write_text("\n\n".join(BLOCKS))
    return file


def _pairs(batch: Example) -> tuple[list[list[torch.Tensor]], list[list[torch.Tensor]]]:
    """Return the scores of the positives and of the negatives of each query."""
    first = {document: row for row, document in reversed(list(enumerate(batch.ids.passages.tolist())))}
    positives, negatives = [], []
    for query, own, known in zip(batch.queries, batch.ids.positives.tolist(), batch.ids.known.tolist(), strict=True):
        scores = {document: batch.passages[row] @ query / TAU for document, row in first.items()}
        positives.append([scores[document] for document in dict.fromkeys(own) if document >= 0])
        negatives.append([score for document, score in scores.items() if document not in {*own, *known}])
    return positives, negatives


def _focal(batch: Example) -> torch.Tensor:
    positives, negatives = _pairs(batch)
    p = [s.sigmoid() for row in positives for s in row] + [1 - s.sigmoid() for row in negatives for s in row]
    return torch.stack([-((1 - each) ** 2) * each.log() for each in p]).mean()


def _squared_hinge(batch: Example) -> torch.Tensor:
    pairs = zip(*_pairs(batch), strict=True)
    return torch.stack([(10 - p + n).clamp(min=0) ** 2 for ps, ns in pairs for p in ps for n in ns]).mean()


def _mean_positive(batch: Example) -> torch.Tensor:
    pairs = zip(*_pairs(batch), strict=True)
    return torch.stack(
        [(torch.stack(ns).logsumexp(0) - torch.stack(ps).mean()).exp().log1p() for ps, ns in pairs]
    ).mean()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "formula"), [("focal", _focal), ("squared_hinge", _squared_hinge), ("mean_positive", _mean_positive)]
)
def test_a_loss_of_the_tutorial_is_its_formula(tutorial: Path, name: str, formula, seed: int) -> None:
    batch = example(seed)
    value = build_loss(LossConfig(loss=f"{tutorial}:{name}", temperature=TAU))(
        batch.queries, batch.passages, batch.ids
    ).value
    _compare(value, formula(batch), batch)


@pytest.mark.parametrize("widths", ["", "4,2"])
def test_joint_written_by_a_user_is_joint(widths: str) -> None:
    batch = example(1)
    values = [
        build_loss(
            LossConfig(loss=name, temperature=TAU, matryoshka_dims=widths, distribution_weight=0.3), unit_length=True
        )(batch.queries, batch.passages, batch.ids).value
        for name in (f"{SUPPORT}:joint", "joint")
    ]
    _compare(*values, batch)


def test_pairs_that_are_neither_count_for_nothing_in_a_function_without_negatives() -> None:
    batch = example(2)
    value = build_loss(LossConfig(loss=f"{SUPPORT}:plain", temperature=TAU))(
        batch.queries, batch.passages, batch.ids
    ).value
    positives, negatives = _pairs(batch)
    oracle = sum(s.exp() for row in negatives for s in row) / len(positives)
    oracle = oracle - torch.stack([s for row in positives for s in row]).mean()
    _compare(value, oracle, batch)


def test_the_temperature_of_a_users_loss_is_trained() -> None:
    batch = example(3)
    loss = build_loss(LossConfig(loss=f"{SUPPORT}:joint", temperature=TAU, learn_temperature=True))
    builtin = build_loss(LossConfig(loss="joint", temperature=TAU, learn_temperature=True))
    for each in (loss, builtin):
        each(batch.queries, batch.passages, batch.ids).value.backward()
    torch.testing.assert_close(loss.log_temperature.grad, builtin.log_temperature.grad, rtol=1e-6, atol=0)


def _compare(ours: torch.Tensor, oracle: torch.Tensor, batch: Example) -> None:
    torch.testing.assert_close(ours, oracle, rtol=1e-9, atol=1e-12)
    gradients = (torch.autograd.grad(value, (batch.queries, batch.passages)) for value in (ours, oracle))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
