"""The losses that CONTRIBUTING.md shows, run as the page prints them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

import torch
from examples import assert_near, example, gradients
from reference_losses import query_scores

from raytriever.losses.config import LossConfig
from raytriever.losses.loss import Loss
from raytriever.losses.rows import RowLoss, by_row
from raytriever.options import Need, option

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
LOSS, LOSS_WITH_A_CONSTANT, CONSTANT, *_ = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_loss_in_fifteen_lines_is_its_formula() -> None:
    assert sum(bool(line) for line in LOSS.splitlines()) <= 15
    loss = _run(LOSS)["MEAN_POSITIVE"]
    assert isinstance(loss, RowLoss)
    _compare(LossConfig(temperature=0.7), by_row(loss), lambda negatives, positives: negatives - positives.mean())


def test_the_loss_with_a_constant_reads_its_setting() -> None:
    loss = _run(LOSS_WITH_A_CONSTANT)["additive_margin"]
    fields = {"dataclass": dataclass, "LossConfig": LossConfig, "Need": Need, "option": option, "__name__": __name__}
    exec(f"@dataclass(frozen=True)\nclass Settings(LossConfig):\n{indent(CONSTANT, '    ')}", fields)
    for margin in (0.0, 2.5):
        config = fields["Settings"](temperature=0.7, additive_margin=margin)
        _compare(config, loss, lambda negatives, positives, m=margin: negatives + m - positives[0])


def _run(block: str) -> dict[str, object]:
    names: dict[str, object] = {}
    exec(block, names)
    return names


def _compare(config: LossConfig, loss: object, exponent: object) -> None:
    """Compare value and gradients with one query at a time, in double precision."""
    batch = example(0)
    ours = Loss(config, loss)(batch.queries, batch.passages, batch.ids.relevance()).value
    rows = query_scores(batch.queries, batch.passages, batch.ids, config)
    scores = [((row.negatives / config.temperature).logsumexp(0), row.positives / config.temperature) for row in rows]
    oracle = torch.stack([exponent(*each).exp().log1p() for each in scores]).mean()
    assert_near(gradients(ours, batch), gradients(oracle, batch))
