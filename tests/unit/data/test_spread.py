"""Batches without two queries that share a positive: whole epochs, purity, and few left where some must be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.data.dataset import Positives
from raytriever.data.sampling.batch_order import Order, Shuffled, worker_slice
from raytriever.data.sampling.no_duplicates import Spread, shared

SEEDS = st.integers(-3, 2**64)


def positives_of(rows: list[list[int]] | np.ndarray) -> Positives:
    """Example i has the positives `rows[i]`."""
    rows = [sorted(set(np.atleast_1d(row).tolist())) for row in rows]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    documents = np.array([document for row in rows for document in row], dtype=np.int64)
    nothing = np.zeros_like(documents)
    return Positives(np.arange(len(rows)), offsets, documents, nothing, nothing)


def order_of(positives: Positives, batch: int, seed: int = 0) -> Order:
    size = len(positives)
    return Order(size, batch, seed, Spread(Shuffled(size, seed), batch, positives))


def shared_in(positives: Positives, batch: np.ndarray) -> int:
    """The literal count, for `spread.shared` too."""
    seen: set[int] = set()
    count = 0
    for example in batch:
        documents = set(positives.of(int(example)).tolist())
        count += bool(documents & seen)
        seen |= documents
    return count


def check_whole_epochs(order: Order, epochs: int) -> None:
    size, steps = order.examples, order.steps(epochs)
    stream = np.concatenate([order.batch(step) for step in range(steps)])
    seen_in = np.concatenate([order.epochs(step) for step in range(steps)])
    assert len(stream) == steps * order.batch_size
    for epoch in range(epochs):
        assert sorted(stream[epoch * size : (epoch + 1) * size]) == list(range(size))
        assert (seen_in[epoch * size : (epoch + 1) * size] == epoch).all()


ROWS = st.lists(st.lists(st.integers(0, 25), min_size=1, max_size=4), min_size=1, max_size=70)


@settings(max_examples=40, deadline=None)
@given(rows=ROWS, batch=st.integers(1, 90), seed=SEEDS)
def test_epochs_are_whole_and_what_is_shared_is_counted(rows: list[list[int]], batch: int, seed: int) -> None:
    positives = positives_of(rows)
    order = order_of(positives, batch, seed)
    check_whole_epochs(order, 3)
    literal = sum(shared_in(positives, order.batch(step)) for step in range(5))
    assert shared(order, positives, range(5)) == literal
    assert shared(order, positives, range(0)) == 0


@pytest.mark.parametrize("seed", range(4))
def test_few_are_shared_where_documents_are_many(seed: int) -> None:
    positives = positives_of([[number // 4] for number in range(2000)])
    order, plain = order_of(positives, 32, seed), Order(2000, 32, seed)
    steps = range(order.steps(4))
    assert shared(plain, positives, steps) > 150
    assert shared(order, positives, steps) <= 8  # in batches across two epochs, and in the last of an epoch


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 60), batch=st.integers(1, 80), seed=SEEDS)
def test_one_document_for_all_queries_is_shared_by_all_but_one_a_batch(size: int, batch: int, seed: int) -> None:
    positives = positives_of([[3]] * size)
    order = order_of(positives, batch, seed)
    check_whole_epochs(order, 2)
    steps = order.steps(2)
    assert shared(order, positives, range(steps)) == steps * (batch - 1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("queries", [40, 45, 200])
def test_a_document_with_more_queries_than_batches_leaves_little_more_than_it_must(seed: int, queries: int) -> None:
    # An epoch is 40 whole batches.
    positives = positives_of([[0]] * queries + [[number] for number in range(1, 321 - queries)])
    order = order_of(positives, 8, seed)
    assert queries - 40 <= shared(order, positives, range(order.steps(1))) <= queries - 35


@settings(max_examples=40, deadline=None)
@given(rows=ROWS, seed=SEEDS, step=st.integers(0, 10**12))
def test_a_step_is_a_function_of_its_number_at_any_number_of_workers(
    rows: list[list[int]], seed: int, step: int
) -> None:
    positives = positives_of(rows)
    alone, after = order_of(positives, 8, seed), order_of(positives, 8, seed)
    for other in (step + 2, 0, step + 1):
        after.batch(other)
    assert (alone.batch(step) == after.batch(step)).all()
    assert (alone.epochs(step) == after.epochs(step)).all()
    for workers in (1, 2, 4):
        fractions = [worker_slice(alone.batch(step), rank, workers) for rank in range(workers)]
        assert (np.concatenate(fractions) == alone.batch(step)).all()


def test_the_spread_order_never_changes() -> None:
    # Golden: an edit here means that every interrupted run continues on other data.
    positives = positives_of([[number // 3] for number in range(12)] + [[0, 3]])
    assert order_of(positives, 4, 7).batch(3).tolist() == [0, 12, 3, 6]


@pytest.mark.data
@pytest.mark.slow
def test_few_questions_of_a_paragraph_meet_on_squad(data_packs: Path) -> None:
    batch = 64
    lines = (data_packs / "squad" / "qrels" / "train.tsv").read_text().splitlines()[1:]
    pairs = [line.split("\t") for line in lines]
    number_of = {name: number for number, name in enumerate(dict.fromkeys(pair[1] for pair in pairs))}
    queries: dict[str, list[int]] = {}
    for query, document, _ in pairs:
        queries.setdefault(query, []).append(number_of[document])
    positives = positives_of(list(queries.values()))
    assert len(positives) > 87_000
    order = order_of(positives, batch)
    assert shared(Order(len(positives), batch, 0), positives, range(order.steps(1))) > 100
    assert shared(order, positives, range(order.steps(2))) < 20
    check_whole_epochs(order, 2)
