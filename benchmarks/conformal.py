"""Promises of `--calibrate kept`, `wrong-answers` and `missed`, by simulation, for the scores of four systems.

Run: `python benchmarks/conformal.py [--samples N] [--json PATH]`. A population of 5,000 questions is sampled once for
each system, and each sample takes some of these with replacement: they choose the thresholds, and the true fraction is
that of the whole population, without an error of its own. Seven of ten questions have an answer: one to four relevant
passages of 200. Of these questions 2 % find none of them.

- `cosine`: distinct scores; some questions score all passages higher than others.
- `ties`: the same, rounded to tenths.
- `fusion`: reciprocal rank fusion (k = 60) of two such rankings, by the `FusedSystem` of `bm25+minilm`.
- `run`: the ten best passages of a file of `--model run:FILE`, by its `RunFileSystem`. Other passages have no score.

Columns: mean true fraction that is lost, wrong or missed, with its standard error over the samples (a sample of which
no threshold keeps the promise counts as 0, as it promises nothing), whether it is at most the stated share and two
standard errors, and the fraction of samples that reach the promise. Of `kept` also the mean number of passages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from tempfile import NamedTemporaryFile

import numpy as np
from numpy import ndarray

from ends import machine, parser
from raytriever.data.dataset import Documents, Queries, RetrievalDataset
from raytriever.evaluation.composed.fusion_and_reranking import FusedSystem, ListingSystem, RunFileSystem
from raytriever.metrics.answer_confidence import ENTROPY, SCORE, RankedQuestions
from raytriever.metrics.answer_threshold import AnswerTarget, achieve_answers, decide
from raytriever.metrics.passage_threshold import RankedPassages, choose_kept_threshold

SYSTEMS, QUESTIONS, POPULATION, PASSAGES = ("cosine", "ties", "fusion", "run"), (20, 30, 60, 200), 5_000, 200
ALPHAS = (0.05, 0.1, 0.2)
TARGETS: list[tuple[AnswerTarget, float | None]] = [
    (target, alpha) for target in ("wrong_answers", "missed") for alpha in ALPHAS
]
COLUMNS = ["system", "questions", "target", "stated", "true", "error", "holds", "reached", "passages"]
Row = list[str | float | bool | None]


def scored(rng: np.random.Generator, relevant: ndarray) -> ndarray:
    """Return scores of all passages of each question."""
    level, skill = rng.normal(0, 0.06, (len(relevant), 1)), rng.normal(0.35, 0.12, (len(relevant), 1))
    return 0.25 + level + skill * relevant + rng.normal(0, 0.08, relevant.shape)


@dataclass(frozen=True)
class Scores:
    """System that is known by its scores of all pairs, -inf for none: a `PreparedSystem`."""

    values: ndarray
    digest: str = ""

    def prepare(self) -> None:
        """Do nothing."""

    def search(self, queries: ndarray, depth: int) -> tuple[ndarray, ndarray]:
        """Return scores and passages, best first."""
        order = np.argsort(-self.values[queries], axis=1, kind="stable")[:, :depth]
        scores = np.take_along_axis(self.values[queries], order, 1)
        return scores, np.where(np.isfinite(scores), order, -1)

    def score(self, queries: ndarray, documents: ndarray) -> ndarray:
        """Return the score of each pair."""
        return self.values[queries, documents]


def run_file(first: Scores, dataset: RetrievalDataset) -> RunFileSystem:
    """Return the system of a run file with the ten best passages of each question."""
    scores, documents = first.search(np.arange(POPULATION), 10)
    with NamedTemporaryFile("w", suffix=".trec") as file:
        for question, row in enumerate(zip(scores.tolist(), documents.tolist(), strict=True)):
            for score, document in zip(*row, strict=True):
                if document >= 0:
                    file.write(f"{question} Q0 {dataset.documents.ids[document]} 0 {score!r} simulated\n")
        file.flush()
        return RunFileSystem(dataset, file.name)


def population(rng: np.random.Generator, system: str) -> tuple[RankedQuestions, RankedPassages]:
    """Return all questions with their best passages, and those that have an answer with 100 ranked passages."""
    has_answer = rng.random(POPULATION) < 0.7
    counts = np.where(has_answer, rng.integers(1, 5, POPULATION), 0)
    relevant = np.arange(PASSAGES) < counts[:, None]
    scores = scored(rng, relevant)
    if system == "ties":
        scores = np.round(scores, 1)
    lost = (rng.random(POPULATION) < 0.02)[:, None] & relevant
    ids, questions = [f"{rank:03}" for rank in range(PASSAGES)], list(map(str, range(POPULATION)))
    dataset = RetrievalDataset("simulated", Documents(ids, ids, ids), Queries(questions, questions), {})
    first = Scores(np.where(lost, -np.inf, scores))
    ranking: Scores | ListingSystem = first
    if system == "fusion":
        ranking = FusedSystem(dataset, [first, Scores(np.where(lost, -np.inf, scored(rng, relevant)))])
    if system == "run":
        ranking = run_file(first, dataset)
    found, documents = ranking.search(np.arange(POPULATION), 100)
    ranked = np.where(documents >= 0, found, np.nan).astype(np.float32)
    right = np.take_along_axis(relevant, documents, 1) & (documents >= 0)
    # Relevant passages come last among equal scores, as `ranked_relevance` puts them.
    right_first = right[:, 0] & (ranked[:, 0] > ranked[:, 1])
    asked = RankedQuestions(ranked[:, :20], right_first[:, None], np.where(has_answer, "", "given"))
    return asked, RankedPassages(ranked[has_answer], right[has_answer], counts[has_answer])


def simulate(system: str, questions: int, samples: int, rng: np.random.Generator) -> list[Row]:
    """Return a row for each promise."""
    every, passages = population(np.random.default_rng(SYSTEMS.index(system)), system)
    true: dict[tuple[str, float], list[float]] = {}
    kept: dict[float, list[float]] = {alpha: [] for alpha in ALPHAS}
    reached: dict[tuple[str, float], int] = {}

    def add(target: str, alpha: float, fraction: float | None) -> None:
        true.setdefault((target, alpha), []).append(fraction or 0.0)
        reached[target, alpha] = reached.get((target, alpha), 0) + (fraction is not None)

    # The mean loss and the number of passages at any threshold, from the sorted scores of the population.
    own = np.sort(passages.scores[~np.isnan(passages.scores)])
    weights = np.broadcast_to(1 / passages.counts[:, None], passages.relevant.shape)[passages.relevant]
    order = np.argsort(passages.scores[passages.relevant])
    sorted_scores = passages.scores[passages.relevant][order]
    cumulated = np.concatenate([[0.0], np.cumsum(weights[order])])
    outside = len(passages) - weights.sum()
    for _ in range(samples):
        rows = rng.integers(0, len(passages), questions)
        some = RankedPassages(passages.scores[rows], passages.relevant[rows], passages.counts[rows])
        for alpha in ALPHAS:
            chosen = choose_kept_threshold(some, 1 - alpha)
            lost = (outside + cumulated[np.searchsorted(sorted_scores, chosen.score)]) / len(passages)
            add("kept", alpha, float(lost) if chosen.reached else None)
            if chosen.reached:
                kept[alpha].append(float((len(own) - np.searchsorted(own, chosen.score)) / len(passages)))
        asked = every.where(rng.integers(0, len(every), questions))
        while not asked.answerable.any():
            asked = every.where(rng.integers(0, len(every), questions))
        for name in (SCORE, ENTROPY):
            made = decide(asked, asked, TARGETS, name)
            values = made.confidence.of(every)
            for threshold, _ in made.thresholds:
                assert threshold.wanted is not None
                fraction = None
                if threshold.reached:
                    fraction = achieve_answers(values >= threshold.score, every).of(threshold.target).value
                add(f"{threshold.target} by {name}", threshold.wanted, fraction)
    return rows_of(system, questions, true, reached, kept)


def rows_of(
    system: str,
    questions: int,
    true: Mapping[tuple[str, float], Sequence[float]],
    reached: Mapping[tuple[str, float], int],
    kept: Mapping[float, Sequence[float]],
) -> list[Row]:
    """Return a row for each promise."""
    rows: list[Row] = []
    for (target, alpha), fractions in true.items():
        mean, error = float(np.mean(fractions)), float(np.std(fractions) / np.sqrt(len(fractions)))
        count = round(float(np.mean(kept[alpha])), 1) if target == "kept" and kept[alpha] else None
        stated = round(1 - alpha, 2) if target == "kept" else alpha
        holds = mean <= alpha + 2 * error
        rows.append([system, questions, target, stated, round(mean, 4), round(error, 4), holds])
        rows[-1] += [round(reached[target, alpha] / len(fractions), 3), count]
    return rows


def main() -> None:
    """Simulate and report."""
    line = parser(__doc__.splitlines()[0])
    line.add_argument("--samples", type=int, default=1_000, help="sets of questions of each cell")
    options = line.parse_args()
    rows: list[Row] = []
    print(*COLUMNS, sep=" | ")
    for seed, (system, questions) in enumerate(product(SYSTEMS, QUESTIONS)):
        rows += simulate(system, questions, options.samples, np.random.default_rng(seed))
        print(*(row for row in rows if row[:2] == [system, questions]), sep="\n", flush=True)
    print(machine(), f"{sum(row[6] is True for row in rows)} of {len(rows)} hold")
    if options.json:
        table = ",\n  ".join(json.dumps(row) for row in rows)
        head = json.dumps({"machine": machine(), "samples": options.samples, "columns": COLUMNS})
        options.json.write_text(f'{head[:-1]},\n "rows": [\n  {table}\n]}}\n')


if __name__ == "__main__":
    main()
