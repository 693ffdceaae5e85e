"""What a loss refuses, and in which words."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from batch_ids import BatchIds, TeacherScores, build_loss

from raytriever.core.errors import LossInputError
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.named_losses import LOSS_NAMES

IDS = BatchIds(torch.tensor([7, 8]), torch.tensor([[0], [1]]), torch.arange(4))
EMBEDDINGS = torch.eye(4)


def spoilt(value: float) -> torch.Tensor:
    out = EMBEDDINGS.clone()
    out[2, 1] = value
    return out


@pytest.mark.parametrize("name", ["infonce", "mw", "cosent", "bce"])
@pytest.mark.parametrize(
    ("queries", "passages", "ids", "message"),
    [
        (EMBEDDINGS[:2], EMBEDDINGS, {"positives": torch.tensor([[0], [-1]])}, "query id 8 has no positive"),
        (EMBEDDINGS[:2], EMBEDDINGS, {"positives": torch.tensor([[0], [9]])}, "document 9 is a positive but"),
        (EMBEDDINGS[:2], EMBEDDINGS, {"positives": torch.arange(4).repeat(2, 1)}, "no negatives: 2 queries"),
        (EMBEDDINGS[:2], EMBEDDINGS[:3], {}, "2 query and 3 passage embeddings for 2 and 4 ids"),
        (EMBEDDINGS[:3], EMBEDDINGS, {}, "3 query and 4 passage embeddings for 2 and 4 ids"),
        (EMBEDDINGS[:2], EMBEDDINGS, {"passages": torch.tensor([0, 1, 2, -3])}, "-3 is not an id"),
        (EMBEDDINGS[:2, :3], EMBEDDINGS, {}, r"\(2, 3\).*\(4, 4\)"),
        (EMBEDDINGS[:2].double(), EMBEDDINGS, {}, "float64.*float32"),
        (EMBEDDINGS[:2], spoilt(torch.nan), {}, "1 of 4 passage embeddings.*row 2"),
        (spoilt(torch.inf)[1:3], EMBEDDINGS, {}, "1 of 2 query embeddings.*row 1"),
        (EMBEDDINGS[:2] * 1e20, EMBEDDINGS * 1e20, {}, r"scores overflow.*1e\+20"),
    ],
)
def test_bad_input_is_named(name: str, queries: torch.Tensor, passages: torch.Tensor, ids: dict, message: str) -> None:
    with pytest.raises(LossInputError, match=message):
        build_loss(LossConfig(loss=name))(queries, passages, dataclasses.replace(IDS, **ids))


def with_teacher(dtype: torch.dtype) -> BatchIds:
    """A teacher that scores all four passages for both queries, 7 and 8."""
    scores = torch.tensor([[3.0, 1.0, 0.0, -2.0], [0.0, 2.0, 1.0, 5.0]], dtype=dtype)
    return dataclasses.replace(IDS, teacher=TeacherScores(torch.arange(4).repeat(2, 1), scores))


@pytest.mark.parametrize("name", LOSS_NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_embeddings_have_finite_gradients_or_are_refused(name: str, dtype: torch.dtype) -> None:
    loss = build_loss(LossConfig(loss=name, temperature=0.01, distribution_weight=0.1))
    documents = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=dtype)
    metrics, refusals = [], []
    for of_queries, of_passages in ((1, 1), (1e4, 1), (1e4, 1e3), (1e9, 1e9), (1e16, 1e16), (1e20, 1e-20), (1e150, 1)):
        queries, passages = (documents[:2] + 1) * of_queries, documents * of_passages
        inputs = [x.clone().requires_grad_() for x in (queries, passages)]
        try:
            out = loss(*inputs, with_teacher(dtype))
        except LossInputError as error:
            refusals.append(str(error))
            continue
        out.value.backward()
        assert bool(torch.isfinite(torch.stack([out.value.detach(), *out.statistics.values()])).all())
        assert all(bool(torch.isfinite(x.grad).all()) for x in inputs)
        metrics.append(of_queries * of_passages)
    assert all("overflow" in line or (name == "mw" and "2^30" in line) for line in refusals)
    assert max(metrics) >= (1e4 if name == "mw" else 1e7 if name == "margin-mse" else 1e18)


@pytest.mark.parametrize("name", ["cosent", "bce"])
@pytest.mark.parametrize("scale", [-1e3, float("nan")])
def test_a_scale_that_is_lost_is_named(name: str, scale: float) -> None:
    loss = build_loss(LossConfig(name, learn_temperature=True))
    with torch.no_grad():
        loss.log_temperature.fill_(scale)
    with pytest.raises(LossInputError, match=r"scores overflow.*training brought the temperature near 0"):
        loss(EMBEDDINGS[:2], EMBEDDINGS, IDS)


def test_a_batch_whose_every_other_query_has_negatives_is_fine() -> None:
    ids = dataclasses.replace(IDS, positives=torch.tensor([[0, 1, 2, 3], [1, -1, -1, -1]]))
    for name in LOSS_NAMES:
        queries = EMBEDDINGS[:2].clone().requires_grad_()
        value = build_loss(LossConfig(loss=name, temperature=1.0))(queries, EMBEDDINGS, ids).value
        value.backward()
        assert bool(torch.isfinite(value)), name
        assert bool(torch.isfinite(queries.grad).all()), name
