"""Statistics of a data set, which `prepare` prints."""

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
    """Return the statistics of a data set with all splits opened, as texts by name.

    `sides` are statistics from the manifest that `prepare` wrote. `lengths` has, for `documents` and `queries`, the
    maximum number of tokens that a model reads of a text. `around` of these are special tokens."""
    statistics = {
        "documents": f"{len(dataset.documents):,}",
        "queries": f"{len(dataset.queries):,}",
        "repeated documents with the same id": f"{sides['documents']['repeated']:,}",
        "passages that are copies of others, which count as one": f"{sides['documents']['same_text']:,}",
        "queries that are copies of others, which count as one": f"{sides['queries']['same_text']:,}",
    }
    for split, rows in dataset.judgements.items():
        queries = np.unique(rows.queries)
        positives = dataset.positives(split)
        statistics[f"{split}: queries"] = f"{len(queries):,}"
        statistics[f"{split}: judgements a query"] = _spread(np.unique(rows.queries, return_counts=True)[1])
        statistics[f"{split}: positives a query"] = _spread(np.diff(positives.offsets))
        without = len(queries) - len(positives)
        if without:
            statistics[f"{split}: queries without a positive"] = f"{without:,}"
        if split in dataset.absent:
            statistics[f"{split}: positives not in the corpus"] = f"{len(dataset.absent[split]):,}"
        if split in dataset.unanswerable:
            statistics[f"{split}: queries that no document answers"] = f"{len(dataset.unanswerable[split]):,}"
    if dataset.tokens is not None:
        for side, column in (("documents", dataset.tokens.documents), ("queries", dataset.tokens.queries)):
            tokens = column.lengths() + around
            if not len(tokens):  # a corpus without queries
                continue
            marks = " / ".join(f"{value:.0f}" for value in np.percentile(tokens, PERCENTILES))
            cut = (tokens > lengths[side]).mean()
            statistics[f"{side}: tokens, {' / '.join(f'{p} %' for p in PERCENTILES)} / most"] = (
                f"{marks} / {tokens.max():,}"
            )
            statistics[f"{side}: cut at {lengths[side]} tokens"] = f"{cut:.1%}"
    return statistics | {"bad rows left out": f"{dataset.quarantine.total:,}"}


def _spread(counts: ndarray) -> str:
    return f"{counts.mean():.2f} ({counts.min():,} to {counts.max():,})" if len(counts) else "-"
