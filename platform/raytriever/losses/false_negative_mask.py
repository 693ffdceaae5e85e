"""Masking of likely false negatives by a guide: a frozen encoder that also embeds the texts of the batch.

With g(q, d), the guide's similarity of query q and document d, and a margin m,

    (q, d) is masked if g(q, d) > t - m |t|,   where t is the lowest g(q, p) of the positives p of q in the batch.

GISTEmbed (Solatorio, 2024, arXiv:2402.16829) is the case of one positive and m = 0. The margin m is a fraction of t, as
in `raytriever mine --relative-margin` (TopK-PercPos; NV-Retriever, 2024, arXiv:2407.15831), so it is valid for cosine
and dot product. Because of |t|, the bound is below t even if t < 0.

A masked pair is left out of the loss, as if the document were a known positive of the query: it is neither a negative
nor a positive. The document can still be a negative of other queries. If passages search for queries, the same rule
applies with the roles exchanged. The teacher score of a masked pair is left out too.

Each worker compares its own queries with the passages of all workers. Gathering the guide's embeddings costs half as
much as gathering trained embeddings, because no gradient returns. A masked pair needs 16 bytes. The similarities are
computed in panels and never stored as a whole. The CPU waits for the GPU once per panel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from raytriever.core.errors import LossInputError, setting
from raytriever.losses.batch_and_temperature import PAD, Candidates, RowRelevance, TeacherGroup, check_batch
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.score_matrix import panel_height

# Metrics to log: the masked fraction of all negatives, and the largest masked fraction of a query's negatives.
MASKED, MOST_MASKED = "guide_masked", "guide_most_masked"


@dataclass(frozen=True)
class GuideEmbeddings:
    """The guide's embeddings of this worker's queries and passages."""

    queries: Float[Tensor, "queries guide_dim"]
    passages: Float[Tensor, "passages guide_dim"]


@torch.no_grad()
def mask_false_negatives(
    relevance: RowRelevance, guide: GuideEmbeddings, margin: float, workers: WorkerGroup
) -> tuple[RowRelevance, dict[str, Tensor]]:
    """Remove likely false negatives from the relevance, with the margin m. Also return two fractions to log.

    Raises:
        LossInputError: shapes do not agree, or an embedding of any worker is not finite.
    """
    check_batch(guide.queries, guide.passages, relevance)
    passages = relevance.keep(workers.all_gather(guide.passages))
    batch = Candidates(guide.queries, passages, relevance, guide.queries.new_zeros(()))
    masked, most = _mask(batch, margin, workers)
    count = relevance.negatives - masked.negatives
    statistics = {MASKED: torch.full_like(most, count / max(1, relevance.negatives)), MOST_MASKED: most}
    if relevance.exchanged is not None:
        exchanged = batch.exchange_roles(workers)
        masked = replace(masked, exchanged=_mask(exchanged, margin, workers)[0])
    return masked, statistics


def _mask(batch: Candidates, margin: float, workers: WorkerGroup) -> tuple[RowRelevance, Float[Tensor, ""]]:
    """Remove the pairs that the guide masks. Also return the largest masked fraction of the negatives of a row."""
    relevance, candidates = batch.relevance, len(batch.embeddings)
    pairs, totals = list[Tensor](), list[Tensor]()
    groups = {name: group for name in ("group", "labels") if (group := getattr(relevance, name)) is not None}
    in_group = {name: list[Tensor]() for name in groups}
    starts = relevance.excluded_starts
    height = panel_height(len(batch.queries), candidates * batch.queries.element_size(), batch.queries.device.type)
    for start in range(0, len(batch.queries), height):
        rows = slice(start, min(start + height, len(batch.queries)))
        is_above = _above_positives(batch.queries[rows] @ batch.embeddings.T, relevance.positives[rows], margin)
        known = slice(int(starts[rows.start]), int(starts[rows.stop]))
        excluded = relevance.excluded_rows[known] - start, relevance.excluded_columns[known]
        # Positives and known positives keep their teacher scores. In the relevance they stay excluded.
        is_above[excluded] = False
        for name, group in groups.items():
            in_group[name].append(is_above.gather(1, group.columns[rows].clamp(min=0)))
        is_above[excluded] = True
        # `nonzero` sorts by row, then by column, as `RowRelevance` requires.
        pairs.append(is_above.nonzero() + torch.tensor([start, 0], device=is_above.device))
        totals.append(is_above.sum(1))
    (excluded_rows, excluded_columns), total = torch.cat(pairs).T.contiguous(), torch.cat(totals)
    before = torch.from_numpy(np.diff(starts)).to(total.device)
    new = total - before
    most = workers.all_reduce((new / (candidates - before).clamp(min=1)).max(), "max")
    is_spoilt = ~(torch.isfinite(batch.queries).all() & torch.isfinite(batch.embeddings).all())
    masked, spoilt = workers.all_reduce(torch.stack([new.sum(), is_spoilt.to(new)])).tolist()
    if spoilt:
        what = "embeddings of the guide hold NaN or infinity"
        raise LossInputError(what, setting("guide"), f"check the guide's files, or give {setting('precision')} fp32")
    left: Any = {name: _without_masked(group, torch.cat(in_group[name])) for name, group in groups.items()}
    result = replace(
        relevance,
        excluded_rows=excluded_rows,
        excluded_columns=excluded_columns,
        excluded_starts=np.concatenate([[0], total.cumsum(0).cpu().numpy()]),
        negatives=relevance.negatives - masked,
        **left,
    )
    return result, most


def _above_positives(
    scores: Float[Tensor, "rows candidates"], positives: Int64[Tensor, "rows positives"], margin: float
) -> Bool[Tensor, "rows candidates"]:
    """Return True where the guide's similarity of a candidate is above the bound of the row's positives."""
    lowest = scores.gather(1, positives.clamp(min=0)).masked_fill(positives == PAD, torch.inf).amin(1)
    return scores > (lowest - margin * lowest.abs())[:, None]


def _without_masked(group: TeacherGroup, is_masked: Bool[Tensor, "rows group"]) -> TeacherGroup:
    is_masked = is_masked & group.is_scored
    return replace(
        group,
        columns=group.columns.masked_fill(is_masked, PAD),
        is_negative=group.is_negative & ~is_masked,
        passages=group.passages - int(is_masked.sum()),
    )
