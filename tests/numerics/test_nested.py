"""Nested embeddings and a teacher's scores: the losses of every width, and what they are made of and leave out."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
import torch
from batch_ids import BatchIds, TeacherScores, build_loss
from examples import Example, assert_near, computed, example, gradients
from reference_losses import reference_loss
from torch import Tensor

from raytriever.core.errors import ConfigError, LossInputError
from raytriever.losses.loss_settings import LossConfig, read_dims
from raytriever.losses.named_losses import DISTILLATION_LOSSES, LOSS_NAMES
from raytriever.losses.nested_embeddings import check_dims

DIMS = (6, 4, 1)
every_loss = pytest.mark.parametrize("name", LOSS_NAMES)


def config(name: str, dims: str = "4,1", **settings: object) -> LossConfig:
    return LossConfig(loss=name, matryoshka_dims=dims, **{"temperature": 0.7, "margin": 0.5, **settings})


def cut(rows: Tensor, dim: int, unit_length: bool) -> Tensor:
    return rows[:, :dim] / rows[:, :dim].square().sum(1, keepdim=True).sqrt() if unit_length else rows[:, :dim]


def batch_of(seed: int, unit_length: bool) -> Example:
    batch = example(seed)
    if unit_length:
        batch.queries, batch.passages = (
            cut(x.detach(), 6, True).requires_grad_() for x in (batch.queries, batch.passages)
        )
    return batch


def summed(settings: LossConfig, batch: Example, unit_length: bool) -> Tensor:
    """Eq. 1, with the regularizer of the whole embeddings."""
    whole = replace(settings, matryoshka_dims="")
    plain = replace(whole, distribution_weight=0.0)
    value = reference_loss(whole, batch.queries, batch.passages, batch.ids)
    for dim in DIMS[1:]:
        parts = (cut(x, dim, unit_length) for x in (batch.queries, batch.passages))
        value = value + reference_loss(plain, *parts, batch.ids)
    return value


@pytest.mark.fast_every(5)
@pytest.mark.parametrize("name", LOSS_NAMES)
@pytest.mark.parametrize("unit_length", [False, True], ids=["dot", "cosine"])
def test_equals_the_sum_of_the_literal_losses(name: str, unit_length: bool) -> None:
    settings, batch = config(name, distribution_weight=0.1), batch_of(1, unit_length)
    assert_near(computed(settings, batch, unit_length), gradients(summed(settings, batch, unit_length), batch))


@pytest.mark.parametrize("name", [name for name in LOSS_NAMES if name != "triplet"])
def test_a_learnt_temperature_has_a_gradient_of_every_dim(name: str) -> None:
    batch = batch_of(2, True)
    inputs = batch.queries.float(), batch.passages.float(), batch.ids
    nested = build_loss(config(name, learn_temperature=True), True)
    nested(*inputs).value.backward()
    up, down = (summed(config(name, temperature=0.7 * factor), batch, True) for factor in (1.001, 1 / 1.001))
    expected = float((up - down).detach()) / (2 * torch.log(torch.tensor(1.001)).item())
    assert float(nested.log_temperature.grad) == pytest.approx(expected, rel=2e-3, abs=1e-5)


@every_loss
def test_the_whole_dim_alone_is_the_loss_without_nesting_to_the_bit(name: str) -> None:
    batch = example(3)
    assert all(map(torch.equal, computed(config(name, ""), batch), computed(config(name, "6"), batch, True)))
    plain = build_loss(config(name, ""))(batch.queries, batch.passages, batch.ids)
    assert not [statistic for statistic in plain.statistics if "_at_" in statistic]


@every_loss
def test_statistics_of_each_dim_are_those_of_cut_embeddings(name: str) -> None:
    batch = batch_of(4, True)
    settings = config(name, distribution_weight=0.3)
    output = build_loss(settings, True)(batch.queries, batch.passages, batch.ids)
    total = 0.3 * float(output.statistics["distribution_distance"])
    for dim in DIMS:
        parts = (cut(x.detach(), dim, True) for x in (batch.queries, batch.passages))
        plain = build_loss(config(name, ""))(*parts, batch.ids)
        after = "" if dim == 6 else f"_at_{dim}"
        for statistic in ("batch_auc", "query_positive_distance", "query_positive_mmd"):
            torch.testing.assert_close(output.statistics[statistic + after], plain.statistics[statistic])
        torch.testing.assert_close(output.statistics[f"loss_at_{dim}"], plain.value)
        total += float(plain.value.detach())
    assert output.value.item() == pytest.approx(total, rel=1e-6)
    assert all(not number.requires_grad and number.ndim == 0 for number in output.statistics.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_is_cut_and_brought_to_length_in_float32(dtype: torch.dtype) -> None:
    batch = batch_of(5, True)
    rounded = [x.detach().to(dtype) for x in (batch.queries, batch.passages)]
    ours = build_loss(config("infonce"), True)(*rounded, batch.ids).value
    batch.queries, batch.passages = (x.double() for x in rounded)
    torch.testing.assert_close(ours.double(), summed(config("infonce"), batch, True), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "read"),
    [("", ""), ("64", "64"), (64, "64"), ("384,128,64", "384,128,64"), (" 64, 128 ", "128,64"), ([32, 8], "32,8")],
)
def test_dims_are_read_in_falling_order(given: object, read: str) -> None:
    assert read_dims(given) == read


def test_a_dim_beyond_the_embedding_is_refused() -> None:
    check_dims(config("mw", "6,2").dims, 6)
    with pytest.raises(ConfigError, match="asks for 7 components, but embeddings have 6; give at most 6"):
        check_dims(config("mw", "7,2").dims, 6)
    batch = example(6)
    with pytest.raises(ConfigError, match="7 components"):
        build_loss(config("mw", "7"))(batch.queries, batch.passages, batch.ids)


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
        (
            lambda t: TeacherScores(t.documents, t.scores[:, :2]),
            r"teacher: scores have the shape \(5, 2\), but documents",
        ),
        (lambda t: TeacherScores(t.documents, t.scores / 0), "teacher: a score is infinite"),
    ],
)
def test_scores_that_do_not_fit_are_refused(spoil: object, message: str) -> None:
    batch = example(0)
    ids = dataclasses.replace(batch.ids, teacher=spoil(batch.ids.teacher))  # type: ignore[operator]
    with pytest.raises(LossInputError, match=message):
        build_loss(LossConfig("kl"))(batch.queries, batch.passages, ids)
