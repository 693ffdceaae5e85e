"""Tokenisation of texts without model, special tokens or truncation, and a search for texts that crash the tokenizer.

Lengths, special tokens and padding are decided when a batch is read, so they can change without tokenising again.
Only the library `tokenizers` is imported here, because every worker of a preparation starts with it.

If a tokenizer has ended a process, `try_each` tries the texts in child processes and bisects them to single texts. One
bad text among n costs about 2 log2(n) processes, and no other text is lost."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy import ndarray

from raytriever.processes import call_within
from raytriever.prompts import PromptTable

Work = Callable[[Sequence[str]], Sequence[Any]]


def try_each(work: Work, texts: Sequence[str]) -> tuple[list[Any], dict[int, str]]:
    """Return the result of `work` for each text, and the reasons for texts without one, by the index of the text.

    `work` returns one value for each text, and runs in other processes. The result is None for a text that ended its
    process or raised.
    """
    results: list[Any] = [None] * len(texts)
    reasons: dict[int, str] = {}
    waiting = [range(len(texts))]
    while waiting:
        indices = waiting.pop()
        if not len(indices):
            continue
        try:
            values, reason = call_within(None, "tokenizers", _attempt, work, [texts[index] for index in indices])
        except ChildProcessError as death:
            values, reason = None, f"kills the tokenizer's process ({death})"
        if values is not None:
            for index, value in zip(indices, values, strict=True):
                results[index] = value
        elif len(indices) == 1:
            reasons[indices[0]] = reason
        else:
            middle = len(indices) // 2
            waiting += [indices[middle:], indices[:middle]]
    return results, reasons


def _attempt(work: Work, texts: Sequence[str]) -> tuple[Sequence[Any] | None, str]:
    try:
        return work(texts), ""
    except BaseException as error:  # a panic of the tokenizer is no `Exception`
        return None, f"cannot be tokenised ({type(error).__name__}: {str(error)[:120]})"


# A tokenizer needs about a hundred times the memory of a text. No model reads longer texts.
MAX_CHARACTERS = 1_000_000


@dataclass(frozen=True)
class Tokenisation:
    """Serialised tokenizer of `tokenizers`, without truncation and padding, and the prompts in front of texts.

    `table` has prompts by data set, from which `for_dataset` chooses; None if the two prompts are for all.
    """

    tokenizer: str = field(repr=False)
    query_prompt: str = ""
    passage_prompt: str = ""
    table: PromptTable | None = field(default=None, repr=False)

    def for_dataset(self, name: str) -> Tokenisation:
        """Return the tokenisation of a data set with its own prompts."""
        if self.table is None:
            return self
        prompts = self.table.of(name)
        return replace(self, query_prompt=prompts.query, passage_prompt=prompts.passage, table=None)

    @property
    def digest(self) -> str:
        """SHA-256 over everything that decides the tokens."""
        return _sha256("\0".join(map(_sha256, (self.tokenizer, self.query_prompt, self.passage_prompt))))

    @property
    def tokenizer_digest(self) -> str:
        """SHA-256 over the tokenizer alone."""
        return _sha256(self.tokenizer)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Smallest integer type for every token id."""
        return np.dtype("<u2" if _backend(self.tokenizer).get_vocab_size() <= 2**16 else "<u4")

    @property
    def vocabulary(self) -> int:
        """Number of possible token ids: the largest plus one."""
        return _vocabulary(self.tokenizer)

    def encode(self, texts: Sequence[str], prompt: str) -> list[list[int]]:
        """Return the token ids of each text, with the prompt in front; texts are cut at `MAX_CHARACTERS`."""
        prepared = [prompt + text[:MAX_CHARACTERS] for text in texts]
        encodings = _backend(self.tokenizer).encode_batch_fast(prepared, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def flat(token_ids: Sequence[Sequence[int]], dtype: np.dtype[Any]) -> tuple[ndarray, ndarray]:
    """Return the concatenated token ids, and the start of each text with the end of the last, as int64."""
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
