"""Order of results as trec_eval has it, written literally."""

from __future__ import annotations

import numpy as np
from numpy import ndarray


def order_results(scores: ndarray, documents: ndarray, ties: ndarray) -> ndarray:
    """Sort the documents of each query by float32 score, then by tie order; -1 for no document comes last."""
    with np.errstate(over="ignore"):  # a score beyond float32 is infinite
        single = scores.astype(np.float32)
    order = np.lexsort((ties[documents], -single, documents < 0), axis=1)
    return np.take_along_axis(documents, order, axis=1)
