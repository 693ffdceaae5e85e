"""Documents that must not be negatives."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.mining.filters import OWN_ID, RELEVANT, SAME_TEXT, ExcludedDocuments

GROUPS = st.lists(st.integers(0, 3), min_size=1, max_size=7)


@settings(max_examples=40, deadline=None)
@given(GROUPS, GROUPS, st.data())
def test_they_are_those_of_a_loop(query_groups: list[int], document_groups: list[int], data: st.DataObject) -> None:
    queries, documents = range(len(query_groups)), range(len(document_groups))
    asked = data.draw(st.lists(st.sampled_from(queries), unique=True).map(sorted))
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(queries), st.sampled_from(documents)), max_size=8))
    own = data.draw(st.lists(st.integers(-1, len(document_groups) - 1), min_size=len(asked), max_size=len(asked)))
    columns = tuple(np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    known = ExcludedDocuments.of(
        np.array(asked, np.int64),
        columns,  # type: ignore[arg-type]
        np.array(query_groups),
        np.array(document_groups),
        np.array(own, np.int64),
    )
    assert len(known.counts) == len(asked)
    for row, query in enumerate(asked):
        wanted: dict[int, int] = {}
        for other, document in pairs:
            if query_groups[other] == query_groups[query]:
                wanted[document] = RELEVANT
        for document in documents:
            if any(document_groups[document] == document_groups[each] for each, why in wanted.items() if why == 1):
                wanted.setdefault(document, SAME_TEXT)
        if own[row] >= 0:
            wanted.setdefault(own[row], OWN_ID)
        part = slice(known.offsets[row], known.offsets[row + 1])
        assert dict(zip(known.documents[part].tolist(), known.reasons[part].tolist(), strict=True)) == wanted
        assert known.counts[row] == len(wanted)
        padded = known.padded(np.array([row]))
        assert dict(zip(padded[0][0].tolist(), padded[1][0].tolist(), strict=True)) == wanted
    everything = known.padded(np.arange(len(asked)))
    assert (everything[0] >= 0).sum() == known.counts.sum()
    assert ((everything[0] < 0) == (everything[1] == 0)).all()
