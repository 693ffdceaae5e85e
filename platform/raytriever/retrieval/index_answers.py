"""What an index answers: the best passages for a query, and how its answers compare with the exact ones."""

from __future__ import annotations

import textwrap

from raytriever.index.measure import measure
from raytriever.retrieval.encode import encode_texts
from raytriever.retrieval.index_job import Indexed
from raytriever.retrieval.index_table import columns, count
from raytriever.retrieval.search_store import search_store
from raytriever.terminal import one_line

CUTOFFS = (10, 100)


def answers(indexed: Indexed, query: str, top: int) -> str:
    """The best passages for a query, with their scores, as text."""
    embedding = encode_texts(indexed.retriever, [query], "query", "query")
    scores, found = indexed.index.search(embedding, top)
    documents = indexed.dataset.documents
    lines = []
    for score, place in zip(scores[0], found[0], strict=True):
        if place >= 0:
            title = documents.titles[place]
            shown = f"  {one_line(title)}" if title not in ("", documents.ids[place]) else ""
            lines.append(f"{score:8.4f}  {one_line(documents.ids[place])}{shown}")
            lines.append(textwrap.indent(textwrap.shorten(documents.texts[place], 240, placeholder=" …"), " " * 10))
    return "\n".join(lines)


def measured(indexed: Indexed, split: str) -> str:
    """Recall against exact search, candidates and queries a second on one thread, as a table.

    Raises:
        ConfigError: the split has no judged query.
    """
    queries, index = indexed.queries(split), indexed.index
    rows = []
    for k in CUTOFFS:
        _, true = search_store(indexed.store, queries, k, index.ties)
        point = measure(index, queries, true, index.effort)
        rows.append([f"{k}", f"{point.recall:.4f}", count(point.candidates), count(point.qps)])
    head = ["k", "recall of the exact k", "candidates a query", "queries/s, 1 thread"]
    return f"{len(queries):,} queries of {split}, effort {index.effort}\n" + columns(head, rows)
