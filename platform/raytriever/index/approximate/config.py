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

    index: str = option("hnsw", "what is built; flat is exact", choices=INDEXES)
    effort: int | None = option(
        None,
        "lists probed (ivf, ivfpq; default: 16) or documents held by a walk (graphs; default: 64)",
        minimum=1,
        needs="index!=flat",
    )
    lists: int | None = option(
        None, "lists of an inverted file; by default 4 sqrt(documents)", minimum=1, needs="index=ivf|ivfpq"
    )
    code_bytes: int | None = option(
        None,
        "bytes of a document's code, a divisor of the width (ivfpq); by default a quarter of it",
        minimum=1,
        needs="index=ivfpq",
    )
    degree: int | None = option(
        None, "neighbours of a document in a graph (default: 32)", minimum=2, maximum=1024, needs=_GRAPHS
    )
    build_beam: int | None = option(
        None,
        "documents held by a walk while a graph is built (default: 200)",
        minimum=2,
        maximum=100_000,
        needs=_GRAPHS,
    )
    nearest: int | None = option(
        None,
        "documents of a training query (roargraph; default: 100)",
        minimum=2,
        maximum=10_000,
        needs="index=roargraph",
    )
    training_split: str | None = option(
        None, "the split whose queries a graph is built from (roargraph; default: train)", needs="index=roargraph"
    )

    def value(self, name: str) -> int:
        """A number that was given, or its default."""
        defaults = {"degree": 32, "build_beam": 200, "nearest": 100, "effort": EFFORT[self.index]}
        given: int | None = getattr(self, name)
        return defaults[name] if given is None else given


def check_index(config: IndexConfig) -> None:
    """Refuse settings that the chosen index does not have; raises `ConfigError`."""
    check_changed(config)
