"""Tokenizer of a model directory: texts to contents, and contents to inputs of the encoder.

The content of a text is the tokenizer's output without special tokens, never cut. It depends on nothing but the
tokenizer and the text, so it can be stored. A `Template` cuts contents to a length and adds the special tokens, in
a few array operations a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray
from torch import Tensor

from raytriever.errors import ModelError
from raytriever.models.files import CONFIG, check_tokenizer_files, first_line
from raytriever.models.weights import load_config, quiet_transformers

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spiece.model",
)


def load_tokenizer(directory: Path) -> Any:
    """Load the transformers tokenizer of a model directory, never with the repository's own code.

    Raises:
        ModelError: its files are missing or broken.
    """
    # Without any of these transformers makes a tokenizer with an empty vocabulary and says nothing.
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(
            "has no tokenizer", str(directory), "copy tokenizer.json and tokenizer_config.json beside config.json"
        )
    check_tokenizer_files(directory)
    remedy = "give a directory with config.json and model.safetensors"
    config = load_config(directory, remedy) if (directory / CONFIG).is_file() else None
    with _tokenizer_errors(directory), quiet_transformers(warnings=False):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(
            directory, config=config, local_files_only=True, use_fast=True, trust_remote_code=False
        )


@contextmanager
def _tokenizer_errors(directory: Path) -> Iterator[None]:
    """Turn what the libraries raise for a broken tokenizer into a `ModelError`."""
    try:
        yield
    except Exception as error:
        # The library `tokenizers` raises nothing more exact than Exception itself.
        known = (OSError, ValueError, KeyError, ImportError)
        if type(error) is not Exception and not isinstance(error, known):
            raise
        raise ModelError(
            f"has a tokenizer that cannot be loaded ({first_line(error)})",
            str(directory),
            "copy tokenizer.json and tokenizer_config.json anew",
        ) from error


def content_tokenizer_json(tokenizer: Any) -> str:
    """A transformers tokenizer as JSON of the library `tokenizers`, with truncation and padding off.

    A process that has only that library makes contents of texts by
    `Tokenizer.from_str(json).encode_batch_fast(texts, add_special_tokens=False)`.

    Raises:
        ModelError: the tokenizer is not one of that library, or does what its JSON cannot say.
    """
    from tokenizers import Tokenizer

    require_fast(tokenizer)
    if tokenizer.split_special_tokens:
        raise ModelError(
            "split_special_tokens is not supported",
            str(tokenizer.name_or_path),
            "drop it from tokenizer_config.json",
        )
    # A copy: a tokenizer in use keeps the truncation and padding of its last call, and of the file it came from.
    content = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    content.no_truncation()
    content.no_padding()
    return str(content.to_str())


def require_fast(tokenizer: Any) -> None:
    """Refuse a tokenizer that is not one of the library `tokenizers`; raises `ModelError`."""
    if not tokenizer.is_fast:
        raise ModelError(
            f"{type(tokenizer).__name__} is not a fast tokenizer",
            str(tokenizer.name_or_path),
            "save it with tokenizer.json",
        )


@dataclass(frozen=True)
class Template:
    """What a tokenizer makes of the content of one text.

    Args:
        before: special tokens in front.
        after: special tokens behind.
        keep_end: a text that is too long loses its beginning, not its end.
        pad_token: fills up the short texts of a batch.
        pad_left: fills up in front of the text.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    keep_end: bool
    pad_token: int
    pad_left: bool

    @classmethod
    def of(cls, tokenizer: Any) -> Template:
        """Find it from what a transformers tokenizer does with a few texts.

        Raises:
            ModelError: it has no padding token, or puts more around a text than fixed tokens before and after.
        """
        require_fast(tokenizer)
        if tokenizer.pad_token_id is None:
            raise ModelError(
                "the tokenizer has no padding token",
                str(tokenizer.name_or_path),
                'name one as "pad_token" in tokenizer_config.json, the end-of-text token if need be',
            )
        probe = _text_with_content(tokenizer)
        found = tokenizer(probe, add_special_tokens=True)
        ids, own = found["input_ids"], [place for place, text in enumerate(found.sequence_ids(0)) if text is not None]
        begin, end = (own[0], own[-1] + 1) if own else (len(ids), len(ids))
        template = cls(
            tuple(ids[:begin]),
            tuple(ids[end:]),
            tokenizer.truncation_side == "left",
            tokenizer.pad_token_id,
            tokenizer.padding_side == "left",
        )
        for text in ("", probe, " ".join([probe] * 3)):
            content = tokenizer(text, add_special_tokens=False)["input_ids"]
            whole = tokenizer(text)["input_ids"]
            if template.assemble([np.array(content, dtype=np.int64)], len(whole))[0].tolist() != whole:
                raise ModelError(
                    "the tokenizer puts more around a text than the same tokens before and after",
                    str(tokenizer.name_or_path),
                    "use a tokenizer whose post-processor has one sequence between special tokens",
                )
        return template

    def assemble(self, contents: Sequence[ndarray], length: int) -> list[Int64[ndarray, " tokens"]]:
        """Inputs of at most `length` tokens, special tokens included; those are never cut."""
        before, after = np.array(self.before, dtype=np.int64), np.array(self.after, dtype=np.int64)
        room = max(0, length - len(before) - len(after))
        pieces, ends = [before[:0]], [0]
        for content in contents:
            kept = content[max(0, len(content) - room) :] if self.keep_end else content[:room]
            pieces += (before, kept, after)
            ends.append(ends[-1] + len(before) + len(kept) + len(after))
        # One array for all, because a text's own would take longer to make than to fill.
        flat = np.concatenate(pieces, dtype=np.int64)
        return [flat[begin:end] for begin, end in pairwise(ends)]

    def pad(self, inputs: Sequence[ndarray | Sequence[int]]) -> dict[str, Int64[Tensor, "texts tokens"]]:
        """One batch, padded to its longest input: `input_ids` and `attention_mask`, 1 where a token is."""
        lengths = np.array([len(ids) for ids in inputs])
        places = np.arange(lengths.max(initial=0))
        if self.pad_left:
            places = places[::-1]
        mask = places < lengths[:, None]
        # numpy, not torch: a large torch operation on a loader's thread would start a second pool of threads.
        padded = np.full(mask.shape, self.pad_token, dtype=np.int64)
        padded[mask] = np.concatenate([np.zeros(0, np.int64), *inputs])
        return {"input_ids": torch.from_numpy(padded), "attention_mask": torch.from_numpy(mask.astype(np.int64))}


def _text_with_content(tokenizer: Any) -> str:
    """A text of which something is left: a small vocabulary may know no letter of any given one."""
    texts: Iterable[str] = (tokenizer.decode([token]) for token in range(len(tokenizer)))
    for text in ("a", "1", *texts):
        if tokenizer(text, add_special_tokens=False)["input_ids"]:
            return text
    raise ModelError("the tokenizer makes nothing of any text", str(tokenizer.name_or_path), "copy its files anew")
