"""The settings of the encoder. Imports nothing heavy: the command line reads it for `--help`."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.options import option

POOLINGS = ("mean", "cls", "last")
SIMILARITIES = ("cosine", "dot")
TOWERS = ("shared", "separate")


@dataclass(frozen=True)
class ModelConfig:
    """Which encoder, and how texts become embeddings. What is not given is read from the model's own files."""

    model: str = option("minilm", "the encoder: minilm, a local directory, or a hub name")
    revision: str | None = option(None, "commit or tag of a hub model")
    pooling: str | None = option(None, "how token states become one embedding", choices=POOLINGS)
    similarity: str | None = option(None, "cosine normalises embeddings, dot leaves them raw", choices=SIMILARITIES)
    towers: str | None = option(None, "one encoder for queries and passages, or one each (as DPR)", choices=TOWERS)
    query_prefix: str | None = option(None, "text put before every query")
    passage_prefix: str | None = option(None, "text put before every passage")
    query_length: int | None = option(None, "longest query in tokens, longer ones are cut", minimum=3)
    passage_length: int | None = option(None, "longest passage in tokens, longer ones are cut", minimum=3)
