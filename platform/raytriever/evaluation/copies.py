"""Copies of relevant passages in rankings: they count as not relevant, because judgements are of ids, as in trec_eval.

A high number says that the measured figures are too low for people, who would accept the copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raytriever.data.dataset import RetrievalDataset
from raytriever.evaluation.evaluate import Evaluation
from raytriever.evaluation.protocol import JudgedQueries


def count_copies_above(dataset: RetrievalDataset, judged: JudgedQueries, evaluation: Evaluation) -> int:
    """Return the number of queries with a copy of a relevant passage ranked above that passage."""
    copies, ranking = dataset.documents.copies, evaluation.ranking
    if not len(copies):
        return 0
    relevant = judged.is_relevant & judged.is_in_corpus
    rows, documents = judged.relevance.queries[relevant], judged.relevance.documents[relevant]
    size = len(dataset.documents)
    is_answer = np.isin(np.arange(len(ranking))[:, None] * size + ranking, rows * size + documents) & (ranking >= 0)
    texts = np.arange(len(ranking))[:, None] * size + copies.first(ranking)
    is_copy = np.isin(texts, rows * size + copies.first(documents)) & (ranking >= 0) & ~is_answer
    count = 0
    for row in np.flatnonzero(is_copy.any(1)).tolist():
        own = documents[rows == row]
        best = int(np.flatnonzero(is_copy[row])[0])
        same = own[copies.first(own) == copies.first(ranking[row, best])]
        count += not np.isin(same, ranking[row, :best]).all()
    return count


def format_copies(about: Mapping[str, Any]) -> str:
    """Describe the counts of a data set in one line; empty if no system ranks a copy above a relevant passage."""
    counts = {model: count for model, count in about.get("copies_above", {}).items() if count}
    if not counts:
        return ""
    listed = ", ".join(f"{model} {count:,}" for model, count in counts.items())
    return (
        f"Queries of {about['queries']:,} with a copy of a relevant passage ranked above it: {listed}. The copy counts "
        "as not relevant."
    )
