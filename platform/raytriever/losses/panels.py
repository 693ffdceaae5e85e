"""Row panels of the score matrix in one reused buffer, sized by a byte budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.losses.candidates import Candidates

PANEL_BYTES = 64 << 20


@dataclass(frozen=True)
class Panel:
    """Some rows of the score matrix, whole.

    Args:
        rows: which rows of this worker.
        queries: their embeddings, scaled as the scores are.
        scores: their scores; the loss overwrites them with its gradient.
        excluded: row within the panel, and column, of the pairs that are no negatives.
    """

    rows: slice
    queries: Float[Tensor, "rows width"]
    scores: Float[Tensor, "rows candidates"]
    excluded: tuple[Tensor, Tensor]

    def exclude(self, score: float) -> None:
        """Give every pair that is no negative a score that counts for nothing."""
        self.scores[self.excluded] = score


class Panels:
    """Iterates over a worker's rows, computing each panel's scores when it is reached."""

    def __init__(
        self,
        queries: Float[Tensor, "rows width"],
        embeddings: Float[Tensor, "candidates width"],
        candidates: Candidates,
    ) -> None:
        self._queries, self._embeddings = queries, embeddings
        row_bytes = len(embeddings) * queries.element_size()
        self.height = min(len(queries), max(1, PANEL_BYTES // row_bytes))
        self._rows, self._columns = candidates.excluded_rows, candidates.excluded_columns
        starts = torch.arange(0, len(queries) + self.height, self.height, device=self._rows.device)
        self._bounds = torch.searchsorted(self._rows, starts).tolist()

    def __iter__(self) -> Iterator[Panel]:
        buffer = self._queries.new_empty(self.height, len(self._embeddings))
        for number, start in enumerate(range(0, len(self._queries), self.height)):
            rows = slice(start, min(start + self.height, len(self._queries)))
            queries = self._queries[rows]
            scores = torch.mm(queries, self._embeddings.T, out=buffer[: len(queries)])
            part = slice(self._bounds[number], self._bounds[number + 1])
            yield Panel(rows, queries, scores, (self._rows[part] - start, self._columns[part]))
