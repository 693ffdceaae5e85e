"""Mine the hard negatives of a split: from a data set, a BM25 index or embeddings, and settings, to a table.

1. Each method finds candidates for each query (`mine_finders`), block by block.
2. What is known to be no negative goes (`negatives.known`), then passages that hold an answer, then what scores too
   high on the one scale of the table (`mine_scales`).
3. Of the rest the first, or drawn ones, are kept (`negatives.filters`). Draws follow from (seed, round, query id).
4. The methods' negatives become one table; a document that two of them keep for a query stands there once.

No Ray, no files: whoever has embeddings, after encoding or in the middle of training, gets the same table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.activity import activity
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives_table import NegativesTable
from raytriever.data.records import ORIGINS
from raytriever.errors import ConfigError, DataError
from raytriever.negatives.bm25 import Bm25Index
from raytriever.negatives.config import MiningConfig, check_mining
from raytriever.negatives.filters import KEPT, REASONS
from raytriever.retrieval.mine_filtering import Filtering
from raytriever.retrieval.mine_scales import Embeddings, Judge
from raytriever.retrieval.mine_sources import Sources

REPEATED = "found by another method too"


@dataclass(frozen=True)
class Mined:
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
) -> Mined:
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
    sources = Sources(dataset, positives, config, embeddings, bm25, judge, seed, round)
    filtering = Filtering(dataset, config, sources, seed, round)
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
    return Mined(table, told, config.num_negatives * len(config.methods), found, sources.scale.name)


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
            f"{dataset.name} brings no answers along", "--drop-answers", "add answers.jsonl (docs/formats.md)"
        )
    rows = dataset.negatives
    if "gold" in config.methods and (rows is None or not (rows.origins == ORIGINS.index("gold")).any()):
        raise ConfigError(f"{dataset.name} brings no gold negatives along", "--method gold", "choose other methods")
