from __future__ import annotations

import numpy as np
import pytest

from raytriever.data.dataset import Documents, Judgements, Queries, RetrievalDataset
from raytriever.data.sampling.examples import Examples
from raytriever.errors import DataError

HUMAN, LLM = 0, 1
# Query: its positives as (document, source, rank).
JUDGED = {
    0: [(0, HUMAN, 0), (1, LLM, 1), (2, LLM, 0), (3, LLM, 2)],
    1: [(4, HUMAN, 0), (5, HUMAN, 1)],
    2: [(6, LLM, 1), (7, LLM, 0)],
    3: [(8, HUMAN, 0), (9, LLM, 0)],
}


def dataset(judged: dict[int, list[tuple[int, int, int]]] = JUDGED) -> RetrievalDataset:
    rows = [(query, document, 1, source, rank) for query, result in judged.items() for document, source, rank in result]
    ids = [str(number) for number in range(20)]
    judgements = Judgements(*np.array(rows, dtype=np.int64).T)
    return RetrievalDataset("made", Documents(ids, ids, ids), Queries(ids[:5], ids[:5]), {"train": judgements})


def drawn(examples: Examples, epoch: int, count: int) -> dict[int, list[int]]:
    """The positives of each query that is an example."""
    every = np.arange(len(examples))
    result = examples.drawn_positives(every, np.full(len(every), epoch), count)
    assert result.shape == (len(every), count)
    for row in result:
        held = row[row >= 0]
        assert row.tolist() == [*held.tolist(), *[-1] * (count - len(held))]
        assert len(set(held.tolist())) == len(held) > 0
    return {query: row[row >= 0].tolist() for query, row in zip(examples.queries(every).tolist(), result, strict=True)}


@pytest.mark.parametrize("count", [1, 2, 3, 6])
@pytest.mark.parametrize(("sources", "codes"), [("all", {HUMAN, LLM}), ("human", {HUMAN}), ("llm", {LLM})])
def test_homogeneous_groups_are_of_one_source(sources: str, codes: set[int], count: int) -> None:
    wanted = {q: {d for d, source, _ in result if source in codes} for q, result in JUDGED.items()}
    wanted = {query: documents for query, documents in wanted.items() if documents}
    examples = Examples.of(dataset(), "train", 0, sources=sources)
    seen: dict[int, set[int]] = {query: set() for query in wanted}
    for epoch in range(40):
        result = drawn(examples, epoch, count)
        assert result.keys() == wanted.keys()
        for query, documents in result.items():
            assert set(documents) <= wanted[query]
            assert len(documents) == min(count, len(wanted[query]))
            seen[query] |= set(documents)
    assert seen == wanted


@pytest.mark.parametrize("count", [1, 2, 4])
def test_heterogeneous_groups_begin_with_one_human_positive(count: int) -> None:
    examples = Examples.of(dataset(), "train", 0, sources="human-first")
    firsts = set()
    for epoch in range(40):
        result = drawn(examples, epoch, count)
        assert result.keys() == {0, 1, 3}  # query 2 has no human one to begin with
        assert result[0][0] == 0
        assert set(result[0][1:]) <= {1, 2, 3}
        assert len(result[0]) == count
        assert result[3] == [8, 9][:count]
        assert len(result[1]) == 1
        firsts.add(result[1][0])
    assert firsts == {4, 5}


def test_ranked_positives_are_the_first_of_the_list_in_every_epoch() -> None:
    # *Training dense retrievers with multiple positive passages*, 4.3: SingleLH takes the first of the list of the LLM.
    llm = Examples.of(dataset(), "train", 0, sources="llm", ranked=True)
    first = Examples.of(dataset(), "train", 0, sources="human-first", ranked=True)
    for epoch in range(5):
        assert drawn(llm, epoch, 1) == {0: [2], 2: [7], 3: [9]}
        assert drawn(llm, epoch, 2) == {0: [2, 1], 2: [7, 6], 3: [9]}
        assert drawn(first, epoch, 3) == {0: [0, 2, 1], 1: [4], 3: [8, 9]}


@pytest.mark.parametrize("sources", ["human", "llm", "human-first"])
def test_every_relevant_document_stays_known_and_no_negative(sources: str) -> None:
    examples = Examples.of(dataset(), "train", 0, sources=sources)
    every = np.arange(len(examples))
    for epoch in range(30):
        positives, passages = examples.groups(every, np.full(len(every), epoch), 3, 4)
        for row, query in enumerate(examples.queries(every).tolist()):
            relevant = [document for document, _, _ in JUDGED[query]]
            assert examples.positives.of(row).tolist() == relevant
            held = (positives[row] >= 0).sum()
            assert not set(passages[row, held:].tolist()) & set(relevant)


def test_a_source_that_nobody_has_is_refused() -> None:
    humans = {0: [(0, HUMAN, 0)]}
    with pytest.raises(
        DataError, match="made train: no query has a positive of source 'llm'; choose another value of --positives"
    ):
        Examples.of(dataset(humans), "train", 0, sources="llm")
    assert len(Examples.of(dataset(humans), "train", 0, sources="human-first")) == 1
    with pytest.raises(DataError, match="source 'human'"):
        Examples.of(dataset({0: [(0, LLM, 0)]}), "train", 0, sources="human-first")
