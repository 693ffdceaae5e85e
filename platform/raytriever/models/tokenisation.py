"""A model directory's tokenizer, and texts to contents by it.

The content of a text is what the tokenizer makes of it, without special tokens and never cut. It depends on nothing
but the tokenizer and the text, so it can be stored; `template` makes inputs of the encoder of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raytriever.errors import ModelError

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spiece.model",
)


def load_tokenizer(directory: Path) -> Any:
    """The transformers tokenizer of a model directory; a missing or broken one is a `ModelError`."""
    from transformers import AutoTokenizer

    # Without any of these transformers makes a tokenizer with an empty vocabulary and says nothing.
    if any((directory / name).is_file() for name in TOKENIZER_FILES):
        try:
            return AutoTokenizer.from_pretrained(directory, local_files_only=True, use_fast=True)
        except (OSError, ValueError) as error:
            reason = f"has a tokenizer that cannot be loaded ({str(error).splitlines()[0]})"
            raise ModelError(reason, str(directory), "copy tokenizer.json and tokenizer_config.json anew") from error
    raise ModelError(
        "has no tokenizer", str(directory), "copy tokenizer.json and tokenizer_config.json beside config.json"
    )


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
