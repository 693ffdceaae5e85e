"""RoarGraph: its steps compared with plain loops, and the same graph at any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy import ndarray
from synthetic import control

from raytriever.core.errors import StorageError
from raytriever.retrieval.index.approximate import roargraph
from raytriever.retrieval.index.approximate.ann_index import recall
from raytriever.retrieval.index.approximate.neighbor_graph import (
    Graph,
    choose_neighbors,
    mark_reachable,
    read_only,
    walk_all,
)
from raytriever.retrieval.index.approximate.roargraph import RoarGraph, connect, project
from raytriever.retrieval.index.exact_top_k import top_k

SET = control(1_500, 60, dim=24, rank=8, common=4, own=2)


Edges = list[list[int]]


def squared_distance(documents: ndarray, first: int, other: int) -> float:
    return float(np.square(documents[first] - documents[other]).sum())


def near(documents: ndarray, row: int, others: set[int]) -> list[int]:
    return sorted(others - {row}, key=lambda other: (squared_distance(documents, row, other), other))


def chosen(documents: ndarray, row: int, others: set[int], room: int, fill: bool = False) -> list[int]:
    edges: list[int] = []
    for other in near(documents, row, others):
        if len(edges) < room and all(
            squared_distance(documents, row, other) < squared_distance(documents, other, edge) for edge in edges
        ):
            edges.append(other)
    rest = [other for other in near(documents, row, others) if other not in edges] if fill else []
    return [*edges, *rest][:room]


def walked(edges: Edges, entry: int, worth: Callable[[int], tuple[float, int]], beam: int) -> tuple[list[int], int]:
    """Rows of the pool, the smallest worth first, and how many rows were met."""
    seen, expanded, pool = {entry}, set(), [entry]
    while waiting := [row for row in pool if row not in expanded]:
        expanded.add(waiting[0])
        fresh = [other for other in edges[waiting[0]] if other not in seen]
        seen |= set(fresh)
        pool = sorted([*pool, *fresh], key=worth)[:beam]
    return pool, len(seen)


@given(st.integers(0, 10_000), st.integers(1, 12), st.booleans())
@settings(max_examples=40, deadline=None)
def test_neighbors_are_chosen_by_the_rule(seed: int, room: int, fill: bool) -> None:
    rng = np.random.default_rng(seed)
    documents = read_only(rng.integers(-3, 4, (30, 4)).astype(np.float32))  # exact distances, many of them equal
    candidates = rng.integers(0, 30, 25).astype(np.int32)
    out = np.empty(room, np.int32)
    count = choose_neighbors(np.int64(5), candidates, documents, fill, out)
    assert out[:count].tolist() == chosen(documents, 5, set(candidates.tolist()), room, fill)


def test_a_walk_equals_a_plain_loop() -> None:
    documents = np.random.default_rng(1).integers(-4, 5, (300, 12)).astype(np.float32)  # exact scores
    queries = np.random.default_rng(2).integers(-4, 5, (20, 12)).astype(np.float32)
    rng = np.random.default_rng(3)
    neighbors = np.stack([rng.permutation(300)[:7] for _ in range(300)]).astype(np.int32)
    degrees = rng.integers(0, 8, 300).astype(np.int32)
    degrees[17] = 7
    graph = Graph(neighbors, degrees, 17)
    edges = [neighbor[:degree].tolist() for neighbor, degree in zip(neighbors, degrees, strict=True)]
    for beam in (5, 40):
        rows, candidates = walk_all(graph, queries, documents, 5, beam, 2)
        for query, actual, scored in zip(queries, rows, candidates, strict=True):
            scores = documents @ query
            pool, seen = walked(edges, 17, lambda row: (-scores[row], row), beam)  # noqa: B023
            assert actual[actual >= 0].tolist() == pool[:5]
            assert scored == seen


def test_documents_near_a_query_are_connected_through_its_pivot() -> None:
    _, nearest = top_k(SET.training, SET.documents, 10, np.arange(1_500))
    neighbors, degrees = project(nearest.astype(np.int32), SET.documents, 6)
    candidates: dict[int, set[int]] = {}
    for row in nearest.tolist():
        candidates.setdefault(row[0], set()).update(row)
    back: dict[int, set[int]] = {}
    for pivot, others in candidates.items():
        for other in chosen(SET.documents, pivot, others, 6, fill=True):
            back.setdefault(other, set()).add(pivot)
            back.setdefault(pivot, set()).add(other)
    for row in range(1_500):
        own = set(neighbors[row, : degrees[row]].tolist())
        assert own <= back.get(row, set())
        assert len(own) == min(6, len(back.get(row, set())))


def test_every_document_is_reachable_for_any_queries() -> None:
    rng = np.random.default_rng(0)
    apart = rng.standard_normal((400, 8)).astype(np.float32)
    apart[:200] += 100  # two clouds
    copies = np.repeat(rng.standard_normal((4, 8)).astype(np.float32), 50, axis=0)
    for documents, training in ((apart, apart[:1]), (copies, copies), (apart[:1], apart[:2]), (apart[:3], apart[:3])):
        graph = RoarGraph.build(documents, training, 2, 5, 4, 0, 1).graph
        reached = np.zeros(len(documents), np.bool_)
        mark_reachable(graph.neighbors, graph.degrees, graph.entry, reached)
        assert reached.all()
        for row, degree in enumerate(graph.degrees):
            own = graph.neighbors[row, :degree].tolist()
            assert len(set(own)) == degree
            assert row not in own
            assert (graph.neighbors[row, degree:] == -1).all()


def test_queries_like_the_training_queries_need_few_steps() -> None:
    roar = RoarGraph.build(SET.documents, SET.training, 16, 50, 60, 0, 1)
    _, nearest = top_k(SET.training, SET.documents, 50, np.arange(1_500))
    plain = connect(*project(nearest[:0].astype(np.int32), SET.documents, 16), SET.documents, 60, 0)
    _, true = top_k(SET.shifted, SET.documents, 10, np.arange(1_500))
    ours, scored = walk_all(roar.graph, SET.shifted, SET.documents, 10, 12, 1)
    theirs, _ = walk_all(plain, SET.shifted, SET.documents, 10, 12, 1)
    assert recall(ours, true).mean() > recall(theirs, true).mean() + 0.05
    assert scored.mean() < 600


def test_damaged_graphs_are_refused(tmp_path: Path) -> None:
    Graph(np.array([[1], [0]], np.int32), np.ones(2, np.int32), 0).save(tmp_path)
    assert Graph.load(tmp_path, 2).entry == 0
    with pytest.raises(StorageError, match="has the shape 2 x 1, expected 3 x any"):
        Graph.load(tmp_path, 3)
    np.save(tmp_path / "neighbours.npy", np.array([[7], [0]], np.int32))
    with pytest.raises(StorageError, match="not a graph of 2 documents"):
        Graph.load(tmp_path, 2)


def test_pieces_of_training_queries_give_the_same_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = control(300, 1, dim=24, rank=8, common=4, own=2)
    whole = RoarGraph.build(drawn.documents, drawn.training, 6, 10, 20, 0, 1).graph
    monkeypatch.setattr(roargraph, "PIECE", 70)
    pieces = RoarGraph.build(drawn.documents, drawn.training, 6, 10, 20, 0, 1).graph
    assert pieces.neighbors.tobytes() == whole.neighbors.tobytes()
