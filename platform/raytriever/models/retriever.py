"""Dense retriever: encodes queries and passages into one space, by one shared tower or one tower for each.

A shared tower is the usual bi-encoder; separate towers are those of DPR (Karpukhin et al., 2020, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray
from torch import Tensor, nn

from raytriever.activity import activity
from raytriever.errors import ConfigError, ModelError
from raytriever.models.buckets import Buckets, fill_buckets
from raytriever.models.config import ModelConfig
from raytriever.models.decoder import append_end_token, set_bidirectional
from raytriever.models.description import Description, describe, prompt_table, tower_directory
from raytriever.models.encoder import Encoder, TokenBatch, load_backbone
from raytriever.models.source import resolve_model
from raytriever.models.tokenisation import Template, content_tokenizer_json, load_tokenizer
from raytriever.models.weights import check_tokens
from raytriever.prompts import Prompts, PromptTable, check_length
from raytriever.prompts import Side as Side

SIDES: tuple[Side, ...] = ("query", "passage")
# Largest number of tokens per bucket in training on a CPU. For 12,288 tokens forward and backward, MiniLM takes 1.5 to
# 1.7 times as long in one bucket as in 4 or 8. A GPU has no limit, because large buckets keep it busy.
CPU_BUCKET_TOKENS = 4_096


class Retriever(nn.Module):
    """Two towers (the same module if shared) with their tokenizer.

    Args:
        query, passage: the towers.
        tokenizer: of both.
        description: how they read texts.
        prompts: prompts by data set; by default those of the description.
    """

    def __init__(
        self,
        query: Encoder,
        passage: Encoder,
        tokenizer: Any,
        description: Description,
        prompts: PromptTable | None = None,
    ) -> None:
        super().__init__()
        self.query = query
        self.passage = passage
        self.tokenizer = tokenizer
        self.template = Template.of(tokenizer)
        self.description = description
        self.prompts = prompts or prompt_table(description, ModelConfig())

    @property
    def width(self) -> int:
        """Number of components of an embedding."""
        return self.description.truncate_dim or hidden_size(self.query.backbone)

    def prompts_of(self, *names: str) -> Prompts:
        """Return the prompts of a data set with these names; see `raytriever.prompts`.

        Raises:
            ModelError: a prompt leaves no token for the text.
        """
        prompts = self.prompts.of(*names)
        for side in SIDES:
            self.check_prompt(prompts[side], side)
        return prompts

    def check_prompt(self, prompt: str, side: Side) -> None:
        """Check that a prompt leaves tokens for the text; raises `ModelError`."""
        if prompt:
            [content] = self.contents([""], side, prompt)
            length = self.description.query_length if side == "query" else self.description.passage_length
            special = len(self.template.before) + len(self.template.after)
            check_length(prompt, len(content), length - special, side)

    def contents(
        self, texts: Sequence[str], side: Side, prompt: str | Sequence[str] | None = None
    ) -> list[Int64[ndarray, " tokens"]]:
        """Return the token ids of each text of one side with its prompt, as prepared data sets store them.

        They have no special tokens and are not truncated.

        Args:
            texts: the texts.
            side: side of the texts.
            prompt: text in front of all texts, or one for each; by default the prompt of the side.
        """
        if prompt is None:
            prompt = self.description.query_prompt if side == "query" else self.description.passage_prompt
        prompts = [prompt] * len(texts) if isinstance(prompt, str) else prompt
        encodings = self._content_tokenizer.encode_batch_fast(
            [one + text for one, text in zip(prompts, texts, strict=True)], add_special_tokens=False
        )
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def assemble(self, contents: Sequence[ndarray], side: Side) -> list[Int64[ndarray, " tokens"]]:
        """Truncate contents to the side's length, and add special tokens; no padding."""
        length = self.description.query_length if side == "query" else self.description.passage_length
        return self.template.assemble(contents, length)

    def token_ids(self, texts: Sequence[str], side: Side) -> list[Int64[ndarray, " tokens"]]:
        """Tokenise and truncate texts with their prompt of one side; no padding."""
        return self.assemble(self.contents(texts, side), side)

    def pad(self, token_ids: Sequence[ndarray]) -> TokenBatch:
        """Pad texts to the longest one: return `input_ids` and `attention_mask`, `[texts, tokens]` int64."""
        return self.template.pad(token_ids)

    def batch_of(self, contents: Sequence[ndarray], side: Side) -> Buckets:
        """Turn contents of one side into inputs of the encoder, in buckets of similar length.

        Args:
            contents: token ids of each text with the side's prompt and without special tokens, of any integer type.
            side: side that decides the largest length.
        """
        on_cpu = next(self.parameters()).device.type == "cpu"
        return fill_buckets(self.assemble(contents, side), self.pad, CPU_BUCKET_TOKENS if on_cpu else None)

    def tokenize(self, texts: Sequence[str], side: Side) -> Buckets:
        """Tokenise texts of one side, and return them as `batch_of` does."""
        return self.batch_of(self.contents(texts, side), side)

    @cached_property
    def _content_tokenizer(self) -> Any:
        """Copy of the tokenizer for contents, which is never changed, so several threads can use it."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(content_tokenizer_json(self.tokenizer))

    def encode(self, tokens: TokenBatch, side: Side) -> Tensor:
        """Return the embeddings of one side, `[texts, width]`."""
        tower = self.query if side == "query" else self.passage
        return tower(tokens)

    def forward(self, queries: Buckets, passages: Buckets) -> tuple[Tensor, Tensor]:
        """Encode both sides in one call, because data-parallel wrappers synchronise gradients per call."""

        def encode(texts: Buckets, side: Side) -> Tensor:
            return torch.cat([self.encode(bucket, side) for bucket in texts.buckets])[texts.indices]

        return encode(queries, "query"), encode(passages, "passage")


@activity("loading the encoder")
def load_retriever(config: ModelConfig) -> Retriever:
    """Load the model a configuration names, in float32 and evaluation mode.

    Raises:
        ModelError: the model cannot be found, trusted or read.
        ConfigError: `truncate_dim` exceeds the width of the embeddings.
    """
    directory = resolve_model(config.model, config.revision)
    description = describe(directory, config)
    folders = {side: tower_directory(directory, side) for side in SIDES}
    if description.towers == "shared" and folders["query"] != folders["passage"]:
        raise ModelError("has two towers", str(directory), "remove --towers shared")
    tokenizer = load_tokenizer(folders["query"])
    append_end_token(tokenizer, description.append_eos, description.pooling, directory)

    def tower(side: Side) -> Encoder:
        backbone = load_backbone(folders[side])
        set_bidirectional(backbone, description.bidirectional, directory)
        width = hidden_size(backbone)
        if description.truncate_dim is not None and not 1 <= description.truncate_dim <= width:
            raise ConfigError(
                f"{description.truncate_dim} is out of range, embeddings of {config.model} have {width} components",
                "--truncate-dim",
                f"give at most {width}",
            )
        return Encoder(backbone, description.pooling, description.similarity == "cosine", description.truncate_dim)

    query = tower("query")
    passage = query if description.towers == "shared" else tower("passage")
    check_tokens(tokenizer, query.backbone, directory)
    for each, length in ((query, description.query_length), (passage, description.passage_length)):
        _check_length(each.backbone, length, directory)
    retriever = Retriever(query, passage, tokenizer, description, prompt_table(description, config)).eval()
    retriever.prompts_of()  # only for its checks
    return retriever


def hidden_size(backbone: nn.Module) -> int:
    """Return the number of components of a transformer's states."""
    return int(backbone.config.hidden_size)  # type: ignore[union-attr,arg-type]


def _check_length(backbone: nn.Module, length: int, directory: Path) -> None:
    """Check that texts are not longer than the learned positions of a model; raises `ModelError`."""
    for name, module in backbone.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings"):
            # RoBERTa-like models number positions from the padding position on.
            positions = module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
            if length > positions:
                raise ModelError(
                    f"has {positions} positions, but texts may have {length} tokens",
                    str(directory),
                    f"give --query-length and --passage-length of at most {positions}",
                )
