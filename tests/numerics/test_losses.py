"""Every loss, also of a user, against its literal form: value, gradients and extremes."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest
import torch
from batch_ids import BatchIds, TeacherScores, build_loss
from examples import Example, assert_near, computed, example, graded, gradients, literal
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_losses import bce, labeled, query_scores, reference_loss

from raytriever.core.setting_declarations import Need, option
from raytriever.losses import score_matrix as panels
from raytriever.losses.loss import BIAS_UNIT, Loss
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.named_losses import LOSS_NAMES
from raytriever.losses.row_losses import RowLoss, by_row, joint

every_loss = pytest.mark.parametrize("name", LOSS_NAMES)


@every_loss
@pytest.mark.parametrize("levels", [0, 3], ids=["plain", "tied"])
def test_equals_the_literal_loss(name: str, levels: int) -> None:
    config = LossConfig(name, 0.7, margin=0.5, distribution_weight=0.1, teacher_temperature=1.7)
    batch = example(0, levels=levels)
    assert_near(computed(config, batch), literal(config, batch))


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("mw+infonce", None),
        ("infonce+mw", "0.3,1"),
        ("mw+infonce", "0,2"),
        ("lsepair-maxn+mw+joint", "0.2,1,2"),
        ("lsepair-maxn+lsepair-minp-maxn", "0.2,1"),
        ("triplet+mw+infonce-symmetric", "0.5,1,3"),
        ("kl+mw", "1,0.1"),
        ("margin-mse+rand1+summarg", "1,2,3"),
        ("mw+bce", "1,0.1"),
        ("cosent+bce", None),
        ("kl+cosent+bce", None),
    ],
)
def test_a_sum_equals_the_sum_of_the_literal_losses(name: str, weights: str | None) -> None:
    config = LossConfig(name, 0.7, loss_weights=weights, margin=0.5, distribution_weight=0.1)
    batch = graded(example(0))
    assert_near(computed(config, batch), literal(config, batch))
    with torch.no_grad():
        logged = build_loss(config)(batch.queries, batch.passages, batch.ids).statistics
    for term in config.terms:
        alone = dataclasses.replace(config, loss=term, loss_weights=None, distribution_weight=0)
        assert_near([logged[f"loss_{term}"]], literal(alone, batch)[:1])


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(2, 6),
    hard=st.integers(2, 3),
    positives=st.integers(1, 4),
    levels=st.sampled_from([0, 2, 4]),
    # Of powers of two equal scores stay equal, whatever is multiplied first; a maximum has no gradient at a tie that
    # rounding breaks one way here and another way in the literal loss.
    temperature=st.sampled_from([0.03125, 1.0, 32.0]),
)
def test_equals_the_literal_loss_on_any_shape(
    seed: int, batch: int, hard: int, positives: int, levels: int, temperature: float
) -> None:
    sample = example(seed, batch, hard, positives, levels=levels, repeats=positives > 1)
    sample = graded(sample) if seed % 2 else sample
    for name in LOSS_NAMES:
        config = LossConfig(loss=name, temperature=temperature)
        assert_near(computed(config, sample), literal(config, sample))


@pytest.mark.fast_every(15)
@pytest.mark.parametrize("name", [*LOSS_NAMES, "mw+lsepair-maxn+infonce"])
def test_gradcheck_with_the_temperature(name: str) -> None:
    batch = example(2, batch=3)
    log_temperature = torch.tensor(-0.3, dtype=torch.float64, requires_grad=name != "triplet")

    def value(*inputs: torch.Tensor) -> torch.Tensor:
        loss = build_loss(LossConfig(loss=name, distribution_weight=0.1))
        loss._buffers["log_temperature"] = inputs[2]
        return loss(inputs[0], inputs[1], batch.ids).value

    assert torch.autograd.gradcheck(value, (batch.queries, batch.passages, log_temperature))


@pytest.mark.parametrize(("threshold", "weight"), [(0.5, 1.0), (-0.3, 7.0)])
def test_the_bias_and_the_scale_of_bce_have_their_gradients(threshold: float, weight: float) -> None:
    batch = graded(example(1))
    config = LossConfig("bce", 0.7, learn_temperature=True, threshold=threshold, positive_weight=weight)
    loss = build_loss(config)
    with torch.no_grad():
        loss.bias += 0.4 / BIAS_UNIT
    output = loss(batch.queries, batch.passages, batch.ids)
    ours = torch.autograd.grad(output.value, [loss.bias, loss.log_temperature, batch.queries, batch.passages])
    tau, moved = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.7, threshold - 0.4 * 0.7))
    rows = list(query_scores(batch.queries, batch.passages, batch.ids, config))
    value = bce(*labeled(rows), tau, moved, weight, len(rows))
    by_threshold, by_tau, *expected = torch.autograd.grad(value, [moved, tau, batch.queries, batch.passages])
    assert float(output.value.detach()) == pytest.approx(float(value.detach()), rel=1e-6)
    assert float(output.statistics["bce_threshold"]) == pytest.approx(float(moved.detach()), rel=1e-6)
    # The trained parameters are float32.
    assert float(ours[0]) == pytest.approx(float(by_threshold) * -0.7, rel=1e-6)
    assert float(ours[1]) == pytest.approx(float(by_tau) * 0.7, rel=1e-6)
    for item, other in zip(ours[2:], expected, strict=True):
        torch.testing.assert_close(item, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("is_graded", [False, True])
def test_cosent_is_the_loss_of_sentence_transformers_over_all_pairs(is_graded: bool) -> None:
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss

    batch = graded(example(2)) if is_graded else example(2)
    scores, labels = labeled(list(query_scores(batch.queries, batch.passages, batch.ids, LossConfig())))
    assert len(labels.unique()) == (5 if is_graded else 2)
    theirs = CoSENTLoss(None, 1 / 0.7, lambda left, right: left)  # pairs of which the similarity is known
    value = theirs.compute_loss_from_embeddings([scores, scores], labels)
    assert_near(computed(LossConfig("cosent", 0.7), batch), gradients(value, batch))


@pytest.mark.parametrize("name", ["cosent", "bce"])
def test_panels_of_a_large_batch_are_one_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The highest score of CoSENT changes from panel to panel."""
    batch, config = graded(example(3, batch=12, hard=5)), LossConfig(name, 0.05)
    monkeypatch.setattr(panels, "PANEL_BYTES", 2 * 8 * len(batch.passages))
    with torch.no_grad():
        batch.queries *= torch.linspace(0.1, 3, 12)[:, None]
    assert_near(computed(config, batch), literal(config, batch))


def test_labels_change_no_other_loss() -> None:
    batch = example(4)
    for name in LOSS_NAMES:
        binary, labeled = (computed(LossConfig(name, 0.7), item) for item in (batch, graded(batch)))
        assert all(map(torch.equal, binary, labeled)) == (name not in ("cosent", "bce")), name


@pytest.mark.parametrize("name", ["cosent", "bce"])
@pytest.mark.parametrize("label", [0.0, 0.3, 1.0])
def test_labels_that_are_all_equal(name: str, label: float) -> None:
    """With 0, no pair of the batch is above another: CoSENT is 0, without a gradient."""
    batch, config = example(5, repeats=False), LossConfig(name, 0.7)
    positives = batch.ids.positives
    scores = torch.full(positives.shape, label, dtype=torch.float64)
    batch = dataclasses.replace(batch, ids=dataclasses.replace(batch.ids, labels=TeacherScores(positives, scores)))
    value, *of = computed(config, batch)
    if name == "cosent" and label == 0:
        assert float(value) == float(torch.cat(of).abs().max()) == 0
    else:
        assert_near([value, *of], literal(config, batch))
    if label == 1:
        assert_near([value, *of], computed(config, example(5, repeats=False)))


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_finite_at_extreme_scores(name: str, dtype: torch.dtype) -> None:
    batch = example(3)
    queries, passages = ((x.detach() * 60).to(dtype).requires_grad_() for x in (batch.queries, batch.passages))
    assert float((queries @ passages.T).detach().abs().max()) > 1e4
    value = build_loss(LossConfig(loss=name, temperature=1e-3))(queries, passages, batch.ids).value
    value.backward()
    assert bool(torch.isfinite(value))
    assert bool(torch.isfinite(queries.grad).all())
    assert bool(torch.isfinite(passages.grad).all())
    assert float(passages.grad.abs().max()) > 0
    config = LossConfig(loss=name, temperature=1e-3)
    oracle = reference_loss(config, queries.detach().double(), passages.detach().double(), batch.ids)
    torch.testing.assert_close(value.double(), oracle, rtol=1e-4, atol=1e-3)


def test_eq_3_is_the_sum() -> None:
    config, batch = LossConfig(loss="mw", temperature=0.5, reduction="sum"), example(10)
    assert_near(computed(config, batch), literal(config, batch))


def test_rand1_samples_evenly_by_seed_step_and_query_alone() -> None:
    from raytriever.losses.row_losses import sample_positive

    columns = torch.tensor([[4, -1, 7, 9]]).repeat(3000, 1)
    relevance = BatchIds(torch.arange(3000), columns, torch.arange(10), seed=1, step=2).relevance()
    sampled = sample_positive(relevance)[:, 0]
    for column in (4, 7, 9):
        assert 0.30 < float((sampled == column).float().mean()) < 0.37
    flipped = dataclasses.replace(relevance, queries=relevance.queries.flip(0))
    assert torch.equal(sample_positive(flipped)[:, 0].flip(0), sampled)
    later = dataclasses.replace(relevance, step=3)
    assert 0.5 < float((sample_positive(later)[:, 0] != sampled).float().mean()) < 0.8


def test_a_small_joint_loss_keeps_its_digits() -> None:
    """At tau 0.01 scores are near 60; their float32 values are 4e-6 apart, and so large is the loss."""
    negatives, is_positive = torch.tensor([48.0, 40.0]), torch.tensor([[True, False], [True, True]])
    positives = torch.tensor([[60.0, torch.nan], [61.0, 61.0]])
    value = joint(negatives, positives, is_positive)
    first, second = np.log1p(np.exp(-12.0)), np.log(2 + np.exp(-21.0))
    assert value.tolist() == pytest.approx([first, second], rel=1e-6, abs=0)


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
