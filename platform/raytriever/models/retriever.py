"""A dense retriever: queries and passages, through one shared tower or one each, into one space.

Shared towers are the usual bi-encoder; separate ones are DPR's (Karpukhin et al., 2020, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray
from torch import Tensor, nn

from raytriever.activity import activity
from raytriever.errors import ConfigError, ModelError
from raytriever.models.buckets import Buckets, fill_buckets
from raytriever.models.config import ModelConfig
from raytriever.models.description import Description, describe, tower_directory
from raytriever.models.encoder import Encoder, TokenBatch, load_backbone
from raytriever.models.source import resolve_model
from raytriever.models.tokenisation import Template, content_tokenizer_json, load_tokenizer
from raytriever.models.weights import check_tokens

Side = Literal["query", "passage"]
SIDES: tuple[Side, ...] = ("query", "passage")
# Tokens of a part in training. A CPU takes longer for more at a time: for 12,288 tokens forward and backward, MiniLM
# needs 1.5 to 1.7 times as long in one part as in 4 or 8. A GPU is the busier the more it gets.
CPU_PART = 4_096


class Retriever(nn.Module):
    """Two towers (one module twice when shared) and the tokenizer that belongs to them."""

    def __init__(self, query: Encoder, passage: Encoder, tokenizer: Any, description: Description) -> None:
        super().__init__()
        self.query = query
        self.passage = passage
        self.tokenizer = tokenizer
        self.template = Template.of(tokenizer)
        self.description = description

    @property
    def width(self) -> int:
        """The number of components of an embedding."""
        return self.description.truncate_dim or hidden_size(self.query.backbone)

    def contents(self, texts: Sequence[str], side: Side) -> list[Int64[ndarray, " tokens"]]:
        """The tokens of each text of one side with its prefix, as a preparation would store them: no special
        tokens, nothing cut."""
        prefix = self.description.query_prefix if side == "query" else self.description.passage_prefix
        found = self._content_tokenizer.encode_batch_fast([prefix + text for text in texts], add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in found]

    def assemble(self, contents: Sequence[ndarray], side: Side) -> list[Int64[ndarray, " tokens"]]:
        """Contents cut to the side's length, between special tokens; no padding."""
        length = self.description.query_length if side == "query" else self.description.passage_length
        return self.template.assemble(contents, length)

    def token_ids(self, texts: Sequence[str], side: Side) -> list[Int64[ndarray, " tokens"]]:
        """Prefix, tokenise and cut texts of one side; no padding."""
        return self.assemble(self.contents(texts, side), side)

    def pad(self, token_ids: Sequence[ndarray]) -> TokenBatch:
        """One batch, padded to its longest text: `input_ids` and `attention_mask`, `[texts, tokens]` int64."""
        return self.template.pad(token_ids)

    def batch_of(self, contents: Sequence[ndarray], side: Side) -> Buckets:
        """Stored contents of one side as input of the encoder, texts of like length together.

        Args:
            contents: token ids of each text, of any integer type, the side's prefix in front, no special tokens.
            side: whose length they are cut to.
        """
        on_cpu = next(self.parameters()).device.type == "cpu"
        return fill_buckets(self.assemble(contents, side), self.pad, CPU_PART if on_cpu else None)

    def tokenize(self, texts: Sequence[str], side: Side) -> Buckets:
        """`batch_of` for texts that were not prepared."""
        return self.batch_of(self.contents(texts, side), side)

    @cached_property
    def _content_tokenizer(self) -> Any:
        """The tokenizer's own copy for contents: nobody changes it, so several threads may use it at a time."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(content_tokenizer_json(self.tokenizer))

    def encode(self, tokens: TokenBatch, side: Side) -> Tensor:
        """Embeddings `[texts, width]` of one side."""
        tower = self.query if side == "query" else self.passage
        return tower(tokens)

    def forward(self, queries: Buckets, passages: Buckets) -> tuple[Tensor, Tensor]:
        """Both sides in one call, because data-parallel wrappers synchronise gradients per call."""

        def encoded(texts: Buckets, side: Side) -> Tensor:
            return torch.cat([self.encode(part, side) for part in texts.parts])[texts.places]

        return encoded(queries, "query"), encoded(passages, "passage")


@activity("loading the encoder")
def load_retriever(config: ModelConfig) -> Retriever:
    """Load the model a configuration names, in float32 and evaluation mode.

    Raises:
        ModelError: it cannot be found, trusted or read.
        ConfigError: more components are to be kept than there are.
    """
    directory = resolve_model(config.model, config.revision)
    description = describe(directory, config)
    places = {side: tower_directory(directory, side) for side in SIDES}
    if description.towers == "shared" and places["query"] != places["passage"]:
        raise ModelError("has two towers", str(directory), "drop --towers shared")
    tokenizer = load_tokenizer(places["query"])

    def tower(side: Side) -> Encoder:
        backbone = load_backbone(places[side])
        whole = hidden_size(backbone)
        if description.truncate_dim is not None and not 1 <= description.truncate_dim <= whole:
            raise ConfigError(
                f"{description.truncate_dim} components, embeddings of {config.model} have {whole}",
                "--truncate-dim",
                f"give at most {whole}",
            )
        return Encoder(backbone, description.pooling, description.similarity == "cosine", description.truncate_dim)

    query = tower("query")
    passage = query if description.towers == "shared" else tower("passage")
    check_tokens(tokenizer, query.backbone, directory)
    for each, length in ((query, description.query_length), (passage, description.passage_length)):
        _check_length(each.backbone, length, directory)
    return Retriever(query, passage, tokenizer, description).eval()


def hidden_size(backbone: nn.Module) -> int:
    """The number of components of a transformer's states."""
    return int(backbone.config.hidden_size)  # type: ignore[union-attr,arg-type]


def _check_length(backbone: nn.Module, length: int, directory: Path) -> None:
    """Refuse texts longer than the learned positions of a model; raises `ModelError`."""
    for name, module in backbone.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings"):
            # RoBERTa and its relatives begin to count after the position of padding.
            positions = module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
            if length > positions:
                raise ModelError(
                    f"has {positions} positions, but texts are cut at {length} tokens",
                    str(directory),
                    f"give --query-length and --passage-length of at most {positions}",
                )
