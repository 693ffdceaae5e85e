"""Questions of another data set, as questions that the corpus of an evaluated one does not answer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.data.prepare.pipeline import in_processes
from raytriever.errors import DataError, setting


def foreign_questions(
    path: str, split: str, max_bad_rows: float, dataset: RetrievalDataset, log: Callable[[str], None]
) -> list[str]:
    """Return the questions of a split of another data set that the corpus of this one does not answer: those of other
    texts than its queries, and without a relevant passage that is in it too."""
    other = open_dataset(path, [split], max_bad_rows=max_bad_rows, run=in_processes)
    asked = [*other.relevant_queries(split).tolist(), *other.unanswerable.get(split, np.array([], int)).tolist()]
    judged = other.judgements[split]
    is_here = (judged.scores > 0) & np.isin(other.documents.forms[judged.documents], dataset.documents.forms)
    answered = set(judged.queries[is_here].tolist())
    known = set(dataset.queries.forms.tolist())
    forms = other.queries.forms[asked].tolist()
    kept = [query for query, form in zip(asked, forms, strict=True) if form not in known and query not in answered]
    if len(kept) < len(asked):
        log(
            f"{other.name}: {len(asked) - len(kept):,} of {len(asked):,} questions are left out: {dataset.name} has "
            "the question, or a relevant passage of it"
        )
    if not kept:
        what = f"has no question that {dataset.name} does not have" if asked else "has no question"
        raise DataError(what, f"{other.name}, split {split!r}", f"leave it out of {setting('unanswerable')}")
    return [str(other.queries.texts[query]) for query in kept]
