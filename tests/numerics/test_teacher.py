"""The losses of a teacher's scores: what they are made of, and what they leave out."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from batch_ids import BatchIds, TeacherScores, build_loss
from examples import Example, computed, example

from raytriever.core.errors import LossInputError
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.named_losses import DISTILLATION_LOSSES


def with_scores(batch: Example, scores: torch.Tensor | None) -> Example:
    assert batch.ids.teacher is not None
    teacher = None if scores is None else TeacherScores(batch.ids.teacher.documents, scores)
    return dataclasses.replace(batch, ids=dataclasses.replace(batch.ids, teacher=teacher))


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
    value, _, by_passage = computed(LossConfig("kl", temperature=0.1, teacher_temperature=2), batch)
    assert float(value) == pytest.approx(0.75 * 0.4054651081 + 0.25 * -0.6931471806)
    assert by_passage[:, 0].tolist() == pytest.approx([-2.5, 2.5, 0.0])


def test_kl_is_nothing_where_the_student_is_the_teacher() -> None:
    batch = group_of([0.1, -0.3, 0.7], [2.1, 1.3, 3.3])
    value, by_query, by_passage = computed(LossConfig("kl", temperature=0.5, teacher_temperature=1.0), batch)
    for tensor in (value, by_query, by_passage):
        torch.testing.assert_close(tensor, torch.zeros_like(tensor), rtol=0, atol=1e-15)


def test_margin_mse_by_hand() -> None:
    # Margins 4 and 1 of the teacher, 2 and 3 of the student in units of tau: (2 - 4)^2 and (3 - 1)^2.
    batch = group_of([0.5, 0.3, 0.2], [5.0, 1.0, 4.0])
    value, _, by_passage = computed(LossConfig("margin-mse", temperature=0.1), batch)
    assert float(value) == pytest.approx(4.0)
    assert by_passage[:, 0].tolist() == pytest.approx([0.0, 20.0, -20.0, 0.0], abs=1e-9)


@pytest.mark.parametrize("name", DISTILLATION_LOSSES)
def test_what_has_no_score_says_nothing(name: str) -> None:
    config = LossConfig(name, temperature=0.5)
    with_one_more = group_of([0.5, 0.3, 0.2, 0.1], [5.0, 1.0, 4.0, float("nan")])
    without = group_of([0.5, 0.3, 0.2], [5.0, 1.0, 4.0])
    assert float(computed(config, with_one_more)[0]) == pytest.approx(float(computed(config, without)[0]))
    assert computed(config, with_one_more)[2][3].item() == 0
    for scores in ([float("nan")] * 3, [float("nan"), float("nan"), 1.0]):
        alone = computed(config, group_of([0.5, 0.3, 0.2], scores))
        assert all(float(tensor.abs().max()) == 0 for tensor in alone)


@pytest.mark.parametrize("name", DISTILLATION_LOSSES)
def test_a_batch_that_nobody_was_asked_about_has_the_loss_of_infonce(name: str) -> None:
    batch = with_scores(example(3), None)
    ours, infonce = (computed(LossConfig(loss, temperature=0.3), batch) for loss in (name, "infonce"))
    assert all(torch.equal(value, other) for value, other in zip(ours, infonce, strict=True))


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
