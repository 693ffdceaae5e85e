"""Mine the hard negatives of a split: from a data set, a BM25 index or embeddings, and settings, to a table.

1. Each method finds candidates for each query (`finders`), block by block.
2. Known non-negatives are removed, then passages that hold an answer, then candidates that score too high on the one
   scale of the table (`filters`, `scorers`).
3. Of the rest the first, or drawn ones, are kept. Draws follow from (seed, round, query id).
4. The methods' negatives become one table; a document that two of them keep for a query is in it once.

`build_negatives_table` makes the table of a training run: the table that the user names, the rows of the data set, and
BM25's negatives if these have none or the mix asks for them. No Ray: the table is the same after encoding and during
training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.activity import activity
from raytriever.data.config import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives import NegativesTable, read_negatives
from raytriever.data.records import ORIGINS
from raytriever.data.sampling.draws import words
from raytriever.data.sampling.origins import parse_mix
from raytriever.errors import ConfigError, DataError
from raytriever.mining.bm25 import Bm25Index
from raytriever.mining.config import MiningConfig, check_mining
from raytriever.mining.filters import (
    ANSWER,
    KEPT,
    NO_EMBEDDING,
    REASONS,
    RELEVANT,
    apply_score_bounds,
    choose,
    contains_answer,
    count_verdicts,
    initial_verdicts,
)
from raytriever.mining.finders import CHOICE, CandidateFinder
from raytriever.mining.inputs import MiningInputs
from raytriever.mining.scorers import Embeddings, Judge
from raytriever.progress import Progress

# Candidates of a block: some hundred megabytes of positions, scores, ranks and verdicts.
BLOCK = 1 << 22


@dataclass(frozen=True)
class CandidateFilter:
    """Runs a method's candidates through the filters."""

    dataset: RetrievalDataset
    config: MiningConfig
    sources: MiningInputs
    seed: int
    round: int

    def run(self, method: str) -> tuple[tuple[ndarray, ...], ndarray]:
        """The kept (place of the query in the split, document, rank, score), and how many got each verdict."""
        finder, config, known = self.sources.finder(method), self.config, self.sources.known
        first, end = self._ranks(method)
        order = np.argsort(known.counts, kind="stable")
        kept, counts = [], np.zeros(len(REASONS), dtype=np.int64)
        with Progress(f"mine {method}", len(order), "text") as progress:
            start = 0
            while start < len(order):
                # A block is as wide as its last query needs, whose known documents are the most.
                cells = (end + known.counts[order[start:]]) * np.arange(1, len(order) - start + 1)
                rows = order[start : start + max(1, int(np.searchsorted(cells, BLOCK, side="right")))]
                found, scores = finder(rows, min(end, len(self.dataset.documents)))
                verdicts, ranks = initial_verdicts(found, known.padded(rows), first, end)
                if len(self.sources.left_out):  # what kills the encoder would kill the training, too
                    verdicts[(verdicts == KEPT) & np.isin(found, self.sources.left_out)] = NO_EMBEDDING
                scores = self._judge(finder, rows, found, scores, verdicts)
                draws = None
                if config.sampling_strategy == "random":
                    keys = self.sources.keys[rows]
                    draws = words(self.seed, np.full(len(rows), self.round), keys, CHOICE, np.arange(found.shape[1]))
                choose(verdicts, config.num_negatives, draws)
                counts += count_verdicts(verdicts)
                row, place = np.nonzero(verdicts == KEPT)
                kept.append((rows[row], found[row, place], ranks[row, place], scores[row, place]))
                start += len(rows)
                progress.advance(len(rows))
        return tuple(np.concatenate(column) for column in zip(*kept, strict=True)), counts

    def _ranks(self, method: str) -> tuple[int, int]:
        """The first rank of a method that counts, and the one at which it ends; only rankings have a range."""
        if method == "gold":
            assert self.dataset.negatives is not None
            return 0, int(np.bincount(self.dataset.negatives.queries).max())
        if method == "random":
            return 0, self.config.depth - self.config.range_min
        return self.config.range_min, self.config.depth

    def _judge(
        self, finder: CandidateFinder, rows: ndarray, found: ndarray, scores: ndarray, verdicts: ndarray
    ) -> Float32[ndarray, "block places"]:
        """Remove what holds an answer or scores too high; the scores of what is left, on the table's scale."""
        config, scale = self.config, self.sources.scale
        if config.drop_answers:
            self._drop_answers(rows, found, verdicts)
        if scale.name and scale.name != finder.scale:
            scores = scale.pairs(rows, np.where(verdicts == KEPT, found, -1))
        if config.has_score_bounds:
            documents, reasons = self.sources.known.padded(rows)
            of_positives = scale.pairs(rows, np.where(reasons == RELEVANT, documents, -1))
            lowest = np.fmin.reduce(of_positives, axis=1)
            apply_score_bounds(
                verdicts, scores, lowest, config.max_score, config.absolute_margin, config.relative_margin
            )
        return scores

    def _drop_answers(self, rows: ndarray, found: ndarray, verdicts: ndarray) -> None:
        for place, row in enumerate(rows):
            answers = self.sources.answers_of(int(row))
            if not answers:
                continue
            for column in np.flatnonzero(verdicts[place] == KEPT):
                if contains_answer(self.sources.passage(int(found[place, column])), answers):
                    verdicts[place, column] = ANSWER


REPEATED = "found by another method too"


@dataclass(frozen=True)
class MiningResult:
    """What mining found.

    Args:
        table: the negatives.
        counts: for each method `candidates`, `kept`, and for each reason how many candidates it removed; the latter
            two add up to the first. Reasons that removed nothing are left out.
        wanted: how many negatives a query was to get, of all methods.
        found: how many each query got, in the order of `dataset.positives(split)`.
        scale: what the scores are: `encoder`, `bm25`, `judge`, or nothing.
    """

    table: NegativesTable
    counts: dict[str, dict[str, int]]
    wanted: int
    found: Int64[ndarray, " queries"]
    scale: str

    def meta(self) -> dict[str, object]:
        """For the table's manifest."""
        return {
            "counts": self.counts,
            "scores": self.scale,
            "queries": len(self.found),
            "queries_short": int((self.found < self.wanted).sum()),
            "queries_without": int((self.found == 0).sum()),
        }


@activity("mining the negatives")
def mine(
    dataset: RetrievalDataset,
    split: str,
    config: MiningConfig,
    *,
    embeddings: Embeddings | None = None,
    bm25: Callable[[], Bm25Index] | None = None,
    judge: Judge | None = None,
    seed: int = 0,
    round: int = 0,
) -> MiningResult:
    """Mine the negatives of the queries of a split.

    Args:
        dataset: opened with the split; the judgements of all its opened splits say what is relevant.
        split: its name.
        config: who finds, what is removed, how much is kept.
        embeddings: for `dense` and `cross-query`.
        bm25: makes or gives the index of all passages; by default it is made where it is needed.
        judge: scores pairs of texts, where the settings name one.
        seed, round: fix what is drawn; the round stands in the table.

    Raises:
        ConfigError: settings that contradict each other, a range beyond the corpus, or gold negatives or answers asked
            of a data set that has none.
        DataError: no query of the split has a relevant document.
        ModelError: embeddings or scores are not finite.
    """
    check_data(dataset, split, config)
    positives = dataset.positives(split)
    sources = MiningInputs(dataset, positives, config, embeddings, bm25, judge, seed, round)
    filtering = CandidateFilter(dataset, config, sources, seed, round)
    parts, counts = [], {}
    for method in config.methods:
        kept, reasons = filtering.run(method)
        parts.append(kept)
        counts[method] = reasons
    queries, documents, ranks, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
    origins = np.repeat([ORIGINS.index(method) for method in config.methods], [len(part[0]) for part in parts])
    table = NegativesTable.of(dataset, positives.queries[queries], documents, origins, ranks, scores, round)
    of_origin = np.bincount(table.origins, minlength=len(ORIGINS))
    told = {}
    for method, reasons in counts.items():
        stands = int(of_origin[ORIGINS.index(method)])
        removed = {REASONS[code]: int(n) for code, n in enumerate(reasons) if code != KEPT and n}
        if reasons[KEPT] > stands:
            removed[REPEATED] = int(reasons[KEPT]) - stands
        told[method] = {"candidates": int(reasons.sum()), **removed, "kept": stands}
    found = np.diff(table.offsets)[positives.queries]
    return MiningResult(table, told, config.num_negatives * len(config.methods), found, sources.scale.name)


def check_data(dataset: RetrievalDataset, split: str, config: MiningConfig) -> None:
    """Refuse settings that contradict each other or cannot be for a data set; see `mine`. Nothing long is done."""
    check_mining(config)
    if not (dataset.judgements[split].scores > 0).any():
        raise DataError(f"no query of split {split!r} has a relevant document", dataset.name, "choose another split")
    if config.range_min >= len(dataset.documents):
        raise ConfigError(
            f"{config.range_min} passes over all {len(dataset.documents):,} documents", "--range-min", "give less"
        )
    if config.drop_answers and dataset.answers is None:
        raise ConfigError(
            f"{dataset.name} brings no answers along", "--drop-answers", "add answers.jsonl (docs/reference/formats.md)"
        )
    rows = dataset.negatives
    if "gold" in config.methods and (rows is None or not (rows.origins == ORIGINS.index("gold")).any()):
        raise ConfigError(f"{dataset.name} brings no gold negatives along", "--method gold", "choose other methods")


DEPTH = 30
_BM25 = ORIGINS.index("bm25")


def build_negatives_table(
    dataset: RetrievalDataset, config: DataConfig, table: str, bm25: Callable[[], Bm25Index]
) -> NegativesTable:
    """The negatives table of one data set.

    Args:
        dataset: opened with its training split, and those whose positives must not be negatives.
        config: the training split and the mix.
        table: path of a negatives table, or nothing.
        bm25: makes or gives the index of all passages, asked only where it is needed.

    Raises:
        DataError: the table does not fit the data set.
    """
    tables = [read_negatives(table, dataset)] if table else []
    if rows := dataset.negatives:
        tables.append(NegativesTable.of(dataset, rows.queries, rows.documents, rows.origins, rows.ranks, rows.scores))
    found = NegativesTable.merged(dataset, tables) if tables else NegativesTable.none(dataset)
    shares = parse_mix(config.negatives_mix)
    wanted = not len(found) if shares is None else bool(shares[_BM25]) and not (found.origins == _BM25).any()
    if not wanted:
        return found
    mined = mine(dataset, config.train_split, MiningConfig(method="bm25", num_negatives=DEPTH), bm25=bm25)
    return NegativesTable.merged(dataset, [found, mined.table])
