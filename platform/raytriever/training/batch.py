"""Batch of a step: one worker's share of the global batch, whole, and cut into the parts that are encoded at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from torch import Tensor

from raytriever.errors import ConfigError, setting
from raytriever.losses.batch import BatchIds
from raytriever.models.packing import Buckets, TokenBatch, is_packed, lengths_of, move, select, texts_of, tokens_of
from raytriever.prompts import Side

Passes = Sequence[tuple[Buckets, Side]]


@dataclass(frozen=True)
class Batch:
    """One worker's share of a global batch, on the CPU.

    Args:
        queries, passages: tokens, in buckets of like length.
        ids: Ids of queries and passages, with their relevance in the global batch.
        version: the round whose hard negatives it uses; 0 for the table that training began with.
        guide: the same texts as the guide encodes them, if there is one; see `Retriever.passes`.
    """

    queries: Buckets
    passages: Buckets
    ids: BatchIds
    version: int = 0
    guide: Passes = ()


@dataclass(frozen=True)
class ChunkSizes:
    """Size of a chunk, which is encoded at once, on either side.

    Args:
        sequences: texts of a part, at most.
        tokens: tokens of a part, padding included, at most; a longer text is a part of its own.
    """

    sequences: int | None = None
    tokens: int | None = None

    def check(self, texts: int) -> None:
        """Refuse a chunk larger than the `texts` that one worker encodes in a step."""
        if self.sequences is not None and self.sequences > texts:
            raise ConfigError(
                f"a chunk of {self.sequences} is more than the {texts} texts of a worker's share of a batch",
                setting("grad_cache_chunk"),
                f"give at most {texts}, or leave it out",
            )

    def __str__(self) -> str:
        sizes = ((self.sequences, "texts"), (self.tokens, "tokens"))
        return " and ".join(f"at most {size} {unit}" for size, unit in sizes if size is not None)

    def holds(self, parts: Sequence[TokenBatch]) -> int:
        """Return the number of last parts that fit into one chunk together, at least 1."""
        sequences = tokens = 0
        for count, part in enumerate(reversed(parts)):
            sequences, tokens = sequences + texts_of(part), tokens + tokens_of(part)
            fits = sequences <= (self.sequences or sequences) and tokens <= (self.tokens or tokens)
            if count and not fits:
                return count
        return len(parts)


@dataclass(frozen=True)
class CutBatch:
    """One worker's share of a global batch, in the parts that are encoded at once.

    Args:
        passes: texts by the tower that encodes them, queries first.
        queries, passages: number of texts of each side.
        ids: Ids of queries and passages. They stay on the CPU, except what a loss reads on the device: their relevance.
        chunk: that it was cut for.
        guide: the same texts as the guide encodes them; empty without a guide.
    """

    passes: Passes
    queries: int
    passages: int
    ids: BatchIds
    chunk: ChunkSizes | None
    guide: Passes = ()

    def map(self, copy: Callable[[Tensor], Tensor]) -> CutBatch:
        """Return the batch with a copy of each tensor, always in the same order; `lengths` stay on the CPU."""
        passes, guide = (
            [(Buckets([move(part, copy) for part in texts.buckets], copy(texts.indices)), side) for texts, side in each]
            for each in (self.passes, self.guide)
        )
        ids = replace(self.ids, relevance=self.ids.relevance and self.ids.relevance.map(copy))
        return replace(self, passes=passes, ids=ids, guide=guide)


def cut(texts: Buckets, chunk: ChunkSizes) -> Buckets:
    """Return the texts in parts no larger than `chunk`, as equal in size as their lengths allow.

    Workers may end with different numbers of parts: no strategy communicates within a part.
    """
    return Buckets([piece for part in texts.buckets for piece in _pieces(part, chunk)], texts.indices)


def _pieces(part: TokenBatch, chunk: ChunkSizes) -> Iterator[TokenBatch]:
    lengths: list[int] = lengths_of(part).tolist()
    for start, end in _spans(lengths, chunk.tokens, is_packed(part)):
        count = -(-(end - start) // (chunk.sequences or end - start))
        bounds = [start + (end - start) * index // count for index in range(count + 1)]
        for begin, stop in pairwise(bounds):
            yield select(part, begin, stop) if is_packed(part) else _rows(part, begin, stop, max(lengths[begin:stop]))


def _spans(lengths: list[int], tokens: int | None, packed: bool) -> Iterator[tuple[int, int]]:
    """Yield ranges of texts that have at most `tokens` tokens together, padding included unless they are packed."""
    start, longest, total = 0, 0, 0
    for index, length in enumerate(lengths):
        longest, total = max(longest, length), total + length
        size = total if packed else longest * (index + 1 - start)
        if tokens is not None and index > start and size > tokens:
            yield start, index
            start, longest, total = index, length, length
    yield start, len(lengths)


def _rows(part: TokenBatch, start: int, end: int, length: int) -> TokenBatch:
    """Return some rows, without the padding of other rows."""
    padded_left = not bool(part["attention_mask"][:, 0].all())
    columns = slice(-length, None) if padded_left else slice(0, length)
    return {name: tensor[start:end, columns] for name, tensor in part.items()}
