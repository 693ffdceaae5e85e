"""An actor that searches opens its shards once, however many batches of queries it answers."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from raytriever.cluster import evaluation
from raytriever.cluster.evaluation import _Searcher
from raytriever.index.ranking import TieOrder


def test_a_searcher_opens_its_documents_once(monkeypatch: pytest.MonkeyPatch) -> None:
    documents, opened = np.eye(6, dtype=np.float32), []

    class Store:
        meta: ClassVar = {"shard_rows": 6}

        def __len__(self) -> int:
            return len(documents)

    monkeypatch.setattr(evaluation.EmbeddingStore, "open", lambda path: opened.append(path) or Store())
    monkeypatch.setattr(evaluation, "searchable_blocks", lambda store, shards: [(0, documents)])
    searcher, order = _Searcher("store", [0], 1), TieOrder.of(np.arange(6))
    for row in (4, 2):
        _, best = order.read(searcher.search(documents[[row]], 1, order))
        assert best.tolist() == [[row]]
    assert len(opened) == 1
