"""MW's table: accuracy against the literal double sum, any range, any walk, any number of threads."""

from __future__ import annotations

import pytest
import torch

from raytriever.errors import LossInputError
from raytriever.losses.mw.compiled import CompiledWalk
from raytriever.losses.mw.functional import mw_from_scores
from raytriever.losses.mw.grid import EVEN_CELLS, build_grid
from raytriever.losses.mw.pairwise import PairwiseSums
from raytriever.losses.mw.tensors import TensorWalk

KINDS = ("plain", "apart", "tied", "equal")


def matrix(batch: int, kind: str, seed: int = 0) -> torch.Tensor:
    scores = torch.randn(batch, 6 * batch, generator=torch.Generator().manual_seed(seed)) * 0.05
    scores.diagonal().add_(0.15 if kind != "apart" else 0.4)
    if kind == "tied":
        scores = (scores * 20).round() / 20
    return torch.full_like(scores, 0.3) if kind == "equal" else scores


def table(scores: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The literal double sum over the table of pairs, and its gradient."""
    scores = scores.detach().double().requires_grad_()
    batch = len(scores)
    positive = torch.zeros_like(scores, dtype=torch.bool)
    positive.diagonal()[:batch] = True
    p, n = scores[positive], scores[~positive]
    total = torch.zeros((), dtype=torch.float64)
    grad = torch.zeros_like(scores)
    for part in p.split(16):
        z = (n[None] - part[:, None]) / temperature
        value = torch.logaddexp(z, torch.zeros_like(z)).sum() / (len(p) * len(n))
        grad += torch.autograd.grad(value, scores, retain_graph=True)[0]
        total += value.detach()
    return total, grad


def error(ours: torch.Tensor, oracle: torch.Tensor) -> float:
    return float((ours.double() - oracle).norm() / oracle.norm())


def mw(scores: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    scores = scores.detach().clone().requires_grad_()
    value = mw_from_scores(scores, torch.arange(len(scores))[:, None], temperature)
    value.backward()
    return value.detach(), scores.grad


@pytest.mark.parametrize("batch", [1, 2, 64])
@pytest.mark.parametrize("temperature", [0.05, 0.01, 0.005])
@pytest.mark.parametrize("kind", KINDS)
def test_error_against_the_table(batch: int, temperature: float, kind: str) -> None:
    scores = matrix(batch, kind)
    value, grad = table(scores, temperature)
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


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.05, 0.01, 0.005])
def test_error_against_the_table_of_a_large_batch(temperature: float) -> None:
    scores = matrix(256, "plain")
    value, grad = table(scores, temperature)
    ours, ours_grad = mw(scores, temperature)
    assert error(ours, value) < 1e-6
    assert error(ours_grad, grad) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_range_of_scores(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    scores = (torch.rand(16, 96, generator=generator, dtype=torch.float64) * 2e4 - 1e4).to(dtype)
    scores[3, 40:50] = scores[0, 0] + torch.linspace(-3e-3, 3e-3, 10, dtype=dtype)
    grid = build_grid(scores.diagonal().double() / 1e-3, -1e7, 1e7, dtype)
    assert grid.cells < 16 * 400 < EVEN_CELLS < 2e7
    value, grad = table(scores, 1e-3)
    ours, ours_grad = mw(scores, 1e-3)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-6
    assert error(ours, value) < tolerance
    assert error(ours_grad, grad) < tolerance


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
        made = walk(sums._grid, sums._slope @ sums._refinement.T, 10.0)
        derivatives = torch.empty_like(scores)
        made.add(scores, derivatives, rows, columns)
        out.append((derivatives, made.sums()))
    assert (len(sums._grid.counts) > 1) == (reach > 1)
    assert bool((out[0][0][rows, columns] == 0).all())
    torch.testing.assert_close(out[0][0], out[1][0], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(out[0][1], out[1][1], rtol=1e-9, atol=1e-9)


def test_the_number_of_threads_changes_no_bit() -> None:
    # In double precision, where another order of summation would show.
    scores, before = matrix(64, "plain").double(), torch.get_num_threads()
    try:
        out = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            out.append(mw(scores, 0.05))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(out[0][0], out[1][0])
    assert torch.equal(out[0][1], out[1][1])


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
    assert float(sums.outcome(walk.sums(), walk.sums()).auc) == pytest.approx(exact, abs=tolerance, rel=1e-12)


def test_ignored_columns_count_for_nothing() -> None:
    scores = matrix(8, "plain").requires_grad_()
    ignored = torch.full((8, 2), -1)
    ignored[2] = torch.tensor([5, 40])
    value = mw_from_scores(scores, torch.arange(8)[:, None], 0.05, ignored=ignored)
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
        ({"temperature": 0.0}, "temperature 0.0"),
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"positives": torch.tensor([[0], [-1]])}, "row 1 has no positive"),
        ({"positives": torch.tensor([[0], [4]])}, "column 4 of 4"),
        ({"positives": torch.tensor([[0]])}, "1 rows of columns for 2"),
        ({"positives": torch.arange(4).repeat(2, 1)}, "no negatives among 8"),
    ],
)
def test_bad_input_is_named(change: dict, message: str) -> None:
    given = {"scores": torch.zeros(2, 4), "positives": torch.tensor([[0], [1]]), "temperature": 0.1, **change}
    with pytest.raises(LossInputError, match=message):
        mw_from_scores(**given)
