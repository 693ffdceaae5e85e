"""MW's table: accuracy against the literal double sum, any range, any walk, any number of threads."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from examples import double_sum

from raytriever.core.errors import LossInputError
from raytriever.losses.mw.cpu_kernel import CompiledWalk
from raytriever.losses.mw.functional import mann_whitney
from raytriever.losses.mw.grid import LARGEST_SCORE, build_grid
from raytriever.losses.mw.mann_whitney import PairwiseSums, TensorWalk

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
KINDS = ("plain", "apart", "tied", "equal")


def matrix(batch: int, kind: str, seed: int = 0) -> torch.Tensor:
    scores = torch.randn(batch, 6 * batch, generator=torch.Generator().manual_seed(seed)) * 0.05
    scores.diagonal().add_(0.15 if kind != "apart" else 0.4)
    if kind == "tied":
        scores = (scores * 20).round() / 20
    return torch.full_like(scores, 0.3) if kind == "equal" else scores


def error(ours: torch.Tensor, oracle: torch.Tensor) -> float:
    return float((ours.double() - oracle).norm() / oracle.norm())


def mw(scores: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    scores = scores.detach().clone().requires_grad_()
    value = mann_whitney(scores, torch.arange(len(scores))[:, None], temperature)
    value.backward()
    return value.detach(), scores.grad


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("temperature", [0.05, 0.005])
@pytest.mark.parametrize("kind", KINDS)
def test_error_against_the_table(batch: int, temperature: float, kind: str) -> None:
    scores = matrix(batch, kind)
    value, grad = double_sum(scores, temperature)
    ours, ours_grad = mw(scores, temperature)
    # Beyond exp(-88) float32 holds nothing.
    if float(value) > 1e-35:
        assert error(ours, value) < 1e-6
        assert error(ours_grad, grad) < 1e-5
        assert error(ours_grad.diagonal(), grad.diagonal()) < 1e-5
    ours, ours_grad = mw(scores.double(), temperature)
    if float(value) > 1e-25:
        assert error(ours, value) < 1e-9
        assert error(ours_grad, grad) < 1e-9


def sums_of_fractions(scores: torch.Tensor, temperature: float) -> tuple[float, np.ndarray]:
    """The literal double sum whose differences are exact fractions, and its derivative by each score."""
    rows, columns = scores.shape
    values = [[Fraction(float(score)) for score in row] for row in scores]
    tau = Fraction(temperature)
    negatives = [(i, j) for i in range(rows) for j in range(columns) if i != j]
    apart = np.array([[float((values[i][j] - values[p][p]) / tau) for i, j in negatives] for p in range(rows)])
    weight = 1 / apart.size
    smaller = np.exp(-np.abs(apart))
    by_pair = np.where(apart >= 0, 1, smaller) / (1 + smaller) * weight / temperature
    gradient = np.zeros(scores.shape)
    for index, (i, j) in enumerate(negatives):
        gradient[i, j] = by_pair[:, index].sum()
    for index in range(rows):
        gradient[index, index] = -by_pair[index].sum()
    return math.fsum(np.logaddexp(apart, 0).ravel()) * weight, gradient


def far_scores(kind: str, largest: float, dtype: torch.dtype) -> torch.Tensor:
    """Scores in units of the temperature of which some, or all, lie at `largest`."""
    scores = torch.randn(4, 10, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 2
    near = 1 - 2.0 ** (-22 if dtype == torch.float32 else -50)
    if kind == "spread":
        scores *= largest / float(scores.abs().max())
    elif kind == "positive":
        scores[2, 2] = largest
    elif kind == "negative":
        scores[2, 5] = largest
    elif kind == "positive below":
        scores[2, 2] = -largest
    elif kind == "pair":
        scores[2, 2], scores[2, 5] = largest * near, largest
    elif kind == "shifted":
        scores += largest - 8
    elif kind == "two clusters":
        scores[:3] += largest - 8
    else:  # pairs whose loss is as small as exp(-60), and one far positive
        scores.diagonal().add_(60)
        scores[2, 2] = largest
    return scores


FAR = ("spread", "positive", "negative", "positive below", "pair", "shifted", "two clusters", "tiny and positive")


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", FAR)
@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.01, marks=pytest.mark.slow)])
def test_each_derivative_is_accurate_up_to_the_largest_score(dtype: torch.dtype, kind: str, temperature: float) -> None:
    for largest in (10.0, 1e3, 1e5, 1e7, LARGEST_SCORE * (1 - 1e-6)):
        scores = (far_scores(kind, largest, dtype) * temperature).to(dtype)
        value, gradient = sums_of_fractions(scores, temperature)
        ours, ours_gradient = mw(scores, temperature)
        assert float(ours) == pytest.approx(value, rel=1e-6, abs=1e-38), largest
        # A derivative below that of exp(-88) is none.
        np.testing.assert_allclose(ours_gradient.double().numpy(), gradient, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [kind for kind in FAR if kind != "positive below"])
@pytest.mark.parametrize("beyond", [1.001, 1e29])
def test_scores_beyond_the_largest_are_refused(dtype: torch.dtype, kind: str, beyond: float) -> None:
    scores = (far_scores(kind, LARGEST_SCORE * beyond, dtype) * 0.01).to(dtype)
    for sign in (1, -1):
        with pytest.raises(
            LossInputError, match=r"times the temperature, .* up to 1\.07e\+09.*raise temperature"
        ) as raised:
            mw(scores * sign, 0.01)
        assert "\n" not in str(raised.value)


def test_many_far_positives_keep_the_number_of_cells_in_bounds() -> None:
    positives = torch.arange(2_000, dtype=torch.float64) * 1_000
    grid = build_grid(positives, 0.0, 2e6, torch.float32)
    assert grid.cells < 2_000 * 90
    few = build_grid(positives[:100], 0.0, 2e6, torch.float32)
    assert 100 * 170 < few.cells < 100 * 190


@pytest.mark.parametrize("count", [100, 1_000])
def test_sums_are_right_whether_or_not_cells_are_saved(count: int) -> None:
    positives = torch.arange(count, dtype=torch.float64) * 1_000
    negatives = torch.rand(1, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1_000 * count
    negatives[0, :20] = positives[-20:] + torch.linspace(-39, 39, 20, dtype=torch.float64)
    sums = PairwiseSums(positives, -1.0, count * 1_000.0, 1.0, torch.float32)
    assert (sums._grid.tail == sums._grid.reach) == (count == 1_000)
    walk, derivatives = sums.walk(), torch.empty_like(negatives)
    none = torch.empty(0, dtype=torch.long)
    walk.add(negatives, derivatives, none, none)
    actual = sums.result(walk.sums(), walk.sums())
    apart = negatives - positives[:, None]
    expected = torch.logaddexp(apart, torch.zeros_like(apart)).sum()
    torch.testing.assert_close(actual.partial, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(actual.by_positive, -torch.sigmoid(apart).sum(1), rtol=1e-6, atol=1e-15)
    torch.testing.assert_close(derivatives[0], torch.sigmoid(apart).sum(0), rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("reach", [1.0, 1e7], ids=["even", "uneven"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_walks_give_the_same(reach: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(33, 70, generator=generator, dtype=dtype)
    scores[:, 60:] *= reach
    positives = torch.randn(9, generator=generator, dtype=torch.float64) / 0.1
    ends = float(scores.min()) / 0.1, float(scores.max()) / 0.1
    rows, columns = torch.tensor([0, 0, 4, 32, 32]), torch.tensor([0, 69, 7, 1, 2])
    out = []
    for walk in (CompiledWalk, TensorWalk):
        sums = PairwiseSums(positives, *ends, 1.0, dtype)
        one_walk = walk(sums._grid, sums._slope @ sums._refinement.T, 10.0)
        derivatives = torch.empty_like(scores)
        one_walk.add(scores, derivatives, rows, columns)
        out.append((derivatives, one_walk.sums()))
    assert (len(sums._grid.counts) > 1) == (reach > 1)
    assert bool((out[0][0][rows, columns] == 0).all())
    torch.testing.assert_close(out[0][0], out[1][0], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(out[0][1], out[1][1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reach", [1.0, 1e7], ids=["even", "uneven"])
def test_sums_in_pytorch_do_not_depend_on_the_order_of_the_scores(reach: float, device: str) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = (torch.randn(64, 700, generator=generator) * reach).to(device)
    positives = (torch.randn(20, generator=generator, dtype=torch.float64) * reach).to(device)
    sums = PairwiseSums(positives, -8 * reach, 8 * reach, 1.0, torch.float32)
    none = torch.empty(0, dtype=torch.long, device=device)
    results = []
    for order in (torch.arange(scores.numel()), torch.randperm(scores.numel(), generator=generator)):
        walk = TensorWalk(sums._grid, sums._slope @ sums._refinement.T, 1.0)
        walk.add(scores.flatten()[order.to(device)].view_as(scores), torch.empty_like(scores), none, none)
        results.append(walk.sums())
    assert torch.equal(*results)
    assert float(results[0][:, 0].sum()) == scores.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0.05, 0.001])
@pytest.mark.parametrize("batch", [8, 64])
def test_the_number_of_threads_changes_no_bit(batch: int, temperature: float, dtype: torch.dtype) -> None:
    scores, before = matrix(batch, "plain").to(dtype), torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.append(mw(scores, temperature))
    finally:
        torch.set_num_threads(before)
    for value, gradient in results[1:]:
        assert torch.equal(value, results[0][0])
        assert torch.equal(gradient, results[0][1])


@pytest.mark.parametrize("temperature", [0.005, 0.05, 0.5, 5.0])
@pytest.mark.parametrize("kind", KINDS)
def test_auc_where_many_pairs_share_a_subcell(temperature: float, kind: str) -> None:
    scores = matrix(48, kind).double()
    positives = scores.diagonal().clone()
    negatives = scores[~torch.eye(48, scores.shape[1], dtype=torch.bool)][None].contiguous()
    ends = float(scores.min()) / temperature, float(scores.max()) / temperature
    sums = PairwiseSums(positives / temperature, *ends, 1.0, torch.float32)
    walk = sums.walk(1 / temperature)
    none = torch.empty(0, dtype=torch.long)
    walk.add(negatives, torch.empty_like(negatives), none, none)
    apart = positives[:, None] - negatives
    exact = float(((apart > 0).double() + (apart == 0).double() / 2).mean())
    # Scores spread over about 0.05; a subcell is tau / 16 wide, at 5.0 six times that.
    tolerance = 0 if kind == "equal" else 1e-3 if temperature < 5 else 0.1
    assert float(sums.result(walk.sums(), walk.sums()).auc) == pytest.approx(exact, abs=tolerance, rel=1e-12)


def test_ignored_columns_count_for_nothing() -> None:
    scores = matrix(8, "plain").requires_grad_()
    ignored = torch.full((8, 2), -1)
    ignored[2] = torch.tensor([5, 40])
    value = mann_whitney(scores, torch.arange(8)[:, None], 0.05, ignored=ignored)
    value.backward()
    keep = torch.ones_like(scores, dtype=torch.bool)
    keep.diagonal()[:] = False
    keep[2, [5, 40]] = False
    z = (scores.detach()[keep].double()[None] - scores.detach().diagonal().double()[:, None]) / 0.05
    assert float(value.detach()) == pytest.approx(float(torch.logaddexp(z, torch.zeros_like(z)).mean()), rel=1e-6)
    assert bool((scores.grad[2, [5, 40]] == 0).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": torch.full((2, 4), torch.nan)}, "nan"),
        ({"scores": torch.tensor([[0.0, torch.inf, 1, 1], [0, 0, 0, 0]])}, "inf"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"temperature": float("inf")}, "temperature is inf; give a finite number above 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": 1e-320}, "scores reach .* times the temperature"),
        ({"reduction": "max"}, "unknown reduction 'max'; use mean or sum"),
        ({"scores": torch.zeros(2, 4).long()}, r"scores are torch.int64 of shape \(2, 4\)"),
        ({"scores": torch.zeros(8)}, r"scores are torch.float32 of shape \(8,\)"),
        ({"scores": torch.zeros(2, 0)}, r"scores are torch.float32 of shape \(2, 0\)"),
        ({"scores": np.zeros((2, 4))}, "scores are ndarray"),
        ({"positives": torch.tensor([[0], [-1]])}, "row 1 has no positive"),
        ({"positives": torch.tensor([[0], [4]])}, "column 4 does not exist"),
        (
            {"positives": torch.tensor([[0], [-2]])},
            "column -2 does not exist; give columns from 0 to 3, and -1 in empty slots",
        ),
        (
            {"positives": torch.tensor([[0]])},
            r"positives: is torch.int64 of shape \(1, 1\) on cpu, but a row .* each of 2 rows",
        ),
        ({"positives": torch.arange(4).repeat(2, 1)}, "no negatives among 8"),
        ({"positives": torch.tensor([0, 1])}, r"positives: is torch.int64 of shape \(2,\).*\[:, None\]"),
        (
            {"positives": torch.tensor([[0.0], [1.0]])},
            r"positives: is torch.float32 .*give a torch.int64 tensor \[2, n\] on cpu",
        ),
        ({"positives": torch.eye(2, 4).bool()}, r"positives: is a mask \(torch.bool of shape \(2, 4\)\).*torch.where"),
        ({"positives": torch.eye(2, 4).long()}, r"positives: is a mask \(torch.int64"),
        ({"positives": [[0], [1]]}, "positives: is list, .*give a torch.int64 tensor"),
        ({"positives": torch.empty(2, 1, device="meta").long()}, r"is torch.int64 of shape \(2, 1\) on meta.*on cpu"),
        ({"ignored": torch.tensor([0, 1])}, r"ignored: is torch.int64 of shape \(2,\).*\[:, None\]"),
    ],
)
def test_bad_input_is_named(change: dict, message: str) -> None:
    given = {"scores": torch.zeros(2, 4), "positives": torch.tensor([[0], [1]]), "temperature": 0.1, **change}
    if change.get("temperature") == 1e-320:
        given["scores"] = torch.ones(2, 4)
    with pytest.raises(LossInputError, match=message) as raised:
        mann_whitney(**given)
    assert "\n" not in str(raised.value)


def test_the_call_that_is_shown_for_a_mask_is_right() -> None:
    scores = matrix(8, "plain")
    mask = scores > 0.1
    mask.diagonal()[:] = True
    with pytest.raises(LossInputError, match="is a mask") as raised:
        mann_whitney(scores, mask)
    columns = torch.where(mask > 0, torch.arange(mask.shape[1], device=mask.device), -1).topk(
        int((mask > 0).sum(1).max())
    )
    shown = (
        "positives=torch.where(mask > 0, torch.arange(mask.shape[1], device=mask.device), -1)"
        ".topk(int((mask > 0).sum(1).max())).values"
    )
    assert str(raised.value).endswith(shown)
    p, n = scores[mask].double(), scores[~mask].double()
    z = (n[None] - p[:, None]) / 0.05
    expected = float(torch.logaddexp(z, torch.zeros_like(z)).mean())
    assert float(mann_whitney(scores, columns.values, 0.05)) == pytest.approx(expected, rel=1e-6)
