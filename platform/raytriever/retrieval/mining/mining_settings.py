"""Settings of mining and of teacher scoring. This module imports nothing heavy, because `--help` reads it.

The settings of `MiningConfig` have the same names and meanings as the arguments of `mine_hard_negatives` in
sentence-transformers, so their values can be copied from there."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.core.errors import ConfigError, flag_of, setting
from raytriever.core.paths import NEGATIVES, RANKING, TEACHER
from raytriever.core.setting_declarations import Need, check_changed, option
from raytriever.core.unknown_names import check_known

METHODS = ("bm25", "dense", "cross-query", "gold", "random")

# Number of candidates to examine for each requested negative, if filters or sampling may leave some candidates out.
CANDIDATES_PER_NEGATIVE = 10
# Without a judge, only these methods give scores that can be compared with a bound.
_SCORED = (Need("method", "bm25", "dense", "cross-query"), "judge")


@dataclass(frozen=True)
class MiningConfig:
    """Settings of mining: methods, filters of false negatives, and the number of negatives."""

    method: str = option(
        "bm25", f"how candidates are found: {', '.join(METHODS)}; several methods, separated by commas, fill one table"
    )
    num_negatives: int = option(10, "largest number of negatives that each method keeps for a query", minimum=1)
    range_min: int = option(
        0, "first rank that is used; rank 0 is the best document that is not known to be relevant", minimum=0
    )
    range_max: int | None = option(
        None,
        f"rank at which a ranking ends; by default {flag_of('num_negatives')} ranks after {flag_of('range_min')}, or "
        "ten times as many if candidates are sampled or may be removed",
        minimum=1,
    )
    max_score: float | None = option(None, "remove candidates with a higher score", needs=_SCORED)
    absolute_margin: float | None = option(
        None,
        "distance that a candidate must keep below the lowest score of a positive (TopK-MarginPos)",
        minimum=0,
        needs=_SCORED,
    )
    relative_margin: float | None = option(
        None,
        "this distance as a fraction of the lowest score: 0.05 keeps candidates with at most 95 % of it (TopK-PercPos)",
        minimum=0,
        needs=_SCORED,
    )
    sampling_strategy: str = option(
        "top", "which of the remaining candidates are kept: the first ones, or random ones", choices=("top", "random")
    )
    drop_answers: bool = option(False, "remove candidates that contain an answer of the query")
    judge: str = option(
        "",
        f"directory of a cross-encoder whose scores are used for margins and {flag_of('max_score')}, usually 0 to 1",
        reads=TEACHER,
        metavar="MODEL",
        needs=("relative_margin", "absolute_margin", "max_score"),
    )

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods in the given order."""
        return tuple(name.strip() for name in self.method.split(","))

    @property
    def needs_embeddings(self) -> bool:
        """Return True if a method searches embeddings."""
        return not {"dense", "cross-query"}.isdisjoint(self.methods)

    @property
    def has_score_bounds(self) -> bool:
        """Return True if candidates with high scores are removed."""
        return any(bound is not None for bound in (self.max_score, self.absolute_margin, self.relative_margin))

    @property
    def depth(self) -> int:
        """Return the rank after the last candidate of a ranking."""
        if self.range_max is not None:
            return self.range_max
        needs_spare = self.has_score_bounds or self.drop_answers or self.sampling_strategy == "random"
        return self.range_min + self.num_negatives * (CANDIDATES_PER_NEGATIVE if needs_spare else 1)

    def check(self) -> None:
        """Raise `ConfigError` for settings that contradict each other."""
        methods = self.methods
        for name in methods:
            check_known("method", name, METHODS, setting("method"))
            if methods.count(name) > 1:
                raise ConfigError(f"{name!r} is named twice", setting("method"), "name each method once")
        if self.range_min >= self.depth:
            what = f"{self.depth} is not above {setting('range_min')} {self.range_min}"
            raise ConfigError(what, setting("range_max"), "give a larger number")
        if self.num_negatives > self.depth - self.range_min:
            ranks = f"{self.depth - self.range_min} ranks ({self.range_min} to {self.depth - 1})"
            what = f"{self.num_negatives} negatives cannot come from {ranks}"
            raise ConfigError(what, setting("num_negatives"), f"give fewer, or a larger {setting('range_max')}")
        check_changed(self)


@dataclass(frozen=True)
class ScoreConfig:
    """Settings of teacher scoring: the cross-encoder, and the candidates that are scored next to the positives."""

    model: str = option("", "cross-encoder: a local directory, or a hub name", reads=TEACHER, metavar="MODEL")
    revision: str | None = option(None, "commit or tag of a hub model")
    max_length: int | None = option(
        None, "largest number of tokens of a query and a passage together; by default the limit of the model", minimum=8
    )
    negatives: str = option("", "negatives table written by `raytriever mine`", reads=NEGATIVES, metavar="PATH")
    run: str = option("", "TREC run whose best documents of each query are scored", reads=RANKING, metavar="PATH")
    depth: int = option(100, "number of documents of each query in the run that are scored", minimum=1, needs="run")
