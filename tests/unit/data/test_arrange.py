"""The order that the settings ask for, on combined data sets."""

from __future__ import annotations

import numpy as np
import pytest

from raytriever.data.combine import combine
from raytriever.data.dataset import Documents, Judgements, Queries, RetrievalDataset
from raytriever.data.sampling.examples import Examples
from raytriever.data.sampling.mixture import arrange
from raytriever.data.sampling.order import Order
from raytriever.data.sampling.spread import shared
from raytriever.errors import ConfigError


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
    share = (result >= 90).mean()
    assert share == pytest.approx(2 / 3 if weights else 0.4, abs=0.02)
    per_batch = (result.reshape(-1, 8) >= 90).sum(axis=1)
    assert (set(per_batch) <= {0, 8}) == (mixing == "batches")
    assert (shared(order, BOTH.positives, range(order.steps(8))) == 0) == no_duplicates
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
