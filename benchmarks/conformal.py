"""Promises of `--calibrate wrong-answers` and `missed`, and intervals of cross-fitting, by simulation.

Run: `python benchmarks/conformal.py [--sets N] [--json PATH]`. A question has an answer in seven of ten cases. The gap
between the best and the second score, and whether BM25 agrees, say how probable it is that the best document is right.
The true share of a threshold is that of further questions: 5,000 for each set, or 50,000 for all.

Promises: the mean true share over the sets of questions, for a confidence that is given (`margin`), and for `combined`,
which is fitted on the same questions by cross-fitting. A set of which no threshold keeps the promise shows nothing.

Few questions: how often the 95 % interval of `metrics.answering.decide` contains the true share of its threshold.
"""

from __future__ import annotations

import json

import numpy as np

from ends import machine, parser
from raytriever.metrics.answering import (
    CONFORMAL,
    AnswerAim,
    achieve_answers,
    choose_answer_threshold,
    decide,
)
from raytriever.metrics.confidence import COMBINED, RankedQuestions, fit_confidence, held_out_confidence

ALPHAS, QUESTIONS = (0.05, 0.1, 0.2), (20, 50, 200, 1_000)
FEW = (20, 30, 50, 98)
SHOWN: tuple[tuple[AnswerAim, float | None], ...] = (("answered", 0.6), ("f1", None))
ENDLESS, FURTHER = 50_000, 5_000
UNANSWERABLE, DEPTH = 0.3, 20


def drawn(rng: np.random.Generator, count: int) -> RankedQuestions:
    """Draw questions with their ranked scores."""
    has_answer = rng.random(count) >= UNANSWERABLE
    gap = rng.exponential(np.where(has_answer, 0.25, 0.12))
    agrees = rng.random(count) < np.where(has_answer, 0.6, 0.2)
    probability = 1 / (1 + np.exp(1.5 - 8 * gap - 1.5 * agrees))
    rest = np.sort(rng.uniform(-1, 0, (count, DEPTH - 1)).astype(np.float32), axis=1)[:, ::-1]
    level = rng.normal(0, 0.3, (count, 1)).astype(np.float32)
    scores = np.concatenate([rest[:, :1] + gap[:, None].astype(np.float32), rest], axis=1) + level
    of_best = rng.gamma(3, 3, count)
    highest = of_best + np.where(agrees, 0, rng.exponential(3, count))
    bm25 = np.stack([highest, highest - rng.exponential(2, count), of_best], axis=1).astype(np.float32)
    kinds = np.where(has_answer, "", "given")
    return RankedQuestions(scores, has_answer & (rng.random(count) < probability), kinds, bm25, agrees)


def promises(name: str, questions: int, sets: int, rng: np.random.Generator) -> list[dict[str, object]]:
    """Return the mean true share of every alpha, of both aims, over sets of questions."""
    shares: dict[tuple[AnswerAim, float], list[float]] = {}
    reached: dict[tuple[AnswerAim, float], int] = {}
    for _ in range(sets):
        # Further questions are drawn for each set: the same ones would add their own error to every mean.
        some, truth = drawn(rng, questions), drawn(rng, FURTHER)
        values = held_out_confidence(name, some)
        true = fit_confidence(name, some).of(truth)
        for aim in CONFORMAL:
            for alpha in ALPHAS:
                chosen = choose_answer_threshold(values, some.right, some.answerable, aim, alpha)
                shown = true >= chosen.score if chosen.reached else np.full(FURTHER, aim == "missed")
                loss = shown & ~truth.right if aim == "wrong_answers" else ~shown[truth.answerable]
                shares.setdefault((aim, alpha), []).append(float(loss.mean()))
                reached[aim, alpha] = reached.get((aim, alpha), 0) + chosen.reached
    return [
        {
            "figure": "promise",
            "confidence": name,
            "aim": aim,
            "alpha": alpha,
            "questions": questions,
            "sets": sets,
            "mean": float(np.mean(each)),
            "error": float(np.std(each) / np.sqrt(sets)),
            "reached": reached[aim, alpha] / sets,
        }
        for (aim, alpha), each in shares.items()
    ]


def few_questions(name: str, questions: int, sets: int, rng: np.random.Generator) -> list[dict[str, object]]:
    """Return how often the intervals of cross-fitting contain the true share of the threshold of all questions."""
    truth = drawn(rng, ENDLESS)
    held: dict[tuple[str, str], list[bool]] = {}
    for _ in range(sets):
        some = drawn(rng, questions)
        made = decide(some, some, SHOWN, name)
        values = made.confidence.of(truth)
        for threshold, achieved in made.thresholds:
            if achieved is None:
                continue
            true = achieve_answers(values >= threshold.score, truth)
            for share in ("answered", "top_precision", "wrong", "f1"):
                interval = getattr(achieved, share)
                inside = interval.low <= getattr(true, share).value <= interval.high
                held.setdefault((threshold.aim, share), []).append(inside)
    return [
        {
            "figure": "few questions",
            "confidence": name,
            "aim": aim,
            "share": share,
            "questions": questions,
            "sets": len(each),
            "covered": float(np.mean(each)),
        }
        for (aim, share), each in held.items()
    ]


def main() -> None:
    """Simulate and report."""
    line = parser(__doc__.splitlines()[0])
    line.add_argument("--sets", type=int, default=2_000, help="sets of questions of each cell")
    options = line.parse_args()
    cells: list[dict[str, object]] = []
    rng = np.random.default_rng(0)
    for name in ("margin", COMBINED):
        # `combined` is fitted ten times for each set, and a hundred times in folds of folds.
        few, sets = (4, options.sets) if name != COMBINED else (40, options.sets // 4)
        for questions in QUESTIONS:
            cells += promises(name, questions, sets, rng)
            print(*cells[-2 * len(ALPHAS) :], sep="\n", flush=True)
        for questions in FEW:
            cells += few_questions(name, questions, options.sets // few, rng)
            print(*cells[-8:], sep="\n", flush=True)
    print(machine())
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "cells": cells}, indent=1) + "\n")


if __name__ == "__main__":
    main()
