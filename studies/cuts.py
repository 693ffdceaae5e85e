"""Rules that cut the ranking of each query: one threshold for all, and two that read the shape of its scores.

A rule returns for each query how many of its passages it keeps, from its ranked scores, the highest first, NaN in empty
places. Those that read a shape keep at least one, so they never say that there is no answer. They read the passages
that were retrieved, here the 100 best ones, where the papers read the scores of all passages.

- `largest_gap`: Adaptive-k (Taguchi et al., EMNLP 2025, arXiv:2506.08479). The cut is at the largest drop between two
  neighboring scores, those of the last tenth of the ranks left out; `buffer` more passages are kept, 5 in the paper.
- `tail`: after the abstract of TAA-k (Song et al., ECML PKDD 2026, arXiv:2606.11907), whose text was not available. It
  says: a knee of the ranked scores gives a small window; in it a test of the fit of an extreme-value tail finds the
  first rank from which on the scores are noise; sqrt(N log N) fits are needed. Chosen here: the knee is the point
  farthest below the line from the first to the last score; the window has sqrt(N ln N) ranks around it; scores are
  noise where their excesses over the last one fit a generalized Pareto distribution, by probability-weighted moments
  (Hosking & Wallis, 1987) and the Cramér-von Mises statistic at a level of 10 %, simulated; without such a rank the
  knee decides."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Self

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy import ndarray

from raytriever.metrics.selective_retrieval import Statistic, in_blocks

RANKS = 100  # passages read of each ranking
THRESHOLD, ADAPTIVE, BUFFERED, TAIL = "one threshold", "Adaptive-k, B = 0", "Adaptive-k, B = 5", "TAA-k"
_IGNORED, _LEVEL = 0.1, 0.1
_SHAPES, _SAMPLES, _SIZE = np.linspace(-1, 1, 21), 2_000, 100
Scores = Float64[ndarray, "queries ranks"]
Counts = Int64[ndarray, " queries"]


@dataclass(frozen=True)
class Rankings:
    """Retrieved passages of queries.

    Args:
        scores: the highest first, NaN in empty places.
        relevant: whether the passages are relevant.
        wanted: number of relevant passages in the corpus, 0 for a query without an answer.
    """

    scores: Scores
    relevant: Bool[ndarray, "queries ranks"]
    wanted: Int64[ndarray, " queries"]

    def joined(self, other: Self) -> Self:
        """Return these queries and those of another data set."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return type(self)(*(np.concatenate(pair) for pair in pairs))  # both have as many ranks

    def kept(self, counts: Counts) -> Int64[ndarray, "queries 3"]:
        """Return for each query the relevant passages kept, all passages kept, and the relevant ones of the corpus."""
        right = (self.relevant & (np.arange(self.scores.shape[1]) < counts[:, None])).sum(axis=1)
        return np.stack([right, counts, self.wanted], axis=1)


def set_f1(kept: Int64[ndarray, "queries 3"]) -> Statistic:
    """Return the F1 of all kept passages as a function of the weights of the queries: 2 right / (kept + wanted)."""

    def f1(some: ndarray) -> ndarray:
        right, returned, wanted = (some @ kept).T
        return 2 * right / np.maximum(returned + wanted, 1)

    return partial(in_blocks, f1, count=len(kept))


def cut(rankings: Rankings, threshold: float) -> dict[str, Int64[ndarray, "queries 3"]]:
    """Return what each rule keeps, see `Rankings.kept`; `threshold` is the one for all queries."""
    scores = rankings.scores
    counts = {
        THRESHOLD: above(scores, threshold),
        ADAPTIVE: largest_gap(scores),
        BUFFERED: largest_gap(scores, buffer=5),
        TAIL: tail(scores),
    }
    return {rule: rankings.kept(count) for rule, count in counts.items()}


def above(scores: Scores, threshold: float) -> Counts:
    """Keep the passages whose score reaches one threshold; of some queries none."""
    return np.asarray((scores >= threshold).sum(axis=1), np.int64)  # NaN does not reach it


def figures(kept: Int64[ndarray, "queries 3"]) -> dict[str, float]:
    """Return F1, precision and recall of all kept passages, the F1 of queries with an answer, passages of a query, and
    the fractions of queries without and with an answer of which none is kept."""
    right, returned, wanted = kept.sum(axis=0)
    answerable = kept[:, 2] > 0
    one = np.ones((1, len(kept)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "F1": float(set_f1(kept)(one)[0]),
            "precision": float(right / returned),
            "recall": float(right / wanted),
            "F1, with an answer": float(set_f1(kept[answerable])(one[:, answerable])[0]),
            "passages": float(returned / len(kept)),
            "none, without an answer": float((kept[~answerable, 1] == 0).mean()),
            "none, with an answer": float((kept[answerable, 1] == 0).mean()),
        }


def best_threshold(rankings: Rankings) -> float:
    """Return the threshold with the highest F1 of all kept passages; the highest of equal ones."""
    there = ~np.isnan(rankings.scores)
    scores, order = rankings.scores[there], np.argsort(-rankings.scores[there], kind="stable")
    right = np.cumsum(rankings.relevant[there][order])
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # passages of one score are kept together
    f1 = 2 * right[ends] / (ends + 1 + rankings.wanted.sum())
    return float(scores[order][ends[f1.argmax()]])


def largest_gap(scores: Scores, buffer: int = 0) -> Counts:
    """Keep the passages before the largest drop, and `buffer` more (Adaptive-k)."""
    lengths = (~np.isnan(scores)).sum(axis=1)
    drops = -np.diff(scores, axis=1)
    read = lengths - 1 - ((lengths - 1) * _IGNORED).astype(np.int64)  # a query of one passage has no drop
    drops = np.where(np.arange(drops.shape[1]) < read[:, None], drops, -np.inf)
    return np.minimum(drops.argmax(axis=1) + 1 + buffer, lengths)


def tail(scores: Scores) -> Counts:
    """Keep the passages before the first rank around the knee from which on the scores are noise (TAA-k)."""
    return np.array([_before_noise(row[~np.isnan(row)]) for row in scores], np.int64)


def knee(scores: Float64[ndarray, " ranks"]) -> int:
    """Return the number of scores before the knee: the point farthest below the line from the first to the last one."""
    line = np.linspace(scores[0], scores[-1], len(scores))
    return max(int((line - scores).argmax()), 1)


def _before_noise(scores: Float64[ndarray, " ranks"]) -> int:
    count = len(scores)
    if count < 3:
        return min(count, 1)
    middle, dim = knee(scores), int(np.sqrt(count * np.log(count)))
    first = max(1, middle - dim // 2)
    for cut in range(first, min(first + dim, count - 2)):
        shape, misfit = pareto_misfit((scores[cut:-1] - scores[-1])[::-1])
        if misfit <= np.interp(shape, _SHAPES, _critical_values()):
            return cut
    return middle


def pareto_misfit(excesses: Float64[ndarray, "*samples size"]) -> tuple[Float64[ndarray, "*samples"], ...]:
    """Return the shape of a fitted generalized Pareto distribution, and the Cramér-von Mises statistic of its fit.

    Excesses are 0 or more and ascend. The shape is below 0 for a bounded tail, 0 for an exponential one. Of equal
    excesses the shape is -1 and the statistic infinite."""
    size = excesses.shape[-1]
    ranks = np.arange(1, size + 1)
    mean, weighted = excesses.mean(-1), (excesses * (1 - (ranks - 0.35) / size)).mean(-1)
    spread = mean - 2 * weighted
    with np.errstate(divide="ignore", invalid="ignore"):
        shape = 2 - mean / spread
        scale = 2 * mean * weighted / spread
        left = np.maximum(1 + shape[..., None] * excesses / scale[..., None], 0)  # 0 beyond the end of a bounded tail
        below = np.where(
            np.abs(shape[..., None]) < 1e-9,
            -np.expm1(-excesses / scale[..., None]),
            1 - left ** (-1 / shape[..., None]),
        )
        misfit = 1 / (12 * size) + ((below - (2 * ranks - 1) / (2 * size)) ** 2).sum(-1)
    fits = np.isfinite(misfit)
    return np.where(fits, shape, -1.0), np.where(fits, misfit, np.inf)


@cache
def _critical_values() -> Float64[ndarray, " shapes"]:
    """Return the statistic that is exceeded in 10 % of samples of each shape."""
    uniform = np.random.default_rng(0).random((_SAMPLES, _SIZE))
    values = []
    for shape in _SHAPES:
        samples = -np.log(uniform) if abs(shape) < 1e-9 else np.expm1(-shape * np.log(uniform)) / shape
        values.append(np.quantile(pareto_misfit(np.sort(samples, axis=1))[1], 1 - _LEVEL))
    return np.array(values)
