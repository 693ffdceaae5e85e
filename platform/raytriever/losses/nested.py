"""Nested embeddings: the first components of an embedding retrieve too (Matryoshka; Kusupati et al., 2022, Eq. 1).

    L = sum over m in M of L_m,   L_m the loss of the first m components,

every width counting alike and the whole one always among them (arXiv:2205.13147, with c_m = 1). Candidates are gathered
once, whole, and cut where they have come together. Where a model compares by cosine, what is cut is brought to length
one again, differentiably: so it will be read.

Only losses of scores are nested. The distribution regulariser stays with the whole embedding: a squared distance is the
sum over the components, so the first ones are in it already.
"""

from __future__ import annotations

from dataclasses import replace

from torch.nn import functional

from raytriever.errors import ConfigError
from raytriever.losses.config import LossConfig
from raytriever.losses.engine.batch import Candidates


def narrower_widths(config: LossConfig, whole: int) -> tuple[int, ...]:
    """The widths below that of the whole embedding at which the loss counts, the largest first.

    Args:
        config: of the loss.
        whole: components of an embedding.

    Raises:
        ConfigError: one of them is more than the whole.
    """
    widths = config.widths
    if widths and widths[0] > whole:
        raise ConfigError(
            f"{widths[0]} components, embeddings have {whole}", "--matryoshka-dims", f"give at most {whole}"
        )
    return tuple(width for width in widths if width < whole)


def narrowed(batch: Candidates, width: int, unit_length: bool) -> Candidates:
    """The same rows and candidates by their first components, differentiable.

    Args:
        batch: gathered, in working precision.
        width: how many components are kept.
        unit_length: whether embeddings have length one, and are to have it again.
    """
    queries, embeddings = (
        functional.normalize(x[:, :width], dim=-1) if unit_length else x[:, :width].contiguous()
        for x in (batch.queries, batch.embeddings)
    )
    return replace(batch, queries=queries, embeddings=embeddings)
