"""Losses that a user or a contributor writes, as the pages print them, are their formulas."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

import pytest
import torch
from batch_ids import build_loss
from examples import Example, assert_near, computed, example, gradients
from reference_losses import query_scores

from raytriever.core.options import Need, option
from raytriever.losses.loss import Loss
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.row_losses import RowLoss, by_row

SUPPORT = Path(__file__).parents[1] / "support" / "own_losses.py"
PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "own-loss.md").read_text(encoding="utf-8")
BLOCKS = [block for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) if "rt." not in block]
TAU = 0.7


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("losses") / "my_losses.py"
    file.write_text("\n\n".join(BLOCKS))
    return file


def _pairs(batch: Example) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the scores of the positives and of the negatives of each query, in units of the temperature."""
    rows = list(query_scores(batch.queries, batch.passages, batch.ids, LossConfig()))
    return [row.positives / TAU for row in rows], [row.negatives / TAU for row in rows]


def _focal(batch: Example) -> torch.Tensor:
    positives, negatives = map(torch.cat, _pairs(batch))
    p = torch.cat([positives.sigmoid(), 1 - negatives.sigmoid()])
    return (-((1 - p) ** 2) * p.log()).mean()


def _squared_hinge(batch: Example) -> torch.Tensor:
    pairs = zip(*_pairs(batch), strict=True)
    return torch.cat([(10 - p[:, None] + n).clamp(min=0).flatten() ** 2 for p, n in pairs]).mean()


def _mean_positive(batch: Example) -> torch.Tensor:
    return torch.stack([(n.logsumexp(0) - p.mean()).exp().log1p() for p, n in zip(*_pairs(batch), strict=True)]).mean()


def _plain(batch: Example) -> torch.Tensor:
    positives, negatives = _pairs(batch)
    return torch.cat(negatives).exp().sum() / len(positives) - torch.cat(positives).mean()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "formula"), [("focal", _focal), ("squared_hinge", _squared_hinge), ("mean_positive", _mean_positive)]
)
def test_a_loss_of_the_tutorial_is_its_formula(tutorial: Path, name: str, formula, seed: int) -> None:
    batch = example(seed)
    assert_near(computed(LossConfig(f"{tutorial}:{name}", TAU), batch), gradients(formula(batch), batch))


@pytest.mark.parametrize("dims", ["", "4,2"])
def test_joint_written_by_a_user_is_joint(dims: str) -> None:
    settings = {"temperature": TAU, "matryoshka_dims": dims, "distribution_weight": 0.3}
    names = f"{SUPPORT}:joint", "joint"
    assert_near(*(computed(LossConfig(name, **settings), example(1), unit_length=True) for name in names))


def test_pairs_that_are_neither_count_for_nothing_in_a_function_without_negatives() -> None:
    batch = example(2)
    assert_near(computed(LossConfig(f"{SUPPORT}:plain", TAU), batch), gradients(_plain(batch), batch))


def test_the_temperature_of_a_users_loss_is_trained() -> None:
    batch = example(3)
    loss = build_loss(LossConfig(loss=f"{SUPPORT}:joint", temperature=TAU, learn_temperature=True))
    builtin = build_loss(LossConfig(loss="joint", temperature=TAU, learn_temperature=True))
    for value in (loss, builtin):
        value(batch.queries, batch.passages, batch.ids).value.backward()
    torch.testing.assert_close(loss.log_temperature.grad, builtin.log_temperature.grad, rtol=1e-6, atol=0)


CONTRIBUTING = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
LOSS, LOSS_WITH_A_CONSTANT, CONSTANT, *_ = re.findall(r"^```python\n(.*?)^```", CONTRIBUTING, re.DOTALL | re.MULTILINE)


def test_the_loss_in_fifteen_lines_is_its_formula() -> None:
    assert sum(bool(line) for line in LOSS.splitlines()) <= 15
    loss = _run(LOSS)["MEAN_POSITIVE"]
    assert isinstance(loss, RowLoss)
    _assert_formula(LossConfig(temperature=TAU), by_row(loss), lambda negatives, own: negatives - own.mean())


def test_the_loss_with_a_constant_reads_its_setting() -> None:
    loss = _run(LOSS_WITH_A_CONSTANT)["additive_margin"]
    fields = {"dataclass": dataclass, "LossConfig": LossConfig, "Need": Need, "option": option, "__name__": __name__}
    exec(f"@dataclass(frozen=True)\nclass Settings(LossConfig):\n{indent(CONSTANT, '    ')}", fields)
    for margin in (0.0, 2.5):
        config = fields["Settings"](temperature=TAU, additive_margin=margin)
        _assert_formula(config, loss, lambda negatives, positives, m=margin: negatives + m - positives[0])


def _run(block: str) -> dict[str, object]:
    names: dict[str, object] = {}
    exec(block, names)
    return names


def _assert_formula(config: LossConfig, loss: object, exponent: object) -> None:
    """Compare value and gradients with one query at a time, in double precision."""
    batch = example(0)
    ours = Loss(config, loss)(batch.queries, batch.passages, batch.ids.relevance()).value
    scores = [(negatives.logsumexp(0), positives) for positives, negatives in zip(*_pairs(batch), strict=True)]
    oracle = torch.stack([exponent(*score).exp().log1p() for score in scores]).mean()
    assert_near(gradients(ours, batch), gradients(oracle, batch))
