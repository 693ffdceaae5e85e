"""What a round of mining changed, in numbers for the tracker."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.negatives_table import NegativesTable


def overlap(table: NegativesTable, before: NegativesTable | None) -> float:
    """The share of a table's rows (query, document) that the table before it has too, in [0, 1]; 0 for no rows."""
    if before is None or not len(table) or not len(before):
        return 0.0
    size = 1 + max(int(table.documents.max()), int(before.documents.max()))
    return float(np.isin(_pairs(table, size), _pairs(before, size), assume_unique=True).mean())


def shares(counts: dict[str, int], candidates: int) -> dict[str, float]:
    """Counts as shares of all candidates, 0 where there were none."""
    return {name: count / candidates if candidates else 0.0 for name, count in counts.items()}


def _pairs(table: NegativesTable, size: int) -> Int64[ndarray, " rows"]:
    return table.queries * size + table.documents
