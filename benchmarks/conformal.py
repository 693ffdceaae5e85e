"""Promises of `--calibrate wrong-answers` and `missed`, and intervals of few questions, by simulation.

Run: `python benchmarks/conformal.py [--sets N] [--json PATH]`. Seven of ten questions have an answer, or all
(`answered`). The gap between the best and the second score, and whether BM25 agrees, say how probable it is that the
best document is right. In `ties` the gap is rounded to tenths, so few confidences occur. All questions of a set choose
the thresholds and are counted at them. True shares are those of 2,000 further questions of each set.

Columns: mean true share with its standard error (a set of which no threshold keeps the promise shows nothing, or, for
`missed`, everything), the mean of the sets that reach the promise, their share, how much the stated share is too high,
and how often its 95 % interval holds the true share: that of the aim, and the lowest of all five shares.
"""

from __future__ import annotations

import json
from itertools import product

import numpy as np

from ends import machine, parser
from raytriever.metrics.answering import (
    CONFORMAL,
    FEWEST_OF_COMBINED,
    AnswerAim,
    AnswersAchieved,
    achieve_answers,
    decide,
)
from raytriever.metrics.confidence import COMBINED, ENTROPY, SCORE, RankedQuestions
from raytriever.metrics.intervals import Proportion

AIMS: list[tuple[AnswerAim, float | None]] = [(aim, alpha) for aim in CONFORMAL for alpha in (0.05, 0.1, 0.2)]
AIMS += [("answered", 0.6), ("f1", None)]
QUESTIONS, DATA, FURTHER, DEPTH = (20, 30, 60, 200), ("distinct", "ties", "answered"), 2_000, 20
# `combined` is fitted eleven times for each set.
SHARE_OF_SETS = {ENTROPY: 1.0, SCORE: 0.5, COMBINED: 0.125}
COLUMNS = ["confidence", "data", "questions", "aim", "wanted", "true", "error", "true if reached", "reached"]
COLUMNS += ["stated - true", "held", "lowest held"]
Row = list[str | float | None]


def drawn(rng: np.random.Generator, count: int, data: str) -> RankedQuestions:
    """Draw questions with their ranked scores."""
    has_answer = rng.random(count) >= (0 if data == "answered" else 0.3)
    gap = rng.exponential(np.where(has_answer, 0.25, 0.12))
    agrees = rng.random(count) < np.where(has_answer, 0.6, 0.2)
    if data == "ties":
        gap, rest = np.round(gap, 1), np.tile(np.linspace(0, -1, DEPTH - 1), (count, 1))
    else:
        rest = np.sort(rng.uniform(-1, 0, (count, DEPTH - 1)), axis=1)[:, ::-1] + rng.normal(0, 0.3, (count, 1))
    probability = 1 / (1 + np.exp(1.5 - 8 * gap - 1.5 * agrees))
    scores = np.concatenate([rest[:, :1] + gap[:, None], rest], axis=1).astype(np.float32)
    of_best = rng.gamma(3, 3, count)
    highest = of_best + np.where(agrees, 0, rng.exponential(3, count))
    bm25 = np.stack([highest, highest - rng.exponential(2, count), of_best], axis=1).astype(np.float32)
    right = has_answer & (rng.random(count) < probability)
    return RankedQuestions(scores, right[:, None], np.where(has_answer, "", "given"), bm25, agrees)


def shares_of(achieved: AnswersAchieved) -> list[Proportion]:
    """Return every share."""
    return [achieved.answered, achieved.top_precision, achieved.wrong, achieved.f1, *achieved.unanswerable.values()]


def simulate(name: str, data: str, questions: int, sets: int, rng: np.random.Generator) -> list[Row]:
    """Return a row for each aim."""
    true: list[list[float]] = [[] for _ in AIMS]
    reached: list[list[float]] = [[] for _ in AIMS]
    stated: list[list[float]] = [[] for _ in AIMS]
    held: list[list[bool]] = [[] for _ in AIMS]
    all_held: list[dict[int, list[bool]]] = [{} for _ in AIMS]
    while len(true[0]) < sets:
        some, further = drawn(rng, questions, data), drawn(rng, FURTHER, data)
        if not some.answerable.any():
            continue
        made = decide(some, some, AIMS, name)
        values = made.confidence.of(further)
        for row, (threshold, achieved) in enumerate(made.thresholds):
            is_missed = threshold.aim == "missed"
            shown = values >= threshold.score if threshold.reached else np.full(FURTHER, is_missed)
            truth = achieve_answers(shown, further)
            aimed = truth.of(threshold.aim)
            true[row].append(aimed.value)
            if achieved is None:
                continue
            own = achieved.of(threshold.aim)
            reached[row].append(aimed.value)
            stated[row].append(own.value - aimed.value)
            held[row].append(own.low <= aimed.value <= own.high)
            for at, (one, other) in enumerate(zip(shares_of(achieved), shares_of(truth), strict=False)):
                all_held[row].setdefault(at, []).append(one.low <= other.value <= one.high)
    rows: list[Row] = []
    for row, (aim, wanted) in enumerate(AIMS):
        some_reached = len(reached[row]) > 0.05 * sets
        figures = [np.mean(true[row]), np.std(true[row]) / np.sqrt(sets)]
        figures += [np.mean(reached[row])] if some_reached else [np.nan]
        figures += [len(reached[row]) / sets]
        if some_reached:
            figures += [np.mean(stated[row]), np.mean(held[row]), min(map(np.mean, all_held[row].values()))]
        else:
            figures += [np.nan] * 3
        cells = [None if figure != figure else round(float(figure), 4) for figure in figures]
        rows.append([name, data, questions, aim, wanted, *cells])
    return rows


def main() -> None:
    """Simulate and report."""
    line = parser(__doc__.splitlines()[0])
    line.add_argument("--sets", type=int, default=2_000, help="sets of questions of each cell")
    options = line.parse_args()
    rows: list[Row] = []
    print(*COLUMNS, sep=" | ")
    for name, share in SHARE_OF_SETS.items():
        for seed, (data, questions) in enumerate(product(DATA, QUESTIONS)):
            if name != COMBINED or questions >= FEWEST_OF_COMBINED:
                rng = np.random.default_rng(seed)
                rows += simulate(name, data, questions, int(options.sets * share), rng)
                print(*rows[-len(AIMS) :], sep="\n", flush=True)
    print(machine())
    if options.json:
        table = ",\n  ".join(json.dumps(row) for row in rows)
        head = json.dumps({"machine": machine(), "sets": options.sets, "columns": COLUMNS})
        options.json.write_text(f'{head[:-1]},\n "rows": [\n  {table}\n]}}\n')


if __name__ == "__main__":
    main()
