"""Real process groups: a cached step is the step, under every strategy, and synchronizes gradients once."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
from gradients import distance
from process_group import run_groups
from strategy_worker import KINDS, RATE

SIZES = (1, 2)
SHARDED = ("fsdp2", "zero1", "zero2", "zero3", "zero2-offload", "zero3-offload")
STRATEGIES = ["ddp", *(pytest.param(name, marks=pytest.mark.slow) for name in SHARDED)]
CASES = (
    "infonce shared fp32 0.1",
    "mw shared fp32 0.1",
    "bce shared fp32 0.1",
    "mw separate fp32 0.1",
    "infonce shared bf16 0.1",
)
Results = dict[tuple[int, int], dict[str, Any]]


@pytest.fixture(scope="module")
def results(tiny_encoder: Path) -> Callable[[str], Results]:
    """Return the results of the workers of groups of 1 and 2, by (size, rank); run once a strategy."""

    @cache
    def of(strategy: str) -> Results:
        groups = run_groups(Path(__file__).with_name("strategy_worker.py"), SIZES, tiny_encoder, strategy)
        return {(len(group), rank): result for group in groups for rank, result in enumerate(group)}

    return of


def gradient(result: Results, size: int, case: str) -> dict[str, torch.Tensor]:
    """What a step of SGD took away, from all workers' slices."""
    pieces: dict[str, dict[int, torch.Tensor]] = defaultdict(dict)
    for rank in range(size):
        for name, values, start, _ in result[size, rank][case]["slices"]:
            assert start not in pieces[name], f"{name} is written twice"
            pieces[name][start] = values
    before = result[size, 0][case]["before"]
    after = {name: torch.cat([of[start] for start in sorted(of)]).view_as(before[name]) for name, of in pieces.items()}
    assert all("pooler" in name for name in before.keys() ^ after.keys())  # frozen weights are not saved
    return {name: (before[name] - after[name]).double() / RATE for name in before if name in after}


def hold(result: Results, size: int, case: str) -> None:
    whole, cached = (gradient(result, size, f"{case} {kind}") for kind in ("whole", "cached"))
    # Frozen poolers and, under softmax, key biases apart, everything learns.
    still = [name for name, value in whole.items() if not float(value.abs().max()) > 0]
    assert all("pooler" in name or "triplet" in case for name in still), still
    # torch's attention rounds to bf16, and its sums depend on how many texts are padded together.
    within = 1e-3 if "bf16" in case else 1e-5
    assert distance(cached.values(), whole.values()) < within
    if "triplet" not in case:
        temperature = "loss.log_temperature"
        torch.testing.assert_close(cached[temperature], whole[temperature], rtol=within, atol=1e-9)
    for kind in ("whole", "cached"):
        one = [result[size, rank][f"{case} {kind}"] for rank in range(size)]
        assert len({(item["value"], item["norm"]) for item in one}) == 1
    norm = sum(float(value.square().sum()) for value in cached.values()) ** 0.5
    assert result[size, 0][f"{case} cached"]["norm"] == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_cached_is_whole(strategy: str, case: str, size: int, results: Callable[[str], Results]) -> None:
    hold(results(strategy), size, case)
    if size == 2:  # workers may have different numbers of chunks
        chunks = [results(strategy)[2, rank][f"{case} cached"]["chunks"] for rank in range(2)]
        assert chunks[0] > chunks[1] > 2


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("loss", KINDS)
def test_cached_is_whole_for_every_kind_of_loss(loss: str, size: int, results: Callable[[str], Results]) -> None:
    hold(results("ddp"), size, f"{loss} shared fp32 0.1")


@pytest.mark.parametrize("kind", ["whole", "cached", "guided whole", "guided cached"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_and_size_takes_the_same_step(
    strategy: str, kind: str, results: Callable[[str], Results]
) -> None:
    case = f"mw shared fp32 0.0 {kind}"
    plain = f"mw shared fp32 0.0 {kind.removeprefix('guided ')}"
    of = results(strategy)[1, 0]
    assert (of[case]["value"] == of[plain]["value"]) == (case == plain)
    expected = gradient(results("ddp"), 1, case)
    for size in SIZES:
        assert distance(gradient(results(strategy), size, case).values(), expected.values()) < 1e-5
        assert results(strategy)[size, 0][case]["value"] == pytest.approx(results("ddp")[1, 0][case]["value"], rel=1e-6)


@pytest.mark.parametrize("strategy", [strategy for strategy in STRATEGIES if "fsdp2" not in str(strategy)])
def test_gradients_are_synchronized_once(strategy: str, results: Callable[[str], Results]) -> None:
    """A batch in five parts and more goes over the wire as often as one that is not cut."""
    of = results(strategy)[2, 0]
    cached, whole = (of[f"mw shared fp32 0.1 {kind}"]["wire"] for kind in ("cached", "whole"))
    assert sum(whole.values()) > 0
    # The workers agree twice that none ran out of memory.
    assert cached == {**whole, "c10d::allreduce_": whole["c10d::allreduce_"] + 2}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gradient_that_is_not_finite_changes_nothing(
    strategy: str, size: int, results: Callable[[str], Results]
) -> None:
    for rank in range(size):
        assert results(strategy)[size, rank]["refused"].startswith("step 7: the loss is ")
