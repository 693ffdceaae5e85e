"""Training examples: positives by source and rank, and negatives by origin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raytriever.core.errors import ConfigError, DataError
from raytriever.data.combine_datasets import combine
from raytriever.data.dataset import Documents, Judgements, Queries, RetrievalDataset
from raytriever.data.hard_negatives import NegativesTable
from raytriever.data.records_and_bad_rows import ORIGINS
from raytriever.data.sampling.training_examples import RANDOM, Examples, counts_by_origin, parse_mix


def dataset_of(positives: list[list[int]], documents: int, name: str = "") -> RetrievalDataset:
    """Query i has `positives[i]`; every query also has document 0 judged 0, unless it is a positive."""
    rows = sorted({(q, d, 1) for q, row in enumerate(positives) for d in row})
    rows = sorted(rows + [(q, 0, 0) for q, row in enumerate(positives) if 0 not in row])
    names = [f"{name}{n}" for n in range(documents)]
    queries = [f"{name}q{n}" for n in range(len(positives))]
    table = np.array(rows, dtype=np.int64).T
    return RetrievalDataset(
        "made", Documents(names, names, names), Queries(queries, queries), {"train": Judgements(*table)}
    )


POSITIVES = [[1], [], [2, 5, 7], [0]]
DATASET = dataset_of(POSITIVES, 12)
MINED = np.array([[3, 4, 6, 8], [9, -1, -1, -1], [9, 10, -1, -1], [-1, -1, -1, -1]], dtype=np.int64)
QUERIES, RANKS = np.nonzero(MINED >= 0)
TABLE = NegativesTable.of(DATASET, QUERIES, MINED[QUERIES, RANKS], "bm25", RANKS)


def every(examples: Examples, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(len(examples)), np.full(len(examples), epoch)


def hard_negatives(examples: Examples, indices: np.ndarray, epochs: np.ndarray, count: int) -> np.ndarray:
    """Return `count` hard negatives of each example: its group without the positive in front."""
    return examples.groups(indices, epochs, 1, count)[1][:, 1:]


def test_the_positive_is_sampled_again_each_epoch_and_all_occur() -> None:
    examples = Examples.of(DATASET, "train", seed=0)
    sampled = np.array([examples.sampled_positives(*every(examples, epoch), 1)[:, 0] for epoch in range(300)])
    assert set(sampled[:, 0]) == {1}
    assert set(sampled[:, 2]) == {0}
    counts = {document: int((sampled[:, 1] == document).sum()) for document in (2, 5, 7)}
    assert sum(counts.values()) == 300
    assert min(counts.values()) > 70


@pytest.mark.parametrize(("count", "negatives"), [(1, 0), (2, 0), (2, 3), (5, 1)])
def test_groups_are_of_one_size_whatever_the_positives(count: int, negatives: int) -> None:
    examples = Examples.of(DATASET, "train", seed=1, negatives=TABLE)
    for epoch in range(20):
        positives, passages = examples.groups(*every(examples, epoch), count, negatives)
        assert positives.shape == (3, count)
        assert passages.shape == (3, count + negatives)
        for row, (chosen, group) in enumerate(zip(positives, passages, strict=True)):
            known = examples.positives.of(row).tolist()
            held = chosen[chosen >= 0].tolist()
            assert len(held) == len(set(held)) == min(count, len(known))
            assert set(held) <= set(known)
            assert group[: len(held)].tolist() == held  # padding stands behind, and negatives in its stead
            assert not set(group[len(held) :].tolist()) & set(known)


def test_mined_negatives_do_not_repeat_until_they_must() -> None:
    examples = Examples.of(DATASET, "train", seed=3, negatives=TABLE)
    seen = set()
    for epoch in range(50):
        sampled = hard_negatives(examples, *every(examples, epoch), 3)
        assert len(set(sampled[0])) == 3
        assert set(sampled[0]) <= {3, 4, 6, 8}
        assert set(sampled[1]) == {9, 10}
        assert sampled[1][0] == sampled[1][2]  # wrapped in the sampled order
        seen.add(tuple(sampled[0]))
    assert len(seen) > 10


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**63), epoch=st.integers(0, 1000), count=st.integers(0, 6), mined=st.booleans())
def test_samples_are_a_function_of_seed_epoch_and_example(seed: int, epoch: int, count: int, mined: bool) -> None:
    examples = Examples.of(DATASET, "train", seed, TABLE if mined else None)
    indices, epochs = every(examples, epoch)
    whole = hard_negatives(examples, indices, epochs, count)
    assert whole.shape == (3, count)
    for index in indices:
        assert (hard_negatives(examples, indices[index : index + 1], epochs[:1], count)[0] == whole[index]).all()
        assert not set(whole[index]) & set(examples.positives.of(index))
        alone = examples.groups(indices[index : index + 1], epochs[:1], 2, count)
        together = examples.groups(indices, epochs, 2, count)
        assert all((a[0] == b[index]).all() for a, b in zip(alone, together, strict=True))


def test_random_negatives_avoid_positives_even_where_hardly_any_document_is_left() -> None:
    examples = Examples.of(dataset_of([[0, 1, 2, 3, 5]], 6), "train", seed=0)
    for epoch in range(30):
        assert set(hard_negatives(examples, np.array([0]), np.array([epoch]), 4)[0]) == {4}


def test_the_samples_never_change() -> None:
    # Golden: an edit here means that every interrupted run continues on other data.
    examples = Examples.of(DATASET, "train", seed=5, negatives=TABLE)
    sampled = [int(examples.sampled_positives(*every(examples, epoch), 1)[1, 0]) for epoch in range(6)]
    assert sampled == [7, 7, 2, 7, 7, 2]
    assert hard_negatives(examples, *every(examples, 2), 2).tolist() == [[4, 3], [9, 10], [8, 1]]


def test_a_table_of_another_data_set_and_a_split_without_use_are_refused() -> None:
    other = NegativesTable.none(dataset_of(POSITIVES[:3], 12))
    with pytest.raises(DataError, match="has 3 queries, not 4"):
        Examples.of(DATASET, "train", 0, other)
    with pytest.raises(DataError, match="has no judgement above 0"):
        Examples.of(dataset_of([[], []], 3), "train", 0)
    # Documents of another data set do not count.
    for dataset in (dataset_of([[0, 1, 2]], 3), combine([dataset_of([[0]], 6), dataset_of([[0, 1]], 2)])):
        with pytest.raises(DataError, match="every document is relevant"):
            Examples.of(dataset, "train", 0)


def test_a_group_wraps_only_once_every_negative_is_in_it() -> None:
    # One positive of three asked for: two negatives more than the two that every group has, and four are known.
    examples = Examples.of(DATASET, "train", seed=0, negatives=TABLE)
    for epoch in range(20):
        positives, passages = examples.groups(*every(examples, epoch), 3, 2)
        assert positives[0].tolist() == [1, -1, -1]
        assert sorted(passages[0]) == [1, 3, 4, 6, 8]


ORIGINS_OF_ROW = {"bm25": [3, 4, 6], "dense": [8]}
MIXED = NegativesTable.merged(
    DATASET,
    [
        NegativesTable.of(DATASET, np.zeros(len(documents), dtype=np.int64), np.array(documents), origin)
        for origin, documents in ORIGINS_OF_ROW.items()
    ],
)


def of_origin(row: np.ndarray) -> dict[str, list[int]]:
    results = {name: [int(d) for d in row if d in documents] for name, documents in ORIGINS_OF_ROW.items()}
    return results | {"random": [int(d) for d in row if d not in {3, 4, 6, 8}]}


@pytest.mark.parametrize("positives", [1, 3])
def test_negatives_are_mixed_by_origin(positives: int) -> None:
    examples = Examples.of(
        DATASET, "train", seed=2, negatives=MIXED, fractions=parse_mix("bm25=0.5,dense=0.25,random=0.25")
    )
    for epoch in range(30):
        sampled, passages = examples.groups(*every(examples, epoch), positives, 8 - positives + 1)
        group = of_origin(passages[0][passages[0] != 1])  # the one positive of the first query
        assert len(passages[0]) == 9
        # Random documents may be of the table's by chance, so they are counted from above.
        assert len(group["bm25"]) >= 4
        assert set(group["bm25"]) == {3, 4, 6}  # four of three: one is there again
        assert group["dense"].count(8) >= 2  # wrapped within its origin
        assert len(group["random"]) <= 2
        for row, known in enumerate(([1], [2, 5, 7], [0])):
            held = (sampled[row] >= 0).sum()
            assert not set(passages[row][held:].tolist()) & set(known)


def test_the_mixed_samples_never_change() -> None:
    # Golden: an edit here means that every interrupted run continues on other data.
    examples = Examples.of(DATASET, "train", seed=5, negatives=MIXED, fractions=parse_mix("bm25=0.5,random=0.5"))
    assert hard_negatives(examples, *every(examples, 2), 3).tolist() == [[4, 3, 2], [3, 4, 10], [8, 1, 8]]


def test_random_negatives_are_of_the_querys_own_data_set() -> None:
    both = combine([dataset_of([[0], [3, 4]], 6), dataset_of([[2, 3], [1]], 5, "other ")])
    examples = Examples.of(both, "train", seed=0)
    assert examples.starts.tolist() == [0, 2, 4]
    seen: list[set[int]] = [set(), set(), set(), set()]
    for epoch in range(60):
        for row, sampled in enumerate(hard_negatives(examples, *every(examples, epoch), 3)):
            seen[row] |= set(sampled.tolist())
    assert seen == [set(range(1, 6)), {0, 1, 2, 5}, {6, 7, 10}, {6, 8, 9, 10}]


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


def sampled(examples: Examples, epoch: int, count: int) -> dict[int, list[int]]:
    """The positives of each query that is an example."""
    every = np.arange(len(examples))
    result = examples.sampled_positives(every, np.full(len(every), epoch), count)
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
        result = sampled(examples, epoch, count)
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
        result = sampled(examples, epoch, count)
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
        assert sampled(llm, epoch, 1) == {0: [2], 2: [7], 3: [9]}
        assert sampled(llm, epoch, 2) == {0: [2, 1], 2: [7, 6], 3: [9]}
        assert sampled(first, epoch, 3) == {0: [0, 2, 1], 1: [4], 3: [8, 9]}


def test_every_relevant_document_stays_known_and_no_negative() -> None:
    examples = Examples.of(dataset(), "train", 0, sources="llm")
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
        DataError, match="made train: no query has a positive of source 'llm'; choose another value of positives"
    ):
        Examples.of(dataset(humans), "train", 0, sources="llm")
    assert len(Examples.of(dataset(humans), "train", 0, sources="human-first")) == 1
    with pytest.raises(DataError, match="source 'human'"):
        Examples.of(dataset({0: [(0, LLM, 0)]}), "train", 0, sources="human-first")


FRACTIONS = st.lists(st.one_of(st.just(0.0), st.floats(0.01, 10)), min_size=5, max_size=5).filter(
    lambda row: sum(row) > 0
)


def mix(**fractions: float) -> np.ndarray:
    return np.array([fractions.get(name.replace("-", "_"), 0.0) for name in ORIGINS])


def test_a_mix_is_read_and_adds_up_to_one() -> None:
    assert parse_mix("") is None
    assert parse_mix(" ") is None
    assert parse_mix("bm25=0.5,random=0.5").tolist() == mix(bm25=0.5, random=0.5).tolist()
    assert parse_mix(" cross-query = 1 , gold=3").tolist() == mix(cross_query=0.25, gold=0.75).tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bm24=1", "negatives_mix: unknown origin 'bm24'; did you mean 'bm25'?"),
        ("bm25", "the fraction of 'bm25' is ''; give a number above 0"),
        ("bm25=0", "the fraction of 'bm25' is '0'"),
        ("bm25=-1", "the fraction of 'bm25' is '-1'"),
        ("bm25=nan", "the fraction of 'bm25' is 'nan'"),
        ("bm25=inf", "the fraction of 'bm25' is 'inf'"),
        ("bm25=1,", "unknown origin ''"),
        ("bm25=1,bm25=2", "'bm25' occurs twice"),
    ],
)
def test_a_wrong_mix_is_reported(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_mix(text)
    assert message in str(error.value)


@example([0.0, 0.0, 0.0, 0.0, 1.0], [False] * 5, 1, 1 - 2**-53)
@example([0.1, 0.2, 0.3, 0.0, 0.0], [True] * 5, 3, 0.0)
@settings(max_examples=40, deadline=None)
@given(
    fractions=FRACTIONS,
    there=st.lists(st.booleans(), min_size=5, max_size=5),
    wanted=st.integers(0, 40),
    shift=st.floats(0, 1, exclude_max=True),
)
def test_a_group_is_whole_and_nearest_to_its_fractions(
    fractions: list[float], there: list[bool], wanted: int, shift: float
) -> None:
    parts = np.array(fractions) / sum(fractions)
    counts = counts_by_origin(parts, np.array([there]), np.array([wanted]), np.array([shift]))[0]
    assert counts.sum() == wanted
    assert (counts >= 0).all()
    absent = ~np.array(there)
    absent[RANDOM] = fractions[RANDOM] == 0 and any(
        have and fraction for have, fraction in zip(there[:RANDOM], fractions[:RANDOM], strict=True)
    )
    assert not counts[absent].any()
    if there[:RANDOM] == [True] * RANDOM and parts[:RANDOM].sum() > 0:
        assert (np.abs(counts - parts * wanted) < 1 + 1e-9).all()


@pytest.mark.parametrize("wanted", [1, 7])
def test_fractions_hold_in_expectation_even_for_one_negative(wanted: int) -> None:
    fractions = mix(gold=0.05, bm25=0.5, dense=0.25, random=0.2)
    shift = (np.arange(10_000) + 0.5) / 10_000
    counts = counts_by_origin(fractions, np.ones((10_000, 5), bool), np.full(10_000, wanted), shift)
    np.testing.assert_allclose(counts.mean(axis=0), fractions * wanted, atol=1e-3)


def test_an_origin_without_negatives_leaves_its_share_to_the_others_and_random_comes_last() -> None:
    fractions = mix(bm25=0.4, dense=0.4, random=0.2)
    there = np.array([[0, 1, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 0, 0, 1, 0]], dtype=bool)
    counts = counts_by_origin(fractions, there, np.full(4, 10), np.full(4, 0.5))
    assert counts.tolist() == [[0, 4, 4, 0, 2], [0, 8, 0, 0, 2], [0, 0, 0, 0, 10], [0, 0, 0, 0, 10]]
