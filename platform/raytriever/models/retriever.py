"""A dense retriever: queries and passages, through one shared tower or one each, into one space.

Shared towers are the usual bi-encoder; separate ones are DPR's (Karpukhin et al., 2020, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from raytriever.errors import ModelError
from raytriever.models.buckets import Buckets, fill_buckets
from raytriever.models.config import ModelConfig
from raytriever.models.description import Description, describe
from raytriever.models.encoder import Encoder, TokenBatch, load_backbone
from raytriever.models.source import resolve_model

Side = Literal["query", "passage"]
SIDES: tuple[Side, ...] = ("query", "passage")
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spiece.model",
)


class Retriever(nn.Module):
    """Two towers (one module twice when shared) and the tokenizer that belongs to them."""

    def __init__(self, query: Encoder, passage: Encoder, tokenizer: Any, description: Description) -> None:
        super().__init__()
        self.query = query
        self.passage = passage
        self.tokenizer = tokenizer
        self.description = description

    @property
    def width(self) -> int:
        """The number of components of an embedding."""
        return int(self.query.backbone.config.hidden_size)  # type: ignore[union-attr,arg-type]

    def attend_by(self, implementation: str) -> None:
        """Choose transformers' attention: `sdpa`, which it takes by itself, or `eager`."""
        for tower in (self.query, self.passage):
            tower.backbone.set_attn_implementation(implementation)  # type: ignore[operator]

    def token_ids(self, texts: Sequence[str], side: Side) -> list[list[int]]:
        """Prefix, tokenise and cut texts of one side; no padding."""
        prefix = self.description.query_prefix if side == "query" else self.description.passage_prefix
        length = self.description.query_length if side == "query" else self.description.passage_length
        prepared = [prefix + text for text in texts] if prefix else list(texts)
        found = self.tokenizer(
            prepared,
            truncation=True,
            max_length=length,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        return found["input_ids"]

    def pad(self, token_ids: Sequence[Sequence[int]]) -> TokenBatch:
        """One batch, padded to its longest text: `input_ids` and `attention_mask`, `[texts, tokens]` int64."""
        return dict(self.tokenizer.pad({"input_ids": list(token_ids)}, return_tensors="pt"))

    def tokenize(self, texts: Sequence[str], side: Side) -> Buckets:
        """`token_ids`, then `pad`, texts of like length together."""
        return fill_buckets(self.token_ids(texts, side), self.pad)

    def encode(self, tokens: TokenBatch, side: Side) -> Tensor:
        """Embeddings `[texts, width]` of one side."""
        tower = self.query if side == "query" else self.passage
        return tower(tokens)

    def forward(self, queries: Buckets, passages: Buckets) -> tuple[Tensor, Tensor]:
        """Both sides in one call, because data-parallel wrappers synchronise gradients per call."""

        def encoded(texts: Buckets, side: Side) -> Tensor:
            return torch.cat([self.encode(part, side) for part in texts.parts])[texts.places]

        return encoded(queries, "query"), encoded(passages, "passage")


def load_retriever(config: ModelConfig) -> Retriever:
    """Load the model a configuration names, in float32 and evaluation mode.

    Raises:
        ModelError: it cannot be found, trusted or read.
    """
    directory = resolve_model(config.model, config.revision)
    description = describe(directory, config)
    places = {side: _tower_directory(directory, side) for side in SIDES}
    if description.towers == "shared" and places["query"] != places["passage"]:
        raise ModelError("has two towers", str(directory), "drop --towers shared")
    tokenizer = _load_tokenizer(places["query"])

    def tower(side: Side) -> Encoder:
        backbone = load_backbone(places[side])
        return Encoder(backbone, description.pooling, normalise=description.similarity == "cosine")

    query = tower("query")
    passage = query if description.towers == "shared" else tower("passage")
    return Retriever(query, passage, tokenizer, description).eval()


def _load_tokenizer(directory: Path) -> Any:
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


def _tower_directory(directory: Path, side: Side) -> Path:
    own = directory / {"query": "query_0_Transformer", "passage": "document_0_Transformer"}[side]
    return own if own.is_dir() else directory
