"""A method's candidates, block by block of queries, through every filter to those that are kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.draws import words
from raytriever.negatives.config import MiningConfig
from raytriever.negatives.filters import (
    ANSWER,
    KEPT,
    NO_EMBEDDING,
    REASONS,
    choose,
    hold_to_scores,
    open_verdicts,
    tally,
)
from raytriever.negatives.known import RELEVANT
from raytriever.negatives.texts import holds_answer
from raytriever.retrieval.mine_finders import CHOICE, Finder
from raytriever.retrieval.mine_sources import Sources
from raytriever.tracking.progress import Progress

# Candidates of a block: some hundred megabytes of positions, scores, ranks and verdicts.
BLOCK = 1 << 22


@dataclass(frozen=True)
class Filtering:
    """Runs a method's candidates through the filters."""

    dataset: RetrievalDataset
    config: MiningConfig
    sources: Sources
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
                verdicts, ranks = open_verdicts(found, known.padded(rows), first, end)
                if len(self.sources.left_out):  # what kills the encoder would kill the training, too
                    verdicts[(verdicts == KEPT) & np.isin(found, self.sources.left_out)] = NO_EMBEDDING
                scores = self._judge(finder, rows, found, scores, verdicts)
                draws = None
                if config.sampling_strategy == "random":
                    keys = self.sources.keys[rows]
                    draws = words(self.seed, np.full(len(rows), self.round), keys, CHOICE, np.arange(found.shape[1]))
                choose(verdicts, config.num_negatives, draws)
                counts += tally(verdicts)
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
        self, finder: Finder, rows: ndarray, found: ndarray, scores: ndarray, verdicts: ndarray
    ) -> Float32[ndarray, "block places"]:
        """Remove what holds an answer or scores too high; the scores of what is left, on the table's scale."""
        config, scale = self.config, self.sources.scale
        if config.drop_answers:
            self._drop_answers(rows, found, verdicts)
        if scale.name and scale.name != finder.scale:
            scores = scale.pairs(rows, np.where(verdicts == KEPT, found, -1))
        if config.holds_to_scores:
            documents, reasons = self.sources.known.padded(rows)
            of_positives = scale.pairs(rows, np.where(reasons == RELEVANT, documents, -1))
            lowest = np.fmin.reduce(of_positives, axis=1)
            hold_to_scores(verdicts, scores, lowest, config.max_score, config.absolute_margin, config.relative_margin)
        return scores

    def _drop_answers(self, rows: ndarray, found: ndarray, verdicts: ndarray) -> None:
        for place, row in enumerate(rows):
            answers = self.sources.answers_of(int(row))
            if not answers:
                continue
            for column in np.flatnonzero(verdicts[place] == KEPT):
                if holds_answer(self.sources.passage(int(found[place, column])), answers):
                    verdicts[place, column] = ANSWER
