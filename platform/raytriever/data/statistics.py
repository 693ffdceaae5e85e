"""What a prepared data set holds, in figures: the table that `prepare` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset

PERCENTILES = (50, 90, 99)


def describe(
    dataset: RetrievalDataset, sides: Mapping[str, Any], lengths: Mapping[str, int], around: int
) -> dict[str, str]:
    """Lines of a table, name and value.

    Args:
        dataset: opened with all its splits.
        sides: what `prepare` keeps of documents and queries in the manifest.
        lengths: for `documents` and `queries` the tokens that a model reads of a text at most.
        around: how many of them are special tokens.
    """
    found = {
        "documents": f"{len(dataset.documents):,}",
        "queries": f"{len(dataset.queries):,}",
        "documents repeated under their id": f"{sides['documents']['repeated']:,}",
        "documents with the text of another": f"{sides['documents']['same_text']:,}",
        "queries with the text of another": f"{sides['queries']['same_text']:,}",
    }
    for split, rows in dataset.judgements.items():
        queries = np.unique(rows.queries)
        positives = dataset.positives(split)
        found[f"{split}: queries"] = f"{len(queries):,}"
        found[f"{split}: judgements a query"] = _spread(np.unique(rows.queries, return_counts=True)[1])
        found[f"{split}: positives a query"] = _spread(np.diff(positives.offsets))
        without = len(queries) - len(positives)
        if without:
            found[f"{split}: queries without a positive"] = f"{without:,}"
        if split in dataset.absent:
            found[f"{split}: positives not in the corpus"] = f"{len(dataset.absent[split]):,}"
    if dataset.tokens is not None:
        for side, column in (("documents", dataset.tokens.documents), ("queries", dataset.tokens.queries)):
            tokens = column.lengths() + around
            marks = " / ".join(f"{value:.0f}" for value in np.percentile(tokens, PERCENTILES))
            cut = (tokens > lengths[side]).mean()
            found[f"{side}: tokens, {' / '.join(f'{p} %' for p in PERCENTILES)} / most"] = f"{marks} / {tokens.max():,}"
            found[f"{side}: cut at {lengths[side]} tokens"] = f"{cut:.1%}"
    return found | {"bad rows left out": f"{dataset.quarantine.total:,}"}


def _spread(counts: ndarray) -> str:
    """Mean and range of whole numbers."""
    if not len(counts):
        return "-"
    return f"{counts.mean():.2f} ({counts.min():,} to {counts.max():,})"
