"""Chunks hold every text once, in its place, within their limits."""

from __future__ import annotations

import pytest
import torch

from raytriever.errors import ConfigError
from raytriever.models.packing import Buckets
from raytriever.training.batch import ChunkSizes, cut

LENGTHS = [[2, 3, 3], [4, 9, 9, 9, 10, 11, 12], [30]]


def texts(padded_left: bool = False) -> Buckets:
    """Each text is its own number, as often as it is long."""
    parts, number = [], 1
    for lengths in LENGTHS:
        ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
        for row, length in enumerate(lengths):
            ids[row, -length:] = number
            if not padded_left:
                ids[row] = ids[row].flip(0)
            number += 1
        parts.append({"input_ids": ids, "attention_mask": (ids > 0).long()})
    return Buckets(parts, torch.randperm(sum(map(len, LENGTHS)), generator=torch.Generator().manual_seed(0)))


def logged(buckets: Buckets) -> list[list[int]]:
    """The tokens of every text, in order of the parts."""
    return [row[row > 0].tolist() for part in buckets.buckets for row in part["input_ids"]]


@pytest.mark.parametrize("padded_left", [False, True])
@pytest.mark.parametrize(
    "chunk",
    [ChunkSizes(2), ChunkSizes(1), ChunkSizes(100), ChunkSizes(tokens=20), ChunkSizes(tokens=1), ChunkSizes(2, 20)],
)
def test_nothing_is_lost_or_moved(chunk: ChunkSizes, padded_left: bool) -> None:
    whole = texts(padded_left)
    result = cut(whole, chunk)
    assert logged(result) == logged(whole)
    assert torch.equal(result.indices, whole.indices)
    for part in result.buckets:
        rows, width = part["input_ids"].shape
        assert rows <= (chunk.sequences or rows)
        assert rows * width <= (chunk.tokens or rows * width) or rows == 1
        assert width == int(part["attention_mask"].sum(1).max())


def test_the_last_part_is_not_left_with_a_rest() -> None:
    assert [len(part["input_ids"]) for part in cut(texts(), ChunkSizes(sequences=4)).buckets] == [3, 3, 4, 1]


def test_bad_chunks_are_refused() -> None:
    with pytest.raises(ConfigError, match="a chunk of 0 sequences is empty"):
        ChunkSizes(0)
    with pytest.raises(ConfigError, match="a chunk of 65 is more than the 64 texts"):
        ChunkSizes(65).check(64)
    ChunkSizes(64).check(64)


def test_a_chunk_holds_the_last_parts_that_fit_together() -> None:
    parts = texts().buckets  # 3 of 3, 7 of 12 and 1 of 30 tokens
    assert ChunkSizes(sequences=1).holds(parts) == 1
    assert ChunkSizes(sequences=7).holds(parts) == 1
    assert ChunkSizes(sequences=8).holds(parts) == 2
    assert ChunkSizes(sequences=11).holds(parts) == 3
    assert ChunkSizes(tokens=20).holds(parts) == 1  # a text that is longer is a part of its own
    assert ChunkSizes(tokens=114).holds(parts) == 2
    assert ChunkSizes(sequences=8, tokens=113).holds(parts) == 1
    assert ChunkSizes(tokens=123).holds(parts) == 3
