"""Texts to token ids, by the tokenizer alone: no model, no special tokens, nothing cut; and the texts that crash it.

Lengths, special tokens and padding are decided when a batch is read, so they can change without tokenising again.
Only the library `tokenizers` is imported here, because every worker of a preparation starts with it.

Where a tokenizer has ended a process, `try_each` tries the texts in a child process and bisects them, down to the
single text: one bad text among n costs about 2 log2(n) processes and no other text."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy import ndarray

from raytriever.interruption import end_with_parent

Work = Callable[[Sequence[str]], Sequence[Any]]


def try_each(work: Work, texts: Sequence[str]) -> tuple[list[Any], dict[int, str]]:
    """What `work` makes of each text, and why it made nothing of some.

    Args:
        work: answers one value a text; sent to other processes.
        texts: in the order of the answers.

    Returns:
        The answers, None for a text that killed its process or raised; and by its place why.
    """
    found: list[Any] = [None] * len(texts)
    reasons: dict[int, str] = {}
    waiting = [range(len(texts))]
    while waiting:
        places = waiting.pop()
        if not len(places):
            continue
        answers, reason = _in_a_process(work, [texts[place] for place in places])
        if answers is not None:
            for place, answer in zip(places, answers, strict=True):
                found[place] = answer
        elif len(places) == 1:
            reasons[places[0]] = reason
        else:
            middle = len(places) // 2
            waiting += [places[middle:], places[:middle]]
    return found, reasons


def _in_a_process(work: Work, texts: Sequence[str]) -> tuple[Sequence[Any] | None, str]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, work, texts), daemon=True)
    process.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError:
        answer = None
    finally:
        ours.close()
        process.join()
    if answer is not None:
        return answer
    code = process.exitcode or 0
    return None, f"kills the tokenizer's process (signal {-code})" if code < 0 else f"ends it with code {code}"


def _child(connection: Connection, work: Work, texts: Sequence[str]) -> None:
    end_with_parent()
    try:
        answer: tuple[Sequence[Any] | None, str] = (work(texts), "")
    except BaseException as error:  # a panic of the tokenizer is no `Exception`
        answer = (None, f"cannot be tokenised ({type(error).__name__}: {str(error)[:120]})")
    connection.send(answer)
    connection.close()


# What a tokenizer holds of a text is some hundred times the text; beyond this no model reads anyway.
MAX_CHARACTERS = 1_000_000


@dataclass(frozen=True)
class Tokenisation:
    """How the two sides of a data set become tokens.

    Args:
        tokenizer: a tokenizer of the library `tokenizers`, serialised, without truncation and padding.
        query_prefix: put in front of every query.
        passage_prefix: put in front of every passage.
    """

    tokenizer: str = field(repr=False)
    query_prefix: str = ""
    passage_prefix: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 over all that decides the tokens."""
        parts = (self.tokenizer, self.query_prefix, self.passage_prefix)
        return hashlib.sha256(
            "\0".join(hashlib.sha256(part.encode()).hexdigest() for part in parts).encode()
        ).hexdigest()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest type that holds every token id."""
        return np.dtype("<u2" if _backend(self.tokenizer).get_vocab_size() <= 2**16 else "<u4")

    @property
    def vocabulary(self) -> int:
        """The number of token ids there may be: one more than the largest."""
        return _vocabulary(self.tokenizer)

    def encode(self, texts: Sequence[str], prefix: str) -> list[list[int]]:
        """The token ids of each text, with the prefix in front; texts are cut at `MAX_CHARACTERS`."""
        prepared = [prefix + text[:MAX_CHARACTERS] for text in texts]
        found = _backend(self.tokenizer).encode_batch_fast(prepared, add_special_tokens=False)
        return [encoding.ids for encoding in found]


def flat(token_ids: Sequence[Sequence[int]], dtype: np.dtype[Any]) -> tuple[ndarray, ndarray]:
    """Token ids of texts end to end, and where each text begins, with the end of the last: int64."""
    offsets = np.zeros(len(token_ids) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in token_ids], out=offsets[1:])
    return np.fromiter(chain.from_iterable(token_ids), dtype=dtype, count=offsets[-1]), offsets


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: str) -> int:
    return max(_backend(tokenizer).get_vocab().values(), default=-1) + 1


@lru_cache(maxsize=4)
def _backend(tokenizer: str) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(tokenizer)
