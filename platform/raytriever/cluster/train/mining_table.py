"""Hard-negative table of one mining round, from the embeddings of all queries and documents. Imports no Ray."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from raytriever.data.combine import combine
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives import NegativesTable
from raytriever.data.records import ORIGINS
from raytriever.mining.config import MiningConfig
from raytriever.mining.miner import MiningResult, mine
from raytriever.mining.scorers import Embeddings


@dataclass(frozen=True)
class TableMiner:
    """Miner of the table of a round.

    Args:
        datasets: each with the judgements of all its splits.
        split: whose queries are trained on.
        mining: the settings.
        seed: of the run.
        first: the table that training began with, whose rows of other origins are kept; None where the mined rows
            replace it.
    """

    datasets: Sequence[RetrievalDataset]
    split: str
    mining: MiningConfig
    seed: int
    first: NegativesTable | None = None

    def table(self, number: int, embeddings: Sequence[Embeddings]) -> tuple[NegativesTable, dict[str, float]]:
        """Return the table of a round, of all data sets in one, and its metrics for the tracker.

        The filters know only the judgements of the trained split. Documents that other splits judge relevant are
        removed afterwards; their share estimates the false negatives among the unjudged documents.

        Args:
            number: of the round.
            embeddings: of each data set.
        """
        tables, counts = [], []
        relevant = judged = 0
        for dataset, own in zip(self.datasets, embeddings, strict=True):
            known = replace(dataset, judgements={self.split: dataset.judgements[self.split]})
            mined = mine(known, self.split, self.mining, embeddings=own, seed=self.seed, round=number)
            rows = mined.table
            table = NegativesTable.of(
                dataset, rows.queries, rows.documents, rows.origins, rows.ranks, rows.scores, rows.rounds
            )
            tables.append(table)
            counts.append(mined)
            if _has_other_judgements(dataset, self.split, rows):
                relevant, judged = relevant + table.relevant, judged + len(rows)
        starts = [0, *itertools.accumulate(len(dataset.documents) for dataset in self.datasets[:-1])]
        table = tables[0] if len(tables) == 1 else NegativesTable.chained(tables, starts)
        metrics = _metrics(counts)
        if judged:
            metrics["refresh_true_positives"] = relevant / judged
        if self.first is not None:
            table = NegativesTable.merged(combine(self.datasets), [table, _without(self.first, self.mining.methods)])
        return table, metrics


def _metrics(mined: Sequence[MiningResult]) -> dict[str, float]:
    """Return the shares of candidates by the reason of their removal, and of queries with too few negatives or none."""
    totals: dict[str, int] = {}
    for one in mined:
        for reasons in one.counts.values():
            for name, count in reasons.items():
                totals[name] = totals.get(name, 0) + count
    candidates = totals.pop("candidates", 0)
    shares = {f"refresh_share_{_metric_name(name)}": count / max(1, candidates) for name, count in totals.items()}
    found = np.concatenate([one.counts_per_query for one in mined])
    shares["refresh_queries_short"] = float((found < mined[0].wanted).mean())
    shares["refresh_queries_without"] = float((found == 0).mean())
    return {"refresh_candidates": float(candidates), **shares}


def _has_other_judgements(dataset: RetrievalDataset, split: str, table: NegativesTable) -> bool:
    """Return whether another split judges a query that negatives were mined for."""
    others = [rows.queries for name, rows in dataset.judgements.items() if name != split]
    return bool(others) and bool(np.isin(table.queries, np.concatenate(others)).any())


def _without(table: NegativesTable, origins: Sequence[str]) -> NegativesTable:
    """Return the rows of a table that have other origins."""
    keep = ~np.isin(table.origins, [ORIGINS.index(name) for name in origins])
    before = np.concatenate([[0], np.cumsum(keep)])
    columns = {name: getattr(table, name)[keep] for name in ("documents", "origins", "ranks", "scores", "rounds")}
    return replace(table, offsets=before[table.offsets], **columns)


def _metric_name(reason: str) -> str:
    """Return the reason as a metric name."""
    return "".join(letter if letter.isalnum() else "_" for letter in reason.lower())
