"""Nested embeddings (Matryoshka): the first components can be searched on their own (Kusupati et al., 2022, Eq. 1).

    L = sum over m in M of L_m,   where L_m is the loss of the first m components.

All dimensions m have the same weight (arXiv:2205.13147, with c_m = 1), and M always includes the full dimension. The
candidates are gathered once in full and truncated afterwards. If the model compares by cosine, truncated embeddings are
normalized again, differentiably, because search normalizes them too."""

from __future__ import annotations

from dataclasses import replace

from torch.nn import functional

from raytriever.core.errors import ConfigError, setting
from raytriever.losses.batch_and_temperature import Candidates


def check_dims(dims: tuple[int, ...], whole: int) -> None:
    """Raise `ConfigError` if a nested dimension exceeds the full dimension. The largest of `dims` is the first."""
    if dims and dims[0] > whole:
        what = f"asks for {dims[0]} components, but embeddings have {whole}"
        raise ConfigError(what, setting("matryoshka_dims"), f"give at most {whole}")


def narrow_candidates(batch: Candidates, dim: int, unit_length: bool) -> Candidates:
    """Truncate the embeddings of a batch to their first `dim` components, differentiably."""
    queries, embeddings = (
        functional.normalize(x[:, :dim], dim=-1) if unit_length else x[:, :dim].contiguous()
        for x in (batch.queries, batch.embeddings)
    )
    return replace(batch, queries=queries, embeddings=embeddings)
