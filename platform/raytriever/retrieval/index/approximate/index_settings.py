"""Settings of approximate search. This module imports nothing heavy, because `--help` reads it."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.core.options import Need, option

INDEXES = ("flat", "ivf", "ivfpq", "hnsw", "vamana", "roargraph")
GRAPHS = ("hnsw", "vamana", "roargraph")
# Default numbers of probed lists, or beam widths of a graph search.
EFFORT = {"flat": 1, "ivf": 16, "ivfpq": 16, "hnsw": 64, "vamana": 64, "roargraph": 64}
_GRAPHS = Need("index", *GRAPHS)
_ROARGRAPH = Need("index", "roargraph")


@dataclass(frozen=True)
class IndexConfig:
    """Settings of an index: its kind, its construction and its search. Defaults depend on the corpus and the kind."""

    index: str = option("hnsw", "kind of index; flat is exact", choices=INDEXES)
    effort: int | None = option(
        None,
        "lists to search (ivf, ivfpq; default: 16), or candidates kept during the search of a graph (default: 64)",
        minimum=1,
        needs=Need("index", "flat", negated=True),
    )
    lists: int | None = option(
        None, "lists of an inverted file (default: 4 sqrt(documents))", minimum=1, needs=Need("index", "ivf", "ivfpq")
    )
    code_bytes: int | None = option(
        None,
        "bytes of the code of a document, a divisor of the width (ivfpq; default: a quarter of the width)",
        minimum=1,
        needs=Need("index", "ivfpq"),
    )
    degree: int | None = option(
        None, "number of neighbors of a document in a graph (default: 32)", minimum=2, maximum=1024, needs=_GRAPHS
    )
    build_beam: int | None = option(
        None,
        "candidates kept during a search while a graph is built (default: 200)",
        minimum=2,
        maximum=100_000,
        needs=_GRAPHS,
    )
    nearest: int | None = option(
        None,
        "nearest documents of each training query (roargraph; default: 100)",
        minimum=2,
        maximum=10_000,
        needs=_ROARGRAPH,
    )
    training_split: str | None = option(
        None, "split whose queries build the graph (roargraph; default: train)", needs=_ROARGRAPH
    )

    def value(self, name: str) -> int:
        """Return the value of a numeric setting, or its default."""
        defaults = {"degree": 32, "build_beam": 200, "nearest": 100, "effort": EFFORT[self.index]}
        value: int | None = getattr(self, name)
        return defaults[name] if value is None else value
