"""Miner of a split's hard negatives: it makes a table from a data set, a BM25 index or embeddings, and settings.

1. Each method finds candidates for each query (`candidate_search`), block by block.
2. Excluded documents are removed, then passages that contain an answer, then candidates whose scores are too high
   (`filters`).
3. The first of the remaining candidates, or random ones, are kept. Random numbers depend only on (seed, round, query
   id).
4. The negatives of all methods become one table. A document that two methods keep for a query appears once.

`build_negatives_table` makes the table of a training run from the table that the user names, the hard negatives of the
data set, and BM25's negatives. BM25's are added if there are no others, or if `negatives_mix` names them. This module
does not use Ray, so that mining gives the same table in a command and during training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.core.errors import ConfigError, DataError, setting
from raytriever.core.progress import Progress, activity
from raytriever.core.reading.arrays import read_arrays
from raytriever.core.store.unfinished_pieces import Pieces
from raytriever.data.data_settings import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.hard_negatives import NegativesTable, read_negatives
from raytriever.data.records_and_bad_rows import ORIGINS
from raytriever.data.sampling.batch_order import words
from raytriever.data.sampling.training_examples import parse_mix
from raytriever.retrieval.mining import filters
from raytriever.retrieval.mining.bm25 import Bm25Index
from raytriever.retrieval.mining.candidate_search import CHOICE, Embeddings, Judge, MiningInputs
from raytriever.retrieval.mining.mining_settings import MiningConfig

# Number of candidates in a block. Their positions, scores, ranks and verdicts take a few hundred megabytes.
BLOCK = 1 << 22
# Number of queries that BM25 ranks in one block. Small blocks show progress and take no more time: BM25 reads the
# postings again for about every hundred queries anyway. But a dense search reads all documents for each block.
BM25_QUERIES = 1 << 14
REPEATED = "found by another method too"
# Number of negatives per query that `build_negatives_table` mines.
DEFAULT_NEGATIVES = 30
_BM25 = ORIGINS.index("bm25")
# Methods whose search already scores the candidates, each with the name of the scorer.
_SCORER_OF = {"bm25": "bm25", "dense": "encoder"}
_FILE = "block.npz"
# Types and shape of each array in the file of a block.
_EXPECTED: dict[str, tuple[list[str], tuple[int | None, ...]]] = {
    **{name: (["int64"], (None,)) for name in ("queries", "documents", "ranks")},
    "scores": (["float32"], (None,)),
    "verdicts": (["int64"], (len(filters.REASONS),)),
}


class MinedBlock(NamedTuple):
    """Result of mining a block of queries with one method: columns of the kept candidates, and counts.

    A finished block is stored as a piece (`store.unfinished_pieces`) with one file, so that a killed job continues
    after it. Blocks depend only on the inputs, whose digest names the folder of the pieces."""

    queries: Int64[ndarray, " kept"]  # index of the query in the split
    documents: Int64[ndarray, " kept"]  # position in the corpus
    ranks: Int64[ndarray, " kept"]  # rank in the method's ranking after the excluded documents are removed
    scores: Float32[ndarray, " kept"]  # scores by the scorer of the table; NaN if there is none
    verdicts: Int64[ndarray, " reasons"]  # number of candidates with each verdict; see `filters.REASONS`

    def save(self, folder: Path) -> None:
        """Write the block into a folder."""
        np.savez(
            folder / _FILE, **{name: value.astype(_EXPECTED[name][0][0]) for name, value in self._asdict().items()}
        )

    @classmethod
    def load(cls, folder: Path, meta: object = None) -> MinedBlock:
        """Read a block from a folder. Raises `StorageError` if the file is damaged."""
        return cls(**read_arrays(folder / _FILE, _EXPECTED, "delete it, and run the command again"))


@dataclass(frozen=True)
class CandidateFilter:
    """Search and filter of the candidates, one method after another. `finished` blocks are not mined again."""

    inputs: MiningInputs
    finished: Pieces

    def run(self, method: str) -> tuple[tuple[ndarray, ...], ndarray]:
        """Mine with one method. Return the kept candidates as columns, and the number of candidates for each verdict.

        The columns are the index of the query in the split, document, rank and score."""
        excluded = self.inputs.excluded
        first, end = self._ranks(method)
        order = np.argsort(excluded.counts, kind="stable")
        most = BM25_QUERIES if method == "bm25" else len(order)
        mined: list[MinedBlock] = []
        start = 0

        def next_rows() -> Int64[ndarray, " block"]:
            """Return the queries of the next block. Its last query has the most excluded documents."""
            cells = (end + excluded.counts[order[start:]]) * np.arange(1, len(order) - start + 1)
            return order[start : start + max(1, min(most, int(np.searchsorted(cells, BLOCK, side="right"))))]

        while start < len(order) and (block := self.finished.read(f"{method}-{start:08}", MinedBlock.load)):
            mined.append(block)
            start += len(next_rows())
        with Progress(f"mine {method}", len(order), "text", done=start) as progress:
            while start < len(order):
                rows = next_rows()
                mined.append(self._mine(method, rows, first, end))
                self.finished.write(f"{method}-{start:08}", mined[-1].save)
                start += len(rows)
                progress.advance(len(rows))
        columns = zip(*(block[:4] for block in mined), strict=True)
        return tuple(map(np.concatenate, columns)), np.sum([block.verdicts for block in mined], axis=0)

    def _mine(self, method: str, rows: Int64[ndarray, " block"], first: int, end: int) -> MinedBlock:
        inputs, config, excluded = self.inputs, self.inputs.config, self.inputs.excluded
        documents, scores = inputs.find(method, rows, min(end, len(inputs.dataset.documents)))
        verdicts, ranks = filters.initial_verdicts(documents, rows, excluded, first, end)
        scores = self._remove_false_negatives(method, rows, documents, scores, verdicts)
        random_keys = None
        if config.sampling_strategy == "random":
            columns = np.arange(documents.shape[1])
            random_keys = words(inputs.seed, np.full(len(rows), inputs.round), inputs.keys[rows], CHOICE, columns)
        filters.choose(verdicts, config.num_negatives, random_keys)
        row, column = np.nonzero(verdicts == filters.KEPT)
        counts = np.bincount(verdicts[verdicts != filters.NO_CANDIDATE], minlength=len(filters.REASONS))
        return MinedBlock(rows[row], documents[row, column], ranks[row, column], scores[row, column], counts)

    def _ranks(self, method: str) -> tuple[int, int]:
        """Return the first rank of candidates (0 for gold and random), and the rank after their last one."""
        config, negatives = self.inputs.config, self.inputs.dataset.negatives
        if method == "gold":
            assert negatives is not None
            return 0, int(np.bincount(negatives.queries).max())
        if method == "random":
            return 0, config.depth - config.range_min
        return config.range_min, config.depth

    def _remove_false_negatives(
        self, method: str, rows: ndarray, documents: ndarray, scores: ndarray, verdicts: ndarray
    ) -> Float32[ndarray, "block columns"]:
        """Remove candidates that contain an answer or score too high, in place. Return scores by the table's scorer."""
        config, scorer = self.inputs.config, self.inputs.scorer
        if config.drop_answers:
            self._drop_answers(rows, documents, verdicts)
        if scorer is not None and scorer.name != _SCORER_OF.get(method):
            scores = scorer.score(rows, np.where(verdicts == filters.KEPT, documents, -1))
        if config.has_score_bounds:
            assert scorer is not None, "settings without a scorer have been rejected earlier"
            positive_scores = scorer.score(rows, self.inputs.excluded.relevant(rows))
            lowest = np.fmin.reduce(positive_scores, axis=1)
            filters.apply_score_bounds(
                verdicts, scores, lowest, config.max_score, config.absolute_margin, config.relative_margin
            )
        return scores

    def _drop_answers(self, rows: ndarray, documents: ndarray, verdicts: ndarray) -> None:
        for index, row in enumerate(rows):
            answers = self.inputs.answers_of(int(row))
            if not answers:
                continue
            for column in np.flatnonzero(verdicts[index] == filters.KEPT):
                if filters.contains_answer(self.inputs.passage(int(documents[index, column])), answers):
                    verdicts[index, column] = filters.ANSWER


@dataclass(frozen=True)
class MiningResult:
    """Result of a mining job."""

    table: NegativesTable
    # For each method, the number of `candidates`, of `kept` candidates, and of candidates removed for each reason. Kept
    # and removed candidates add up to all. Reasons without candidates are omitted.
    counts: dict[str, dict[str, int]]
    wanted: int  # number of negatives that each query should get from all methods together
    # Number of negatives of each query, in the order of `dataset.positives(split)`.
    counts_per_query: Int64[ndarray, " queries"]
    scorer: str  # name of the scorer of the table: `encoder`, `bm25`, `judge`, or empty

    def meta(self) -> dict[str, object]:
        """Return the entries of the table's manifest."""
        return {
            "counts": self.counts,
            "scores": self.scorer,
            "queries": len(self.counts_per_query),
            "queries_short": int((self.counts_per_query < self.wanted).sum()),
            "queries_without": int((self.counts_per_query == 0).sum()),
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
    finished: Path | None = None,
) -> MiningResult:
    """Mine the negatives of the queries of a split.

    Args:
        dataset: data set opened with the split. Documents judged relevant in any of its open splits are excluded.
        config: settings of the methods and the filters, checked with `check_options`.
        embeddings: embeddings for `dense` and `cross-query`.
        bm25: function that returns the index of all passages; by default the index is built when needed.
        judge: scorer of pairs of texts, if the settings name a judge.
        seed, round: two numbers on which all random numbers depend; the table records the round.
        finished: folder of finished blocks. Blocks that a killed call with the same arguments finished are not mined
            again. This call stores its blocks there too.

    Raises:
        ConfigError: the range lies beyond the corpus, or gold negatives or answers are requested from a data set that
            has none.
        DataError: no query of the split has a relevant document.
        ModelError: embeddings or scores are not finite.
    """
    check_data(dataset, split, config)
    inputs = MiningInputs(dataset, split, config, embeddings, bm25, judge, seed, round)
    positives = inputs.positives
    candidate_filter = CandidateFilter(inputs, Pieces(finished, f"{BLOCK} {BM25_QUERIES}", optional="a mining"))
    kept, verdict_counts = [], {}
    for method in config.methods:
        columns, verdict_counts[method] = candidate_filter.run(method)
        kept.append(columns)
    queries, documents, ranks, scores = (np.concatenate(column) for column in zip(*kept, strict=True))
    origins = np.repeat([ORIGINS.index(method) for method in config.methods], [len(columns[0]) for columns in kept])
    table = NegativesTable.of(dataset, positives.queries[queries], documents, origins, ranks, scores, round)
    rows_per_origin = np.bincount(table.origins, minlength=len(ORIGINS))
    counts = {}
    for method, verdicts in verdict_counts.items():
        rows = int(rows_per_origin[ORIGINS.index(method)])
        removed = {filters.REASONS[code]: int(n) for code, n in enumerate(verdicts) if code != filters.KEPT and n}
        if verdicts[filters.KEPT] > rows:
            removed[REPEATED] = int(verdicts[filters.KEPT]) - rows
        counts[method] = {"candidates": int(verdicts.sum()), **removed, "kept": rows}
    counts_per_query = np.diff(table.offsets)[positives.queries]
    wanted = config.num_negatives * len(config.methods)
    return MiningResult(table, counts, wanted, counts_per_query, inputs.scorer.name if inputs.scorer else "")


def check_data(dataset: RetrievalDataset, split: str, config: MiningConfig) -> None:
    """Check quickly whether the settings suit a data set. Raises the errors of `mine`."""
    if not (dataset.judgements[split].scores > 0).any():
        raise DataError(f"no query of split {split!r} has a relevant document", dataset.name, "choose another split")
    if config.range_min >= len(dataset.documents):
        what = f"{config.range_min} skips all {len(dataset.documents):,} documents"
        raise ConfigError(what, setting("range_min"), "give a smaller number")
    if config.drop_answers and dataset.answers is None:
        remedy = "add answers.jsonl (docs/reference/formats.md)"
        raise ConfigError(f"{dataset.name} has no answers", setting("drop_answers", True), remedy)
    rows = dataset.negatives
    if "gold" in config.methods and (rows is None or not (rows.origins == ORIGINS.index("gold")).any()):
        raise ConfigError(f"{dataset.name} has no gold negatives", setting("method", "gold"), "choose other methods")


def build_negatives_table(
    dataset: RetrievalDataset, config: DataConfig, table: str, bm25: Callable[[], Bm25Index]
) -> NegativesTable:
    """Build the negatives table of one data set for training.

    Args:
        dataset: data set opened with its training split and with the splits whose positives must not become negatives.
        config: settings with the training split and the mix of origins.
        table: path of a negatives table, or empty.
        bm25: function that returns the index of all passages; called only if needed.
    """
    tables = [read_negatives(table, dataset)] if table else []
    if rows := dataset.negatives:
        tables.append(NegativesTable.of(dataset, rows.queries, rows.documents, rows.origins, rows.ranks, rows.scores))
    merged = NegativesTable.merged(dataset, tables) if tables else NegativesTable.none(dataset)
    fractions = parse_mix(config.negatives_mix)
    needs_bm25 = (
        not len(merged) if fractions is None else bool(fractions[_BM25]) and not (merged.origins == _BM25).any()
    )
    if not needs_bm25:
        return merged
    mined = mine(dataset, config.train_split, MiningConfig(method="bm25", num_negatives=DEFAULT_NEGATIVES), bm25=bm25)
    return NegativesTable.merged(dataset, [merged, mined.table])
