"""Tokenization of texts without loading a model, without special tokens and without truncation.

Truncation, special tokens and padding are applied when a batch is read, so they can change without a new tokenization.
This module imports only the library `tokenizers`, so that the workers of a preparation start quickly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy import ndarray

from raytriever.models.prompts import PromptTable

# Characters per call: a tokenizer needs about a hundred times the memory of its texts. No model reads a longer text.
MAX_CHARACTERS = 1_000_000


@dataclass(frozen=True)
class Tokenization:
    """Serialized tokenizer of `tokenizers`, without truncation and padding, and the prompts in front of texts. `table`
    has the prompts of each data set, for `for_dataset`; None if all data sets have the same prompts."""

    tokenizer: str = field(repr=False)
    query_prompt: str = ""
    passage_prompt: str = ""
    table: PromptTable | None = field(default=None, repr=False)

    def for_dataset(self, name: str) -> Tokenization:
        """Return the tokenization with the prompts of a data set."""
        if self.table is None:
            return self
        prompts = self.table.of(name)
        return replace(self, query_prompt=prompts.query, passage_prompt=prompts.passage, table=None)

    @property
    def digest(self) -> str:
        """SHA-256 of everything that determines the tokens."""
        return _sha256("\0".join(map(_sha256, (self.tokenizer, self.query_prompt, self.passage_prompt))))

    @property
    def tokenizer_digest(self) -> str:
        """SHA-256 over the tokenizer alone."""
        return _sha256(self.tokenizer)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Smallest integer type that can hold every token id."""
        return np.dtype("<u2" if _backend(self.tokenizer).get_vocab_size() <= 2**16 else "<u4")

    @property
    def vocabulary(self) -> int:
        """Number of possible token ids: the largest plus one."""
        return _vocabulary(self.tokenizer)

    def encode(self, texts: Sequence[str], prompt: str) -> list[list[int]]:
        """Return the token ids of each text after the prompt. Texts are cut at `MAX_CHARACTERS`."""
        prepared = [prompt + text[:MAX_CHARACTERS] for text in texts]
        backend, ids = _backend(self.tokenizer), []
        for some in _slices(prepared):
            ids += [encoding.ids for encoding in backend.encode_batch_fast(some, add_special_tokens=False)]
        return ids


def _slices(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Divide a list of texts into slices. A slice has one text, or at most `MAX_CHARACTERS` characters in total."""
    first = characters = 0
    for index, text in enumerate(texts):
        characters += len(text)
        if characters > MAX_CHARACTERS and index > first:
            yield texts[first:index]
            first, characters = index, len(text)
    yield texts[first:]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def flat(token_ids: Sequence[Sequence[int]], dtype: np.dtype[Any]) -> tuple[ndarray, ndarray]:
    """Return the concatenated token ids, and the start of each text followed by the end of the last text, as int64."""
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
