"""Tokenizer of a model directory. It converts texts to contents, and contents to inputs of the encoder.

The content of a text is its token ids without special tokens and without truncation. It depends only on the tokenizer
and the text, so it can be stored. A `Template` truncates contents to a length and adds the special tokens, in a few
array operations per batch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray
from torch import Tensor

from raytriever.core.errors import ModelError
from raytriever.models.directory.model_files import log_once, model_errors, quiet_transformers
from raytriever.models.directory.transformer_settings import Transformer

TOKENIZER_FILES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "sentencepiece.bpe.model", "spiece.model",
)  # fmt: skip


def load_tokenizer(transformer: Transformer) -> Any:
    """Load the tokenizer of a transformer, without running code of its directory.

    The settings of sentence-transformers for the tokenizer are applied. A tokenizer without a padding token pads with
    its end token, or else with its unknown token; then one line is logged. Raise `ModelError` if the files are missing
    or damaged.
    """
    directory = transformer.folder
    # If all these files are missing, transformers silently creates a tokenizer with an empty vocabulary.
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        what = "has no tokenizer"
        raise ModelError(what, str(directory), "copy tokenizer.json and tokenizer_config.json next to config.json")
    config = transformer.config
    with model_errors(directory, "has a tokenizer that cannot be loaded"), quiet_transformers(warnings=False):
        from transformers import AutoTokenizer

        settings = {"config": config, "use_fast": True, **transformer.tokenizer_settings}
        tokenizer = AutoTokenizer.from_pretrained(directory, **settings, local_files_only=True, trust_remote_code=False)
    embedded = getattr(config, "vocab_size", None)
    if tokenizer.is_fast and embedded is not None:
        _drop_tokens(tokenizer, embedded)
    if transformer.settings.get("do_lower_case"):
        _lower_case(tokenizer)
    _choose_padding(tokenizer, directory)
    return tokenizer


def _drop_tokens(tokenizer: Any, embedded: int) -> None:
    """Drop added tokens for which a model has no embedding. Then their texts are tokenized like any other text.

    The tokenizer of Gemma 3 has such a token for images. A token with a role, such as padding, is kept, so that
    `check_tokens` reports it as an error."""
    from tokenizers import Tokenizer

    roles = {getattr(tokenizer, f"{role}_token") for role in ("bos", "eos", "cls", "sep", "pad", "unk")}
    dropped = {
        number
        for number, token in tokenizer.added_tokens_decoder.items()
        if number >= embedded and token.content not in roles
    }
    if dropped:
        content = json.loads(tokenizer.backend_tokenizer.to_str())  # noqa: TID251 - as its library has just written it
        content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] not in dropped]
        tokenizer._tokenizer = Tokenizer.from_str(json.dumps(content))


def has_lowercase(tokenizer: Any) -> bool:
    """Return True if a tokenizer itself lowercases texts."""
    from tokenizers.normalizers import Lowercase

    return any(isinstance(normalizer, Lowercase) for normalizer in _normalizers(tokenizer))


def _lower_case(tokenizer: Any) -> None:
    from tokenizers.normalizers import Lowercase, Sequence

    require_fast(tokenizer)
    if not has_lowercase(tokenizer):
        tokenizer.backend_tokenizer.normalizer = Sequence([Lowercase(), *_normalizers(tokenizer)])


def _normalizers(tokenizer: Any) -> list[Any]:
    from tokenizers.normalizers import Sequence

    normalizer: Any = tokenizer.backend_tokenizer.normalizer
    if normalizer is None:
        return []
    if not isinstance(normalizer, Sequence):
        return [normalizer]
    steps: Any = normalizer
    return list(steps)


def _choose_padding(tokenizer: Any, directory: Path) -> None:
    """Set a padding token if a tokenizer has none. It may be any token, because pooling and attention ignore it."""
    if tokenizer.pad_token_id is not None:
        return
    for role, token in (("end", tokenizer.eos_token), ("unknown", tokenizer.unk_token)):
        if token is not None:
            tokenizer.pad_token = token
            log_once(f"{directory}: the tokenizer has no padding token; the {role} token {token!r} is used.")
            return


def content_tokenizer_json(tokenizer: Any) -> str:
    """Return a transformers tokenizer as JSON of the library `tokenizers`, without truncation and padding.

    With this library alone, a process computes contents by `Tokenizer.from_str(json).encode_batch_fast(texts,
    add_special_tokens=False)`. Raise `ModelError` if the tokenizer is not based on this library, or has a setting that
    its JSON cannot express."""
    from tokenizers import Tokenizer

    require_fast(tokenizer)
    if tokenizer.split_special_tokens:
        what = "split_special_tokens is not supported"
        raise ModelError(what, str(tokenizer.name_or_path), "remove it from tokenizer_config.json")
    # Copy the tokenizer, because it keeps the truncation and padding of its file or of its last call.
    content = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    content.no_truncation()
    content.no_padding()
    return str(content.to_str())


def require_fast(tokenizer: Any) -> None:
    """Check that a tokenizer is based on the library `tokenizers`; raises `ModelError`."""
    if not tokenizer.is_fast:
        what = f"{type(tokenizer).__name__} is not a fast tokenizer"
        raise ModelError(what, str(tokenizer.name_or_path), "save it with tokenizer.json")


@dataclass(frozen=True)
class Template:
    """Template with which a tokenizer makes the input of an encoder from the content of a text."""

    # `before`, `after`: ids of the special tokens before and after the content.
    before: tuple[int, ...]
    after: tuple[int, ...]
    keep_end: bool  # truncate a long text on the left, not on the right
    pad_token: int  # id of the padding token
    pad_left: bool  # pad on the left, not on the right

    @classmethod
    def of(cls, tokenizer: Any) -> Template:
        """Derive the template from the outputs of a transformers tokenizer for a few texts. Raise `ModelError` if the
        tokenizer has no padding token, or does more than add fixed tokens before and after a text."""
        require_fast(tokenizer)
        if tokenizer.pad_token_id is None:
            remedy = 'set "pad_token" in tokenizer_config.json, for example to the end-of-text token'
            raise ModelError("the tokenizer has no padding token", str(tokenizer.name_or_path), remedy)
        probe = _text_with_content(tokenizer)
        output = tokenizer(probe, add_special_tokens=True)
        ids = output["input_ids"]
        content_indices = [index for index, text in enumerate(output.sequence_ids(0)) if text is not None]
        begin, end = (content_indices[0], content_indices[-1] + 1) if content_indices else (len(ids), len(ids))
        keep_end, pad_left = tokenizer.truncation_side == "left", tokenizer.padding_side == "left"
        template = cls(tuple(ids[:begin]), tuple(ids[end:]), keep_end, tokenizer.pad_token_id, pad_left)
        for text in ("", probe, " ".join([probe] * 3)):
            content = tokenizer(text, add_special_tokens=False)["input_ids"]
            whole = tokenizer(text)["input_ids"]
            if template.assemble([np.array(content, dtype=np.int64)], len(whole))[0].tolist() != whole:
                what = "the tokenizer does more than add the same tokens before and after every text"
                remedy = "use a tokenizer whose post-processor has one sequence between special tokens"
                raise ModelError(what, str(tokenizer.name_or_path), remedy)
        return template

    def assemble(self, contents: Sequence[ndarray], length: int) -> list[Int64[ndarray, " tokens"]]:
        """Return inputs of at most `length` tokens. Special tokens are included in `length`, but never truncated."""
        before, after = np.array(self.before, dtype=np.int64), np.array(self.after, dtype=np.int64)
        limit = max(0, length - len(before) - len(after))
        pieces, ends = [before[:0]], [0]
        for content in contents:
            shortened = content[max(0, len(content) - limit) :] if self.keep_end else content[:limit]
            pieces += (before, shortened, after)
            ends.append(ends[-1] + len(before) + len(shortened) + len(after))
        # One array for all texts, because creating an array takes longer than filling it.
        flat = np.concatenate(pieces, dtype=np.int64)
        return [flat[begin:end] for begin, end in pairwise(ends)]

    def pad(
        self, inputs: Sequence[ndarray | Sequence[int]], least: int = 0
    ) -> dict[str, Int64[Tensor, "texts tokens"]]:
        """Pad inputs to the length of the longest input, or to `least` tokens if it is shorter. Return `input_ids`, and
        `attention_mask` with 1 for tokens."""
        lengths = np.array([len(ids) for ids in inputs])
        columns = np.arange(lengths.max(initial=least))
        if self.pad_left:
            columns = columns[::-1]
        mask = columns < lengths[:, None]
        # Use numpy, because a large torch operation in the loader's thread would start a second thread pool.
        padded = np.full(mask.shape, self.pad_token, dtype=np.int64)
        padded[mask] = np.concatenate([np.zeros(0, np.int64), *inputs])
        return {"input_ids": torch.from_numpy(padded), "attention_mask": torch.from_numpy(mask.astype(np.int64))}


def _text_with_content(tokenizer: Any) -> str:
    """Return a text that has tokens. With a small vocabulary, many texts have no tokens."""
    texts: Iterable[str] = (tokenizer.decode([token]) for token in range(len(tokenizer)))
    for text in ("a", "1", *texts):
        if tokenizer(text, add_special_tokens=False)["input_ids"]:
            return text
    raise ModelError("the tokenizer has no tokens for any text", str(tokenizer.name_or_path), "copy its files again")
