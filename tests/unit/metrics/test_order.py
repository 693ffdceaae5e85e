"""The order of results against sorting tuples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.metrics.inputs import MetricInputError
from raytriever.metrics.order import order_results

SCORES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, -1e-45, 3e38, 1e300, -np.inf, np.inf, 1 + 1e-12])


@settings(deadline=None, max_examples=60)
@given(data=st.data(), documents=st.integers(1, 12), ready=st.booleans())
def test_by_float32_score_then_place_then_what_is_not_there(data: st.DataObject, documents: int, ready: bool) -> None:
    scores = np.array(data.draw(st.lists(SCORES, min_size=documents, max_size=documents)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    ties, listed = rng.permutation(documents), rng.permutation(documents)
    if ready:
        order = np.lexsort((ties[listed], -scores.astype(np.float64)))
        scores, listed = scores[order], listed[order]
    listed = np.where(rng.random(documents) < 0.2, -1, listed)
    with np.errstate(over="ignore"):
        single = scores.astype(np.float32)
    pairs = sorted((-float(s), ties[d], d) for s, d in zip(single, listed, strict=True) if d >= 0)
    expected = [d for _, _, d in pairs] + [-1] * (documents - len(pairs))
    assert order_results(np.stack([scores, scores]), np.stack([listed, listed]), ties).tolist() == [expected] * 2


def test_a_score_that_is_nan_has_no_place() -> None:
    with pytest.raises(MetricInputError, match="1 scores are NaN"):
        order_results(np.array([[1.0, np.nan]]), np.array([[0, 1]]), np.arange(2))
