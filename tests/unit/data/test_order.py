"""Order of examples of one data set and of several, and batches without two queries that share a positive."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.core.errors import ConfigError
from raytriever.data.combine_datasets import combine
from raytriever.data.dataset import Documents, Judgements, Positives, Queries, RetrievalDataset
from raytriever.data.sampling.batch_order import Order, Shuffled, permutation, worker_slice
from raytriever.data.sampling.dataset_mixture import Mixture, arrange, parse_weights
from raytriever.data.sampling.no_duplicates import Spread, shared
from raytriever.data.sampling.training_examples import Examples


def test_the_order_never_changes() -> None:
    # Golden: an edit here means that every interrupted run continues on other data.
    assert permutation(10, 0, 0).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
    assert Order(10, 4, 7).batch(2).tolist() == [9, 0, 3, 9]


def test_the_shared_permutation_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        permutation(10, 0, 0)[0] = 3


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"batch_size: 10 is not divisible by 4 workers; give a multiple.*as 12"):
        worker_slice(np.arange(10), 0, 4)
    with pytest.raises(ConfigError, match="there is no training example"):
        Order(0, 4, 0)
    with pytest.raises(ConfigError, match="batch_size: 0 is out of range"):
        Order(4, 0, 0)


SEVERAL_SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=4)
WEIGHTS = st.lists(st.integers(1, 50), min_size=4, max_size=4)
SEEDS = st.integers(-3, 2**64)


def order_of(sizes: list[int], weights: list[int], batch: int, seed: int, run: int = 1) -> Order:
    streams = [Shuffled(size, seed + 1 + part) for part, size in enumerate(sizes)]
    return Order(sum(sizes), batch, seed, Mixture(streams, weights[: len(sizes)], seed, run))


def part_of(sizes: list[int], examples: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum(sizes), examples, side="right")


@settings(max_examples=40, deadline=None)
@given(sizes=SEVERAL_SIZES, weights=WEIGHTS, batch=st.integers(1, 40), seed=SEEDS, by_batch=st.booleans())
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


@settings(max_examples=40, deadline=None)
@given(sizes=SEVERAL_SIZES, weights=WEIGHTS, batch=st.integers(1, 20), seed=SEEDS, rounds=st.integers(1, 5))
def test_weights_are_held_round_by_round(
    sizes: list[int], weights: list[int], batch: int, seed: int, rounds: int
) -> None:
    for run in (1, batch):
        mixture = order_of(sizes, weights, batch, seed, run).stream
        fractions = np.array(weights[: len(sizes)])
        wanted = fractions / fractions.sum() * -(-sum(sizes) // run)  # turns of each data set in a round
        for number in range(rounds):
            slots = np.bincount(part_of(sizes, mixture.epoch(number).examples), minlength=len(sizes))
            assert (slots % run == 0).all()
            assert (slots > 0).all()
            assert (np.abs(slots / run - wanted) < 1).all()
        exact = order_of(sizes, sizes, batch, seed).stream  # with the sizes as weights, a round is one epoch of each
        assert np.bincount(part_of(sizes, exact.epoch(rounds).examples), minlength=len(sizes)).tolist() == sizes


def test_a_small_data_set_has_its_turn_now_and_then() -> None:
    # Its fraction is a tenth of a batch in each round of 101, so it has one.
    order = order_of([1000, 1], [1000, 1], 10, 0, run=10)
    steps = [step for step in range(510) if order.batch(step)[0] == 1000]
    assert [step // 102 for step in steps] == [0, 1, 2, 3, 4]
    assert order.epochs(steps[0]).tolist() == list(range(10))


def test_the_mixed_order_never_changes() -> None:
    # Golden: an edit here means that every interrupted run continues on other data.
    assert order_of([5, 3], [1, 1], 4, 7).batch(3).tolist() == [6, 6, 0, 5]
    assert order_of([5, 3], [1, 1], 4, 7, run=4).batch(3).tolist() == [0, 2, 1, 0]


@pytest.mark.parametrize(
    ("text", "weights"),
    [("", (7, 0)), (" ", (7, 0)), ("2,1", (2, 1)), ("0.75, 0.25", (0.75, 0.25)), ("1e-1,1e0", (0.1, 1))],
)
def test_weights_are_read(text: str, weights: tuple[float, ...]) -> None:
    assert parse_weights(text, [7, 0 if not text.strip() else 5]) == weights


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1", "2 data sets need 2 weights, but '1' has 1; give one weight for each, as in 2,1"),
        ("1,0", "'0' is not a weight"),
        ("1,-2", "'-2' is not a weight"),
        ("1,nan", "'nan' is not a weight"),
        ("1,1e300", "'1e300' is not a weight"),
        ("1,inf", "'inf' is not a weight"),
        ("1,x", "'x' is not a weight"),
    ],
)
def test_wrong_weights_are_reported(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match="dataset_weights: " + message):
        parse_weights(text, [3, 3])
    with pytest.raises(ConfigError, match="without training examples"):
        parse_weights("1,1", [3, 0])


def dataset(name: str, queries: int, split: str = "train") -> RetrievalDataset:
    """Three queries a document."""
    documents, names = [f"{name}{n}" for n in range(queries)], [f"{name}?{n}" for n in range(queries)]
    pairs = np.array([(query, query // 3, 1) for query in range(queries)])
    judgements = {split: Judgements(*pairs.T)}
    return RetrievalDataset(name, Documents(documents, documents, documents), Queries(names, names), judgements)


BOTH = Examples.of(combine([dataset("a", 90), dataset("b", 60)]), "train", 0)
ALONE = Examples.of(dataset("a", 90), "train", 0)


def stream(order: Order, epochs: float) -> np.ndarray:
    return np.concatenate([order.batch(step) for step in range(order.steps(epochs))])


def test_by_default_it_is_the_plain_order() -> None:
    plain = Order(90, 8, 3)
    for step in (0, 11, 12, 10**6):
        assert (arrange(ALONE, 8, 3).batch(step) == plain.batch(step)).all()
    assert (arrange(ALONE, 8, 3, weights="5", mixing="batches").batch(7) == plain.batch(7)).all()


@pytest.mark.parametrize("mixing", ["examples", "batches"])
@pytest.mark.parametrize("no_duplicates", [False, True])
@pytest.mark.parametrize("weights", ["", "1,2"])
def test_every_combination_holds_its_word(mixing: str, no_duplicates: bool, weights: str) -> None:
    order = arrange(BOTH, 8, 0, weights=weights, mixing=mixing, no_duplicates=no_duplicates)
    result = stream(order, 8)
    fraction = (result >= 90).mean()
    assert fraction == pytest.approx(2 / 3 if weights else 0.4, abs=0.02)
    per_batch = (result.reshape(-1, 8) >= 90).sum(axis=1)
    assert (set(per_batch) <= {0, 8}) == (mixing == "batches")
    plain = arrange(BOTH, 8, 0, weights=weights, mixing=mixing)
    left, all_pairs = (shared(value, BOTH.positives, range(order.steps(8))) for value in (order, plain))
    assert left < all_pairs / 3 if no_duplicates else left == all_pairs > 0
    for first, last in ((0, 90), (90, 150)):
        epochs = np.concatenate([order.epochs(step) for step in range(order.steps(8))])
        mine = (result >= first) & (result < last)
        pairs = np.unique(np.stack([result[mine], epochs[mine]]), axis=1)
        assert pairs.shape[1] == mine.sum()  # none twice in one of its epochs


def test_a_data_set_without_the_split_has_no_turn() -> None:
    examples = Examples.of(combine([dataset("a", 9, "dev"), dataset("b", 60)]), "train", 0)
    assert examples.starts.tolist() == [0, 0, 60]
    for mixing in ("examples", "batches"):
        assert sorted(stream(arrange(examples, 6, 0, mixing=mixing), 1)) == list(range(60))
    with pytest.raises(ConfigError, match="without training examples"):
        arrange(examples, 6, 0, weights="1,1")


def positives_of(rows: list[list[int]] | np.ndarray) -> Positives:
    """Example i has the positives `rows[i]`."""
    rows = [sorted(set(np.atleast_1d(row).tolist())) for row in rows]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    documents = np.array([document for row in rows for document in row], dtype=np.int64)
    nothing = np.zeros_like(documents)
    return Positives(np.arange(len(rows)), offsets, documents, nothing, nothing)


def spread_order(positives: Positives, batch: int, seed: int = 0) -> Order:
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
    order = spread_order(positives, batch, seed)
    check_whole_epochs(order, 3)
    literal = sum(shared_in(positives, order.batch(step)) for step in range(5))
    assert shared(order, positives, range(5)) == literal
    assert shared(order, positives, range(0)) == 0


@pytest.mark.parametrize("seed", range(4))
def test_few_are_shared_where_documents_are_many(seed: int) -> None:
    positives = positives_of([[number // 4] for number in range(2000)])
    order, plain = spread_order(positives, 32, seed), Order(2000, 32, seed)
    steps = range(order.steps(4))
    assert shared(plain, positives, steps) > 150
    assert shared(order, positives, steps) <= 8  # in batches across two epochs, and in the last of an epoch


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("queries", [40, 45, 200])
def test_a_document_with_more_queries_than_batches_leaves_little_more_than_it_must(seed: int, queries: int) -> None:
    # An epoch is 40 whole batches.
    positives = positives_of([[0]] * queries + [[number] for number in range(1, 321 - queries)])
    order = spread_order(positives, 8, seed)
    assert queries - 40 <= shared(order, positives, range(order.steps(1))) <= queries - 35


@settings(max_examples=40, deadline=None)
@given(
    sizes=SEVERAL_SIZES,
    weights=WEIGHTS,
    rows=ROWS,
    seed=SEEDS,
    step=st.integers(0, 10**12),
    kind=st.sampled_from(["examples", "batches", "spread"]),
)
def test_a_step_is_a_function_of_its_number_at_any_number_of_workers(
    sizes: list[int], weights: list[int], rows: list[list[int]], seed: int, step: int, kind: str
) -> None:
    alone, after = (
        spread_order(positives_of(rows), 8, seed)
        if kind == "spread"
        else order_of(sizes, weights, 8, seed, 8 if kind == "batches" else 1)
        for _ in range(2)
    )
    for other in (step + 3, 0, step + 1):
        after.batch(other)
    assert (alone.batch(step) == after.batch(step)).all()
    assert (alone.epochs(step) == after.epochs(step)).all()
    for workers in (1, 2, 4):
        fractions = [worker_slice(alone.batch(step), rank, workers) for rank in range(workers)]
        assert (np.concatenate(fractions) == alone.batch(step)).all()


def test_the_spread_order_never_changes() -> None:
    # Golden: an edit here means that every interrupted run continues on other data.
    positives = positives_of([[number // 3] for number in range(12)] + [[0, 3]])
    assert spread_order(positives, 4, 7).batch(3).tolist() == [0, 12, 3, 6]
