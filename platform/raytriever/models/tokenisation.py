"""A model directory's tokenizer, and texts to contents by it.

The content of a text is what the tokenizer makes of it, without special tokens and never cut. It depends on nothing
but the tokenizer and the text, so it can be stored; `template` makes inputs of the encoder of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raytriever.errors import ModelError
from raytriever.models.files import CONFIG, check_tokenizer_files, first_line
from raytriever.models.quiet import quiet_transformers
from raytriever.models.weights import load_config

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
