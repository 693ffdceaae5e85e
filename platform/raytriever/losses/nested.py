"""Nested embeddings: the first components of an embedding retrieve too (Matryoshka; Kusupati et al., 2022, Eq. 1).

    L = sum over m in M of L_m,   L_m the loss of the first m components,

All widths have the same weight, and the whole width is always included (arXiv:2205.13147, with c_m = 1). Candidates are
gathered once at full width, and cut afterwards. If the model compares by cosine, cut embeddings are normalised again,
differentiably, because search normalises them too.

Only losses of scores are nested. The distribution regulariser uses the whole embedding: a squared distance is the sum
over the components, so it contains the first ones already.
"""

from __future__ import annotations

from dataclasses import replace

from torch.nn import functional

from raytriever.errors import ConfigError
from raytriever.losses.config import LossConfig
from raytriever.losses.engine.batch import Candidates


def narrower_widths(config: LossConfig, whole: int) -> tuple[int, ...]:
    """Return the widths below the whole width at which the loss counts too, the largest first.

    Args:
        config: settings of the loss.
        whole: number of components of an embedding.

    Raises:
        ConfigError: a width exceeds the whole width.
    """
    widths = config.widths
    if widths and widths[0] > whole:
        raise ConfigError(
            f"asks for {widths[0]} components, but embeddings have {whole}",
            "--matryoshka-dims",
            f"give at most {whole}",
        )
    return tuple(width for width in widths if width < whole)


def narrow_candidates(batch: Candidates, width: int, unit_length: bool) -> Candidates:
    """Return the same rows and candidates with their first components only; differentiable.

    Args:
        batch: the gathered batch, in working precision.
        width: number of components to keep.
        unit_length: normalise the cut embeddings to length one.
    """
    queries, embeddings = (
        functional.normalize(x[:, :width], dim=-1) if unit_length else x[:, :width].contiguous()
        for x in (batch.queries, batch.embeddings)
    )
    return replace(batch, queries=queries, embeddings=embeddings)
