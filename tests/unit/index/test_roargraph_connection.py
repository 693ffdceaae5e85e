"""Last step of RoarGraph, compared with a plain loop: new neighbours, the entry, and edges to unreachable documents."""

from __future__ import annotations

import numpy as np
import pytest
from numpy import ndarray

from raytriever.index.approximate import roargraph
from raytriever.index.approximate.graph import Graph
from raytriever.index.approximate.roargraph import BATCHES, SMALLEST_BATCH, RoarGraph, connect, project
from raytriever.index.approximate.synthetic import control

Edges = list[list[int]]


def squared_distance(documents: ndarray, one: int, other: int) -> float:
    return float(np.square(documents[one] - documents[other]).sum())


def near(documents: ndarray, row: int, others: set[int]) -> list[int]:
    return sorted(others - {row}, key=lambda other: (squared_distance(documents, row, other), other))


def chosen(documents: ndarray, row: int, others: set[int], room: int) -> list[int]:
    edges: list[int] = []
    for other in near(documents, row, others):
        if len(edges) < room and all(
            squared_distance(documents, row, other) < squared_distance(documents, other, one) for one in edges
        ):
            edges.append(other)
    return edges


def beam_of(documents: ndarray, edges: Edges, entry: int, row: int, beam: int) -> set[int]:
    seen, expanded, pool = {entry}, set(), [entry]
    while waiting := [one for one in pool if one not in expanded]:
        expanded.add(waiting[0])
        fresh = [other for other in edges[waiting[0]] if other not in seen]
        seen |= set(fresh)
        pool = sorted([*pool, *fresh], key=lambda other: (squared_distance(documents, row, other), other))[:beam]
    return set(pool)


def reached_from(edges: Edges, entry: int) -> set[int]:
    reached, waiting = {entry}, [entry]
    while waiting:
        fresh = set(edges[waiting.pop()]) - reached
        reached |= fresh
        waiting += fresh
    return reached


def literal_connect(projected: Edges, documents: ndarray, degree: int, beam: int, seed: int) -> tuple[Edges, int]:
    count, edges = len(documents), [list(own) for own in projected]
    some = [row for row in range(count) if projected[row]] or range(count)
    centre = documents.mean(0, dtype=np.float64)
    entry = min(some, key=lambda row: (np.square(documents[row] - centre).sum(), row))
    order, start = np.random.default_rng(seed).permutation(count).tolist(), 0
    while start < count:
        batch = order[start : start + max(SMALLEST_BATCH, min(start, count // BATCHES))]
        start += len(batch)
        new = {}
        for row in batch:
            result = chosen(documents, row, beam_of(documents, edges, entry, row, beam), degree)
            new[row] = [other for other in result if other not in edges[row]][: 2 * degree - len(edges[row])]
        for row in batch:
            edges[row] += new[row]
        back: dict[int, set[int]] = {}
        for row in batch:
            for other in edges[row][len(projected[row]) :]:
                back.setdefault(other, set()).add(row)
        for row, sources in back.items():
            room = 2 * degree - len(projected[row])
            candidates = {*edges[row][len(projected[row]) :], *(sources - set(projected[row]))}
            edges_of_row = candidates if len(candidates) <= room else chosen(documents, row, candidates, room)
            edges[row] = [*projected[row], *edges_of_row]
    for lost in range(count):
        reached = reached_from(edges, entry)
        if lost not in reached:
            free = {row for row in reached if len(edges[row]) < 2 * degree}
            edges[near(documents, lost, free)[0]].append(lost)
    return edges, entry


def edges_of(graph: Graph) -> list[set[int]]:
    return [set(row[:degree].tolist()) for row, degree in zip(graph.neighbours, graph.degrees, strict=True)]


@pytest.mark.parametrize("queries", [0, 40], ids=["documents-alone", "queries"])
def test_documents_are_connected_as_by_a_plain_loop(queries: int) -> None:
    rng = np.random.default_rng(11)
    # Exact distances, lengths that differ, and a cloud of its own that no walk finds.
    documents = rng.integers(-4, 5, (700, 5)).astype(np.float32) * rng.integers(1, 4, (700, 1)).astype(np.float32)
    documents[:30] += 200
    degree, beam = 4, 12
    nearest = np.array([rng.permutation(670)[:6] + 30 for _ in range(queries)], np.int32).reshape(queries, 6)
    neighbours, degrees = project(nearest, documents, degree)
    projected = [row[:count].tolist() for row, count in zip(neighbours, degrees, strict=True)]
    expected, entry = literal_connect(projected, documents, degree, beam, 3)
    graph = connect(neighbours, degrees, documents, beam, 3)
    assert graph.entry == entry
    assert edges_of(graph) == [set(own) for own in expected]


def test_pieces_of_training_queries_give_the_same_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = control(300, 1, width=24, rank=8, common=4, own=2)
    whole = RoarGraph.build(drawn.documents, drawn.training, 6, 10, 20, 0, 1).graph
    monkeypatch.setattr(roargraph, "PIECE", 70)
    pieces = RoarGraph.build(drawn.documents, drawn.training, 6, 10, 20, 0, 1).graph
    assert pieces.neighbours.tobytes() == whole.neighbours.tobytes()
