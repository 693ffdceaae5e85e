from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from raytriever.data.columns import Rows, TextColumn, TokenColumn

SHARDS = [["a", "b", "c"], [], ["d"], ["e", "f"]]
LIVE = np.array([0, 2, 3, 5])


def column(live: np.ndarray | None) -> TextColumn:
    shards = [pa.array(shard, pa.large_string()) for shard in SHARDS]
    return TextColumn(shards, Rows.of([len(shard) for shard in SHARDS], live))


@pytest.mark.parametrize(("live", "expected"), [(None, list("abcdef")), (LIVE, list("acdf"))])
def test_a_column_reads_as_the_list_of_its_live_rows(live: np.ndarray | None, expected: list[str]) -> None:
    texts = column(live)
    assert len(texts) == len(expected)
    assert list(texts) == expected
    assert [texts[index] for index in range(len(texts))] == expected
    assert [texts[-index - 1] for index in range(len(texts))] == expected[::-1]
    assert texts[1:3] == expected[1:3]
    assert texts[::-2] == expected[::-2]
    assert texts.take(np.array([2, 0, 2])) == [expected[2], expected[0], expected[2]]
    assert texts == expected
    assert texts != expected[:-1]


@pytest.mark.parametrize("position", [-5, 4])
def test_a_position_that_is_not_there_is_an_error(position: int) -> None:
    with pytest.raises(IndexError, match=r"\[0, 4\)"):
        column(LIVE)[position]


def test_tokens_stand_at_the_positions_of_their_texts() -> None:
    # Text number n has n tokens, all n.
    lengths = [list(range(3)), [], [3], [4, 5]]
    ids = [np.repeat(shard, shard).astype(np.uint16) for shard in lengths]
    offsets = [np.concatenate([[0], np.cumsum(shard)]).astype(np.int64) for shard in lengths]
    tokens = TokenColumn(ids, offsets, Rows.of([3, 0, 1, 2], LIVE))
    assert len(tokens) == 4
    assert [row.tolist() for row in tokens.take(np.array([3, 0, 1]))] == [[5] * 5, [], [2, 2]]
    assert tokens.lengths().tolist() == [0, 2, 3, 5]
