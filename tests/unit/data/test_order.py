from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.data.sampling.order import Order, permutation, worker_slice
from raytriever.errors import ConfigError

SIZES = {"examples": st.integers(1, 60), "batch_size": st.integers(1, 150), "seed": st.integers(-5, 2**64)}


@settings(deadline=None)
@given(**SIZES, epochs=st.integers(1, 4))
def test_every_example_is_seen_exactly_once_an_epoch(examples: int, batch_size: int, seed: int, epochs: int) -> None:
    order = Order(examples, batch_size, seed)
    steps = order.steps(epochs)
    assert (steps - 1) * batch_size < epochs * examples <= steps * batch_size
    stream = np.concatenate([order.batch(step) for step in range(steps)])
    seen_in = np.concatenate([order.epochs(step) for step in range(steps)])
    assert len(stream) == steps * batch_size
    for epoch in range(epochs):
        assert sorted(stream[epoch * examples : (epoch + 1) * examples]) == list(range(examples))
        assert (seen_in[epoch * examples : (epoch + 1) * examples] == epoch).all()


@settings(deadline=None)
@given(**SIZES, step=st.integers(0, 10**9))
def test_a_step_is_a_function_of_its_number(examples: int, batch_size: int, seed: int, step: int) -> None:
    alone = Order(examples, batch_size, seed).batch(step)
    permutation.cache_clear()
    order = Order(examples, batch_size, seed)
    order.batch(step + 1)
    assert (order.batch(step) == alone).all()
    for workers in (1, 2, 4):
        if batch_size % workers == 0:
            shares = [worker_slice(alone, rank, workers) for rank in range(workers)]
            assert (np.concatenate(shares) == alone).all()
    assert alone.dtype == np.int64


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(permutation(50, seed, epoch)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_the_order_never_changes() -> None:
    # Golden: an edit here means that every interrupted run continues on other data.
    assert permutation(10, 0, 0).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
    assert Order(10, 4, 7).batch(2).tolist() == [9, 0, 3, 9]


def test_resuming_late_costs_one_permutation() -> None:
    order = Order(100_000, 64, 1)
    permutation.cache_clear()
    order.batch(1_000_000)
    assert permutation.cache_info().misses == 1


def test_straddling_batches_do_not_shuffle_an_epoch_twice() -> None:
    order = Order(100, 30, 1)
    permutation.cache_clear()
    for step in range(10):
        order.batch(step)
        order.batch(step)
    assert permutation.cache_info().misses == 3


def test_the_shared_permutation_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        permutation(10, 0, 0)[0] = 3


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--batch-size: 10 is not divisible by 4 workers; give a multiple.*as 12"):
        worker_slice(np.arange(10), 0, 4)


def test_nothing_to_order_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no training example"):
        Order(0, 4, 0)
    with pytest.raises(ConfigError, match="--batch-size: 0 is out of range"):
        Order(4, 0, 0)
