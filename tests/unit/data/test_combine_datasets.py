from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from raytriever.data.columns import Rows, TokenColumn
from raytriever.data.combine_datasets import Chained, combine, starts_of
from raytriever.data.dataset import Documents, Judgements, Queries, RetrievalDataset, Tokens
from raytriever.data.records_and_bad_rows import Quarantine


class Untouched(list[str]):
    """A column that must not be copied."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a column was read whole")
        yield


def dataset(
    name: str, first: int, splits: dict[str, list[tuple[int, int, int]]], column: type = list
) -> RetrievalDataset:
    """Three documents and two queries; ids count from `first`."""
    documents = [f"d{first + n}" for n in range(3)]
    queries = [f"q{first + n}" for n in range(2)]
    return RetrievalDataset(
        name,
        Documents(documents, column([f"title {d}" for d in documents]), column([f"text {d}" for d in documents]), name),
        Queries(queries, column([f"query {q}" for q in queries]), name),
        {split: Judgements(*np.array(rows).T, np.array([1] * len(rows)), np.array([7] * len(rows)))
         for split, rows in splits.items()},
        Quarantine(({"file": name},)),
    )  # fmt: skip


FIRST = dataset("a", 0, {"train": [(0, 0, 1), (1, 2, 1)], "dev": [(0, 1, 1)]})
SECOND = dataset("b", 10, {"train": [(0, 1, 1), (1, 0, 2)]})


def test_columns_are_chained_and_positions_shifted() -> None:
    both = combine([FIRST, SECOND])
    assert list(both.documents.ids) == ["d0", "d1", "d2", "d10", "d11", "d12"]
    assert both.queries.texts[3] == "query q11"
    assert both.passage_text(4) == "title d11 text d11"
    assert [passage.split()[1] for passage in both.passages()] == list(both.documents.ids)
    train = both.judgements["train"]
    assert train.queries.tolist() == [0, 1, 2, 3]
    assert train.documents.tolist() == [0, 2, 4, 3]
    assert train.scores.tolist() == [1, 1, 1, 2]
    assert train.sources.tolist() == [1] * 4
    assert train.ranks.tolist() == [7] * 4
    assert both.judgements["dev"].queries.tolist() == [0]
    assert both.name == "a+b"
    assert both.counts()["bad_rows"] == 2
    assert [starts.tolist() for starts in starts_of(both)] == [[0, 2, 4], [0, 3, 6]]
    assert [starts.tolist() for starts in starts_of(FIRST)] == [[0, 2], [0, 3]]


def test_texts_are_not_copied() -> None:
    parts = [dataset(name, 10 * number, {}, Untouched) for number, name in enumerate("abc")]
    both = combine(parts)
    assert both.passage_text(7) == "title d21 text d21"
    assert len(both.digest) == 64


def test_ids_get_a_prefix_only_where_two_clash() -> None:
    both = combine([FIRST, dataset("a", 2, {})])
    assert list(both.documents.ids) == ["a/d0", "a/d1", "a/d2", "a-2/d2", "a-2/d3", "a-2/d4"]
    assert list(both.queries.ids) == ["q0", "q1", "q2", "q3"]
    assert both.documents.ids[3] == "a-2/d2"


def test_the_digest_is_of_all_parts_in_their_order() -> None:
    digests = {combine(parts).digest for parts in ([FIRST, SECOND], [SECOND, FIRST], [FIRST, SECOND, SECOND], [FIRST])}
    assert len(digests) == 4
    assert combine([FIRST, SECOND]).digest == combine([FIRST, SECOND]).digest


def test_a_chain_is_a_sequence() -> None:
    chain = Chained([["a"], [], ["b", "c"]], ["1", "2", "3"])
    assert list(chain) == ["1a", "3b", "3c"] == [chain[index] for index in range(3)]
    assert chain[-1] == "3c"
    assert chain[1:] == ["3b", "3c"]
    assert chain[np.int64(2)] == "3c"
    for index in (3, -4):
        with pytest.raises(IndexError):
            chain[index]


def test_tokens_are_chained_where_all_have_some_of_one_making() -> None:
    def tokens(first: int, live: list[int] | None, digest: str = "same") -> Tokens:
        ids, offsets = [np.arange(first, first + 6)], [np.array([0, 1, 3, 6])]
        column = TokenColumn(ids, offsets, Rows.of([3], None if live is None else np.array(live)))
        return Tokens(column, column, digest)

    def with_tokens(name: str, tokenized: Tokens | None) -> RetrievalDataset:
        result = dataset(name, 0, {})
        return RetrievalDataset(name, result.documents, result.queries, {}, tokens=tokenized)

    both = combine([with_tokens("a", tokens(0, None)), with_tokens("b", tokens(10, [0, 2]))]).tokens
    assert both is not None
    assert len(both.documents) == 5
    assert [row.tolist() for row in both.documents.take(np.arange(5))] == [[0], [1, 2], [3, 4, 5], [10], [13, 14, 15]]
    assert both.documents.lengths().tolist() == [1, 2, 3, 1, 3]
    assert combine([with_tokens("a", tokens(0, None)), with_tokens("b", None)]).tokens is None
    assert combine([with_tokens("a", tokens(0, None)), with_tokens("b", tokens(0, None, "other"))]).tokens is None
