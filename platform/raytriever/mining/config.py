"""Settings of mining and of scoring by a teacher. Imports nothing heavy: the command line reads it for `--help`.

Names and meanings of `MiningConfig` are those of sentence-transformers' `mine_hard_negatives`, so that settings can
be carried over."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.errors import ConfigError
from raytriever.options import check_changed, did_you_mean, option
from raytriever.paths import NEGATIVES, RANKING, TEACHER

METHODS = ("bm25", "dense", "cross-query", "gold", "random")
# These need embeddings.
BY_ENCODER = ("dense", "cross-query")
# How many candidates are looked at for each negative wanted, where some of them may be removed or passed over.
CANDIDATES = 10
# Only these have scores that a bound may be compared with, unless a judge gives them.
_SCORED = ("method=bm25|dense|cross-query", "judge")


@dataclass(frozen=True)
class MiningConfig:
    """Who finds hard negatives, which of their candidates are false negatives, and how many are kept."""

    method: str = option(
        "bm25", f"how candidates are found: {', '.join(METHODS)}; several, separated by commas, fill one table"
    )
    num_negatives: int = option(10, "negatives that each method keeps for a query, at most", minimum=1)
    range_min: int = option(
        0, "first rank that is used; rank 0 is the best document that is not known to be relevant", minimum=0
    )
    range_max: int | None = option(
        None,
        "the rank at which a ranking ends; by default as many further ranks as negatives are wanted, ten times that "
        "where candidates are sampled or held to a score",
        minimum=1,
    )
    max_score: float | None = option(None, "candidates that score higher are removed", needs=_SCORED)
    absolute_margin: float | None = option(
        None,
        "how far below the lowest score of a positive a candidate must be (TopK-MarginPos)",
        minimum=0,
        needs=_SCORED,
    )
    relative_margin: float | None = option(
        None,
        "the same as a share of that score's size: 0.05 keeps what scores at most 95 % of the positive (TopK-PercPos)",
        minimum=0,
        needs=_SCORED,
    )
    sampling_strategy: str = option(
        "top", "which of the remaining candidates: the first ones, or random ones", choices=("top", "random")
    )
    drop_answers: bool = option(False, "remove candidates that hold an answer of the query")
    judge: str = option(
        "",
        "directory of a cross-encoder whose scores are used for margins and --max-score, usually 0 to 1",
        reads=TEACHER,
        form="MODEL",
        needs=("relative_margin", "absolute_margin", "max_score"),
    )

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods, in their order."""
        return tuple(name.strip() for name in self.method.split(","))

    @property
    def has_score_bounds(self) -> bool:
        """Whether a candidate may be removed for its score."""
        return any(bound is not None for bound in (self.max_score, self.absolute_margin, self.relative_margin))

    @property
    def depth(self) -> int:
        """The rank at which a ranking ends."""
        if self.range_max is not None:
            return self.range_max
        some_go = self.has_score_bounds or self.drop_answers or self.sampling_strategy == "random"
        return self.range_min + self.num_negatives * (CANDIDATES if some_go else 1)


def check_mining(config: MiningConfig) -> None:
    """Refuse settings that contradict each other; raises `ConfigError` naming the flag."""
    methods = config.methods
    for name in methods:
        if name not in METHODS:
            raise ConfigError(f"unknown method {name!r}", "--method", did_you_mean(name, METHODS))
        if methods.count(name) > 1:
            raise ConfigError(f"{name!r} is named twice", "--method", "name each method once")
    if config.range_min >= config.depth:
        raise ConfigError(
            f"{config.depth} is not above --range-min {config.range_min}", "--range-max", "give a higher rank"
        )
    if config.num_negatives > config.depth - config.range_min:
        raise ConfigError(
            f"{config.num_negatives} negatives out of {config.depth - config.range_min} ranks "
            f"({config.range_min} to {config.depth - 1})",
            "--num-negatives",
            "give fewer, or a higher --range-max",
        )
    check_changed(config)


@dataclass(frozen=True)
class ScoreConfig:
    """Which cross-encoder scores, and which candidates of each query beside its positives."""

    model: str = option("", "the cross-encoder: a local directory, or a hub name", reads=TEACHER, form="MODEL")
    revision: str | None = option(None, "commit or tag of a hub model")
    max_length: int | None = option(
        None, "tokens of a query and a passage together; by default all that the model can read", minimum=8
    )
    negatives: str = option("", "a negatives table, as jobs/mine.py writes it", reads=NEGATIVES, form="PATH")
    run: str = option("", "a TREC run whose best documents of each query are scored", reads=RANKING, form="PATH")
    depth: int = option(100, "documents of a query in the run that are scored", minimum=1, needs="run")
