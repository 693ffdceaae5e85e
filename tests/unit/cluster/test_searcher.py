"""An actor that searches opens its shards once, however many batches of queries it answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from raytriever.cluster import actor_pool
from raytriever.cluster.actor_pool import PoolActor
from raytriever.retrieval.index.rank_keys import TieOrder


def test_a_searcher_opens_its_documents_once(monkeypatch: pytest.MonkeyPatch) -> None:
    documents, opened = np.eye(6, dtype=np.float32), []

    class Store:
        plan: ClassVar = SimpleNamespace(shard_rows=6)

        def __len__(self) -> int:
            return len(documents)

        def blocks(self, shards: list[int]) -> list[tuple[int, np.ndarray]]:
            return [(0, documents)]

    monkeypatch.setattr(actor_pool.EmbeddingStore, "open", lambda path: opened.append(path) or Store())
    actor, order = PoolActor.__new__(PoolActor), TieOrder.of(np.arange(6))
    actor._corpus = None
    for row in (4, 2):
        _, best = order.read(actor.search("store", [0], documents[[row]], 1, order))
        assert best.tolist() == [[row]]
    assert len(opened) == 1
