"""Settings of approximate search. This module imports nothing heavy, because `--help` reads it."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.core.setting_declarations import Need, option

INDEXES = ("flat", "ivf", "ivfpq", "hnsw", "vamana", "roargraph")
GRAPHS = ("hnsw", "vamana", "roargraph")
# Default `nprobe` or `ef_search` of each kind.
SEARCH_SIZE = {"flat": 1, "ivf": 16, "ivfpq": 16, "hnsw": 64, "vamana": 64, "roargraph": 64}
_GRAPHS = Need("index", *GRAPHS)
_INVERTED = Need("index", "ivf", "ivfpq")
_ROARGRAPH = Need("index", "roargraph")


@dataclass(frozen=True)
class IndexConfig:
    """Settings of an index: its kind, its construction and its search. Defaults depend on the corpus and the kind."""

    index: str = option("hnsw", "kind of index; flat is exact", choices=INDEXES)
    nprobe: int | None = option(None, "lists to search (ivf, ivfpq; default: 16)", minimum=1, needs=_INVERTED)
    ef_search: int | None = option(
        None, "candidates kept during the search of a graph (efSearch; default: 64)", minimum=1, needs=_GRAPHS
    )
    lists: int | None = option(
        None, "lists of an inverted file (default: 4 sqrt(documents))", minimum=1, needs=_INVERTED
    )
    code_bytes: int | None = option(
        None,
        "bytes of the code of a document, a divisor of the dimension (ivfpq; default: a quarter of the dimension)",
        minimum=1,
        needs=Need("index", "ivfpq"),
    )
    m: int | None = option(
        None, "number of neighbors of a document in a graph (M; default: 32)", minimum=2, maximum=1024, needs=_GRAPHS
    )
    ef_construction: int | None = option(
        None,
        "candidates kept during a search while a graph is built (efConstruction; default: 200)",
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

    @property
    def search_size(self) -> int | None:
        """Number of probed lists, or of candidates kept during the search of a graph; None for the default."""
        return self.ef_search if self.index in GRAPHS else self.nprobe

    def value(self, name: str) -> int:
        """Return the value of a numeric setting, or its default."""
        defaults = {"m": 32, "ef_construction": 200, "nearest": 100, "search_size": SEARCH_SIZE[self.index]}
        value: int | None = getattr(self, name)
        return defaults[name] if value is None else value
