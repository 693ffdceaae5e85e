"""Texts to token ids, by the tokenizer alone: no model, no special tokens, nothing cut.

Lengths, special tokens and padding are decided when a batch is read, so they can change without tokenising again.
Only the library `tokenizers` is imported here, because every worker of a preparation starts with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy import ndarray

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
