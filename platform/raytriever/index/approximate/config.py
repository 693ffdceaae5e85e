"""The settings of approximate search. Imports nothing heavy: the command line reads it for `--help`."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.options import check_changed, option

INDEXES = ("flat", "ivf", "ivfpq", "hnsw", "vamana", "roargraph")
GRAPHS = ("hnsw", "vamana", "roargraph")
# Lists probed or documents held by a walk, where nothing is said.
EFFORT = {"flat": 1, "ivf": 16, "ivfpq": 16, "hnsw": 64, "vamana": 64, "roargraph": 64}
_GRAPHS = f"index={'|'.join(GRAPHS)}"


@dataclass(frozen=True)
class IndexConfig:
    """Which index, and how it is built and asked. What is not given suits the corpus or the kind."""

    index: str = option("hnsw", "kind of index; flat is exact", choices=INDEXES)
    effort: int | None = option(
        None,
        "lists to search (ivf, ivfpq; default: 16), or candidates kept during the search of a graph (default: 64)",
        minimum=1,
        needs="index!=flat",
    )
    lists: int | None = option(
        None, "lists of an inverted file (default: 4 sqrt(documents))", minimum=1, needs="index=ivf|ivfpq"
    )
    code_bytes: int | None = option(
        None,
        "bytes of the code of a document, a divisor of the width (ivfpq; default: a quarter of the width)",
        minimum=1,
        needs="index=ivfpq",
    )
    degree: int | None = option(
        None, "neighbours of a document in a graph (default: 32)", minimum=2, maximum=1024, needs=_GRAPHS
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
        needs="index=roargraph",
    )
    training_split: str | None = option(
        None, "split whose queries build the graph (roargraph; default: train)", needs="index=roargraph"
    )

    def value(self, name: str) -> int:
        """A number that was given, or its default."""
        defaults = {"degree": 32, "build_beam": 200, "nearest": 100, "effort": EFFORT[self.index]}
        given: int | None = getattr(self, name)
        return defaults[name] if given is None else given


def check_index(config: IndexConfig) -> None:
    """Refuse settings that the chosen index does not have; raises `ConfigError`."""
    check_changed(config)
