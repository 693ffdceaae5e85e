"""Documents that must not become negatives, compared with a plain loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.mining.filters import OWN_ID, RELEVANT, SAME_TEXT, ExcludedDocuments

GROUPS = st.lists(st.integers(0, 3), min_size=1, max_size=7)


@settings(max_examples=40, deadline=None)
@given(GROUPS, GROUPS, st.data())
def test_excluded_documents_are_those_of_a_loop(
    query_groups: list[int], document_groups: list[int], data: st.DataObject
) -> None:
    queries, documents = range(len(query_groups)), range(len(document_groups))
    selected = data.draw(st.lists(st.sampled_from(queries), unique=True).map(sorted))
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(queries), st.sampled_from(documents)), max_size=8))
    own = data.draw(st.lists(st.integers(-1, len(document_groups) - 1), min_size=len(selected), max_size=len(selected)))
    columns = tuple(np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    excluded = ExcludedDocuments.of(
        np.array(selected, np.int64),
        columns,  # type: ignore[arg-type]
        np.array(query_groups),
        np.array(document_groups),
        np.array(own, np.int64),
    )
    assert len(excluded.counts) == len(selected)
    for row, query in enumerate(selected):
        wanted: dict[int, int] = {}
        for other, document in pairs:
            if query_groups[other] == query_groups[query]:
                wanted[document] = RELEVANT
        for document in documents:
            if any(document_groups[document] == document_groups[each] for each, why in wanted.items() if why == 1):
                wanted.setdefault(document, SAME_TEXT)
        if own[row] >= 0:
            wanted.setdefault(own[row], OWN_ID)
        part = slice(excluded.offsets[row], excluded.offsets[row + 1])
        assert dict(zip(excluded.documents[part].tolist(), excluded.reasons[part].tolist(), strict=True)) == wanted
        assert excluded.counts[row] == len(wanted)
        padded = excluded.padded(np.array([row]))
        assert dict(zip(padded[0][0].tolist(), padded[1][0].tolist(), strict=True)) == wanted
    everything = excluded.padded(np.arange(len(selected)))
    assert (everything[0] >= 0).sum() == excluded.counts.sum()
    assert ((everything[0] < 0) == (everything[1] == 0)).all()
