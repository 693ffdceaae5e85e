"""Several data sets in one order: shares, turns, and that nothing needs to be replayed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.data.sampling.mixture import Mixture, apportion, parse_weights
from raytriever.data.sampling.order import Order, Shuffled, worker_slice
from raytriever.errors import ConfigError

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=4)
WEIGHTS = st.lists(st.integers(1, 50), min_size=4, max_size=4)
SEEDS = st.integers(-3, 2**64)


def order_of(sizes: list[int], weights: list[int], batch: int, seed: int, run: int = 1) -> Order:
    streams = [Shuffled(size, seed + 1 + part) for part, size in enumerate(sizes)]
    return Order(sum(sizes), batch, seed, Mixture(streams, weights[: len(sizes)], seed, run))


def part_of(sizes: list[int], examples: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum(sizes), examples, side="right")


@settings(deadline=None)
@given(weights=st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any), turns=st.integers(0, 400))
def test_with_one_turn_more_one_has_one_more(weights: list[int], turns: int) -> None:
    now, then = apportion(weights, turns), apportion(weights, turns + 1)
    assert sum(now) == turns
    assert sorted(np.subtract(then, now).tolist()) == [0] * (len(weights) - 1) + [1]
    assert all(count == 0 for count, weight in zip(now, weights, strict=True) if not weight)
    if turns % sum(weights) == 0:
        assert now == [weight * (turns // sum(weights)) for weight in weights]


@settings(deadline=None)
@given(weights=st.lists(st.integers(1, 10**6), min_size=2, max_size=5), turns=st.integers(10**12, 10**15))
def test_shares_are_exact_to_the_turn_however_late(weights: list[int], turns: int) -> None:
    shares = [turns * weight / sum(weights) for weight in weights]
    assert sum(apportion(weights, turns)) == turns
    assert all(abs(had - share) < 2 for had, share in zip(apportion(weights, turns), shares, strict=True))


@settings(deadline=None)
@given(sizes=SIZES, weights=WEIGHTS, batch=st.integers(1, 40), seed=SEEDS, by_batch=st.booleans())
def test_every_example_comes_once_in_each_epoch_of_its_data_set(
    sizes: list[int], weights: list[int], batch: int, seed: int, by_batch: bool
) -> None:
    order = order_of(sizes, weights, batch, seed, batch if by_batch else 1)
    steps = order.steps(4)
    examples = np.concatenate([order.batch(step) for step in range(steps)])
    seen_in = np.concatenate([order.epochs(step) for step in range(steps)])
    part = part_of(sizes, examples)
    for number, size in enumerate(sizes):
        own, epochs = examples[part == number], seen_in[part == number]
        pairs = np.unique(np.stack([own, epochs]), axis=1)
        assert pairs.shape[1] == len(own)  # none twice in one epoch
        counts = np.bincount(epochs, minlength=1)
        if by_batch or len(sizes) == 1:
            assert (counts[:-1] == size).all()
            assert (np.diff(epochs) >= 0).all()
        else:
            assert (counts[: len(own) // size] == size).all()


@settings(deadline=None)
@given(sizes=SIZES, batch=st.integers(1, 40), seed=SEEDS, epochs=st.integers(1, 3))
def test_by_default_all_epochs_go_together(sizes: list[int], batch: int, seed: int, epochs: int) -> None:
    order = order_of(sizes, sizes + [1] * 4, batch, seed)
    steps = order.steps(epochs)
    stream = np.concatenate([order.batch(step) for step in range(steps)])
    total = sum(sizes)
    for epoch in range(epochs):
        assert sorted(stream[epoch * total : (epoch + 1) * total]) == list(range(total))


@settings(deadline=None)
@given(sizes=SIZES, weights=WEIGHTS, batch=st.integers(1, 20), seed=SEEDS, rounds=st.integers(1, 5))
def test_weights_are_held_round_by_round(
    sizes: list[int], weights: list[int], batch: int, seed: int, rounds: int
) -> None:
    for run in (1, batch):
        mixture = order_of(sizes, weights, batch, seed, run).stream
        examples = np.concatenate([mixture.epoch(number).examples for number in range(rounds)])
        places = np.bincount(part_of(sizes, examples), minlength=len(sizes))
        wanted = apportion(weights[: len(sizes)], len(examples) // run)
        assert (places == np.array(wanted) * run).all()


@settings(deadline=None)
@given(sizes=SIZES, weights=WEIGHTS, batch=st.integers(1, 20), seed=SEEDS)
def test_batch_by_batch_no_batch_holds_two_data_sets(
    sizes: list[int], weights: list[int], batch: int, seed: int
) -> None:
    order = order_of(sizes, weights, batch, seed, run=batch)
    for step in range(order.steps(3)):
        assert len(set(part_of(sizes, order.batch(step)))) == 1


@settings(deadline=None)
@given(sizes=SIZES, weights=WEIGHTS, seed=SEEDS, step=st.integers(0, 10**12), by_batch=st.booleans())
def test_a_step_is_a_function_of_its_number_at_any_number_of_workers(
    sizes: list[int], weights: list[int], seed: int, step: int, by_batch: bool
) -> None:
    alone, after = (order_of(sizes, weights, 8, seed, 8 if by_batch else 1) for _ in range(2))
    after.batch(step + 3)
    after.batch(0)
    assert (alone.batch(step) == after.batch(step)).all()
    assert (alone.epochs(step) == after.epochs(step)).all()
    for workers in (1, 2, 4):
        shares = [worker_slice(alone.batch(step), rank, workers) for rank in range(workers)]
        assert (np.concatenate(shares) == alone.batch(step)).all()


def test_data_sets_are_mixed_within_batches() -> None:
    order = order_of([300, 100], [1, 1], 40, 0)
    parts = np.array([(order.batch(step) >= 300).sum() for step in range(100)])
    assert abs(parts.mean() - 20) < 0.5
    assert len(set(parts)) > 5


def test_a_small_data_set_has_its_turn_now_and_then() -> None:
    # A hundredth of a batch a round: quotas by round alone would never reach it.
    order = order_of([1000, 1], [1000, 1], 10, 0, run=10)
    steps = [step for step in range(5000) if order.batch(step)[0] == 1000]
    assert len(steps) == 5
    assert order.epochs(steps[0]).tolist() == list(range(10))


def test_the_mixed_order_never_changes() -> None:
    # Golden: an edit here means that every interrupted run continues on other data.
    assert order_of([5, 3], [1, 1], 4, 7).batch(3).tolist() == GOLDEN[0]
    assert order_of([5, 3], [1, 1], 4, 7, run=4).batch(3).tolist() == GOLDEN[1]


GOLDEN = [[6, 6, 0, 5], [0, 2, 1, 0]]


@pytest.mark.parametrize(
    ("text", "weights"),
    [("", (7, 0)), (" ", (7, 0)), ("2,1", (2, 1)), ("0.75, 0.25", (3, 1)), ("1/3,1e0", (1, 3)), ("0.1,0.3", (1, 3))],
)
def test_weights_are_read_exactly(text: str, weights: tuple[int, ...]) -> None:
    assert parse_weights(text, [7, 0 if not text.strip() else 5]) == weights


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1", "'1' is 1 for 2 data sets; give one for each"),
        ("1,0", "'0' is no weight"),
        ("1,-2", "'-2' is no weight"),
        ("1,nan", "'nan' is no weight"),
        ("1,inf", "'inf' is no weight"),
        ("1,x", "'x' is no weight"),
    ],
)
def test_wrong_weights_are_reported(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match="--dataset-weights: " + message):
        parse_weights(text, [3, 3])
    with pytest.raises(ConfigError, match="without training examples"):
        parse_weights("1,1", [3, 0])
