"""The settings of approximate search. Imports nothing heavy: the command line reads it for `--help`."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.errors import ConfigError
from raytriever.options import flag_of, option

INDEXES = ("flat", "ivf", "ivfpq", "hnsw", "vamana", "roargraph")
GRAPHS = ("hnsw", "vamana", "roargraph")
# Lists probed or documents held by a walk, where nothing is said.
EFFORT = {"flat": 1, "ivf": 16, "ivfpq": 16, "hnsw": 64, "vamana": 64, "roargraph": 64}
# Which indexes a setting is for.
_FOR = {
    "lists": ("ivf", "ivfpq"),
    "code_bytes": ("ivfpq",),
    "degree": GRAPHS,
    "build_beam": GRAPHS,
    "nearest": ("roargraph",),
    "training_split": ("roargraph",),
}


@dataclass(frozen=True)
class IndexConfig:
    """Which index, and how it is built and asked. What is not given suits the corpus or the kind."""

    index: str = option("hnsw", "what is built; flat is exact", choices=INDEXES)
    effort: int | None = option(
        None, "lists probed (ivf, ivfpq; default: 16) or documents held by a walk (graphs; default: 64)", minimum=1
    )
    lists: int | None = option(None, "lists of an inverted file; by default 4 sqrt(documents)", minimum=1)
    code_bytes: int | None = option(
        None, "bytes of a document's code, a divisor of the width (ivfpq); by default a quarter of it", minimum=1
    )
    degree: int | None = option(None, "neighbours of a document in a graph (default: 32)", minimum=2, maximum=1024)
    build_beam: int | None = option(
        None, "documents held by a walk while a graph is built (default: 200)", minimum=2, maximum=100_000
    )
    nearest: int | None = option(
        None, "documents of a training query (roargraph; default: 100)", minimum=2, maximum=10_000
    )
    training_split: str | None = option(
        None, "the split whose queries a graph is built from (roargraph; default: train)"
    )

    def value(self, name: str) -> int:
        """A number that was given, or its default."""
        defaults = {"degree": 32, "build_beam": 200, "nearest": 100, "effort": EFFORT[self.index]}
        given: int | None = getattr(self, name)
        return defaults[name] if given is None else given


def check_index(config: IndexConfig) -> None:
    """Refuse settings that the chosen index does not have; raises `ConfigError`."""
    for name, kinds in _FOR.items():
        if getattr(config, name) is not None and config.index not in kinds:
            raise ConfigError(
                f"has no effect on {config.index}", flag_of(name), f"it is for --index {' or '.join(kinds)}"
            )
