"""What workers tell each other while a round is under way: how each stands, and what it has read."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch

from raytriever.losses.workers import Workers


class News(IntEnum):
    """How a worker stands in a phase of a round."""

    BUSY, DONE, FAILED = range(3)


class Word(NamedTuple):
    """What a worker tells the others: how it stands, and the first 48 bits of the digest of what it has read."""

    news: News = News.BUSY
    digest: int = 0


def exchange(word: Word, workers: Workers, device: torch.device) -> list[Word]:
    """Every worker's word, in the order of the workers; one small collective, which all of them make.

    Args:
        word: this worker's.
        workers: the group.
        device: where its collectives take their tensors.
    """
    if workers.size == 1:
        return [word]
    own = torch.tensor([[int(word.news), word.digest]], dtype=torch.int64, device=device)
    return [Word(News(news), digest) for news, digest in workers.gather_values(own).tolist()]


def all_done(words: list[Word]) -> bool:
    """Whether all workers are done, and with the same thing."""
    return set(words) == {words[0]} and words[0].news is News.DONE


def any_failed(words: list[Word]) -> bool:
    """Whether a worker failed, or all are done with different things."""
    done = all(word.news is News.DONE for word in words)
    return any(word.news is News.FAILED for word in words) or (done and not all_done(words))
