"""The losses of a teacher's scores: what they are made of, and what they leave out."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from batch_ids import BatchIds, TeacherScores, build_loss
from examples import Example, example
from reference_losses import reference_loss

from raytriever.errors import LossInputError
from raytriever.losses.config import LossConfig
from raytriever.losses.table import DISTILLATION_LOSSES


def value_and_gradients(config: LossConfig, batch: Example, of: object = None) -> list[torch.Tensor]:
    inputs = (batch.queries, batch.passages)
    value = (
        reference_loss(config, *inputs, batch.ids)
        if of is reference_loss
        else build_loss(config)(*inputs, batch.ids).value
    )
    return [value.detach(), *torch.autograd.grad(value, inputs)]


def with_scores(batch: Example, scores: torch.Tensor | None) -> Example:
    assert batch.ids.teacher is not None
    teacher = None if scores is None else TeacherScores(batch.ids.teacher.documents, scores)
    return dataclasses.replace(batch, ids=dataclasses.replace(batch.ids, teacher=teacher))


@pytest.mark.parametrize("name", DISTILLATION_LOSSES)
@pytest.mark.parametrize("levels", [0, 3], ids=["plain", "tied"])
def test_equals_the_literal_loss(name: str, levels: int) -> None:
    config = LossConfig(name, temperature=0.5, teacher_temperature=1.7)
    batch = example(0, levels=levels)
    for ours, oracle in zip(
        value_and_gradients(config, batch), value_and_gradients(config, batch, reference_loss), strict=True
    ):
        torch.testing.assert_close(ours, oracle, rtol=1e-9, atol=1e-11)
    other = value_and_gradients(dataclasses.replace(config, teacher_temperature=0.4), batch)[0]
    assert abs(float(other - value_and_gradients(config, batch)[0])) > 1e-6


def group_of(student: list[float], teacher: list[float], positives: int = 1) -> Example:
    """One query whose scores are given, and whose group is all there is but one passage."""
    passages = torch.tensor([*student, 9.0], dtype=torch.float64)[:, None].requires_grad_()
    documents = torch.arange(len(student))
    scores = torch.tensor([teacher], dtype=torch.float64)
    ids = BatchIds(
        torch.zeros(1, dtype=torch.long),
        documents[None, :positives],
        torch.arange(len(student) + 1),
        teacher=TeacherScores(documents[None], scores),
    )
    return Example(torch.ones(1, 1, dtype=torch.float64, requires_grad=True), passages, ids)


def test_kl_by_hand() -> None:
    # p = (3/4, 1/4), q = (1/2, 1/2); the passage outside the group, however high, is not looked at.
    batch = group_of([0.2, 0.2], [2 * float(torch.tensor(3.0).log()), 0.0])
    value, _, by_passage = value_and_gradients(LossConfig("kl", temperature=0.1, teacher_temperature=2), batch)
    assert float(value) == pytest.approx(0.75 * 0.4054651081 + 0.25 * -0.6931471806)
    assert by_passage[:, 0].tolist() == pytest.approx([-2.5, 2.5, 0.0])


def test_kl_is_nothing_where_the_student_is_the_teacher() -> None:
    batch = group_of([0.1, -0.3, 0.7], [2.1, 1.3, 3.3])
    value, by_query, by_passage = value_and_gradients(LossConfig("kl", temperature=0.5, teacher_temperature=1.0), batch)
    for tensor in (value, by_query, by_passage):
        torch.testing.assert_close(tensor, torch.zeros_like(tensor), rtol=0, atol=1e-15)


def test_margin_mse_by_hand() -> None:
    # Margins 4 and 1 of the teacher, 2 and 3 of the student in units of tau: (2 - 4)^2 and (3 - 1)^2.
    batch = group_of([0.5, 0.3, 0.2], [5.0, 1.0, 4.0])
    value, _, by_passage = value_and_gradients(LossConfig("margin-mse", temperature=0.1), batch)
    assert float(value) == pytest.approx(4.0)
    assert by_passage[:, 0].tolist() == pytest.approx([0.0, 20.0, -20.0, 0.0], abs=1e-9)


@pytest.mark.parametrize("name", DISTILLATION_LOSSES)
def test_what_has_no_score_says_nothing(name: str) -> None:
    config = LossConfig(name, temperature=0.5)
    with_one_more = group_of([0.5, 0.3, 0.2, 0.1], [5.0, 1.0, 4.0, float("nan")])
    without = group_of([0.5, 0.3, 0.2], [5.0, 1.0, 4.0])
    assert float(value_and_gradients(config, with_one_more)[0]) == pytest.approx(
        float(value_and_gradients(config, without)[0])
    )
    assert value_and_gradients(config, with_one_more)[2][3].item() == 0
    for scores in ([float("nan")] * 3, [float("nan"), float("nan"), 1.0]):
        alone = value_and_gradients(config, group_of([0.5, 0.3, 0.2], scores))
        assert all(float(tensor.abs().max()) == 0 for tensor in alone)


@pytest.mark.parametrize("name", DISTILLATION_LOSSES)
def test_a_batch_that_nobody_was_asked_about_has_the_loss_of_infonce(name: str) -> None:
    batch = with_scores(example(3), None)
    ours, infonce = (value_and_gradients(LossConfig(loss, temperature=0.3), batch) for loss in (name, "infonce"))
    assert all(torch.equal(one, other) for one, other in zip(ours, infonce, strict=True))


def test_statistics_of_teacher_and_student() -> None:
    batch = group_of([0.5, 0.3, 0.3, 0.9], [5.0, 1.0, 4.0, float("nan")])
    statistics = build_loss(LossConfig("kl"))(batch.queries, batch.passages, batch.ids).statistics
    assert float(statistics["teacher_missing"]) == pytest.approx(0.25)
    assert float(statistics["teacher_agreement"]) == pytest.approx(2.5 / 3)  # of three pairs two are right, one is tied
    turned = with_scores(batch, -batch.ids.teacher.scores)
    statistics = build_loss(LossConfig("kl"))(batch.queries, batch.passages, turned.ids).statistics
    assert float(statistics["teacher_agreement"]) == pytest.approx(0.5 / 3)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: TeacherScores(t.documents, t.scores[:, :2]), r"teacher: \(5, 2\) scores for .* documents"),
        (lambda t: TeacherScores(t.documents, t.scores / 0), "teacher: a score is infinite"),
    ],
)
def test_scores_that_do_not_fit_are_refused(spoil: object, message: str) -> None:
    batch = example(0)
    ids = dataclasses.replace(batch.ids, teacher=spoil(batch.ids.teacher))  # type: ignore[operator]
    with pytest.raises(LossInputError, match=message):
        build_loss(LossConfig("kl"))(batch.queries, batch.passages, ids)
