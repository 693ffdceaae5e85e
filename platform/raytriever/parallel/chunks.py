"""Cut one side of a batch into parts small enough to be encoded with their activations.

A part is padded to its own longest text, and the parts lie in order of length, so cutting a part further keeps the
padding low and leaves `places` as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from raytriever.errors import ConfigError
from raytriever.models.buckets import Buckets
from raytriever.models.encoder import TokenBatch


@dataclass(frozen=True)
class Chunk:
    """How much is encoded at a time, on either side.

    Args:
        sequences: texts of a part, at most.
        tokens: texts times padded length of a part, at most; a longer text is a part of its own.
    """

    sequences: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        for name, value, flag in (("sequences", self.sequences, "chunk"), ("tokens", self.tokens, "tokens")):
            if value is not None and value < 1:
                raise ConfigError(f"{value} {name} are no chunk", f"--grad-cache-{flag}", "give at least 1")

    def check(self, texts: int) -> None:
        """Refuse a chunk larger than the `texts` that one worker encodes in a step."""
        if self.sequences is not None and self.sequences > texts:
            raise ConfigError(
                f"a chunk of {self.sequences} is more than the {texts} texts of a worker's share of a batch",
                "--grad-cache-chunk",
                f"give at most {texts}, or leave it out",
            )

    def holds(self, parts: Sequence[TokenBatch]) -> int:
        """How many of the last parts it holds together, at least 1."""
        sequences = tokens = 0
        for count, part in enumerate(reversed(parts)):
            sequences, tokens = sequences + len(part["input_ids"]), tokens + part["input_ids"].numel()
            fits = sequences <= (self.sequences or sequences) and tokens <= (self.tokens or tokens)
            if count and not fits:
                return count
        return len(parts)


def cut(texts: Buckets, chunk: Chunk) -> Buckets:
    """The same texts in parts no larger than `chunk`, as equal in size as their lengths allow.

    Workers may end with different numbers of parts: no strategy communicates within a part.
    """
    return Buckets([piece for part in texts.parts for piece in _pieces(part, chunk)], texts.places)


def _pieces(part: TokenBatch, chunk: Chunk) -> Iterator[TokenBatch]:
    lengths = _lengths(part)
    for start, end in _spans(lengths, chunk.tokens):
        count = -(-(end - start) // (chunk.sequences or end - start))
        bounds = [start + (end - start) * place // count for place in range(count + 1)]
        for begin, stop in pairwise(bounds):
            yield _rows(part, begin, stop, max(lengths[begin:stop]))


def _spans(lengths: list[int], tokens: int | None) -> Iterator[tuple[int, int]]:
    """Neighbours whose number times their longest is at most `tokens`."""
    start, longest = 0, 0
    for place, length in enumerate(lengths):
        longest = max(longest, length)
        if tokens is not None and place > start and longest * (place + 1 - start) > tokens:
            yield start, place
            start, longest = place, length
    yield start, len(lengths)


def _lengths(part: TokenBatch) -> list[int]:
    lengths: list[int] = part["attention_mask"].sum(1).tolist()
    return lengths


def _rows(part: TokenBatch, start: int, end: int, length: int) -> TokenBatch:
    """Some rows, without the padding that only other rows needed."""
    padded_left = not bool(part["attention_mask"][:, 0].all())
    columns = slice(-length, None) if padded_left else slice(0, length)
    return {name: tensor[start:end, columns] for name, tensor in part.items()}
