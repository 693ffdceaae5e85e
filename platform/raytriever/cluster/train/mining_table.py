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
class RoundOfMining:
    """What a round mines from.

    Args:
        datasets: each with the judgements of all its splits.
        split: whose queries are trained on.
        mining: the settings.
        seed: of the run.
        first: the table training began with; its rows of other origins stay beside those that are mined. None where
            the mined rows take its place.
    """

    datasets: Sequence[RetrievalDataset]
    split: str
    mining: MiningConfig
    seed: int
    first: NegativesTable | None = None

    def table(self, number: int, embeddings: Sequence[Embeddings]) -> tuple[NegativesTable, dict[str, float]]:
        """The table of a round, of all data sets in one, and its figures for the tracker.

        Only the judgements of the trained split are known to the filters; what the other splits call relevant goes
        afterwards, and its share tells how many false negatives there are among those that nobody has judged.

        Args:
            number: of the round.
            embeddings: of each data set.
        """
        tables, counts = [], []
        relevant = asked = 0
        for dataset, own in zip(self.datasets, embeddings, strict=True):
            known = replace(dataset, judgements={self.split: dataset.judgements[self.split]})
            mined = mine(known, self.split, self.mining, embeddings=own, seed=self.seed, round=number)
            found = mined.table
            table = NegativesTable.of(
                dataset, found.queries, found.documents, found.origins, found.ranks, found.scores, found.rounds
            )
            tables.append(table)
            counts.append(mined)
            if _judged_elsewhere(dataset, self.split, found):
                relevant, asked = relevant + table.relevant, asked + len(found)
        starts = [0, *itertools.accumulate(len(dataset.documents) for dataset in self.datasets[:-1])]
        table = tables[0] if len(tables) == 1 else NegativesTable.chained(tables, starts)
        told = _figures(counts)
        if asked:
            told["refresh_true_positives"] = relevant / asked
        if self.first is not None:
            table = NegativesTable.merged(combine(self.datasets), [table, _without(self.first, self.mining.methods)])
        return table, told


def _figures(mined: Sequence[MiningResult]) -> dict[str, float]:
    """Why candidates went, as shares of all; and queries that are left with fewer negatives than wanted, or none."""
    totals: dict[str, int] = {}
    for one in mined:
        for reasons in one.counts.values():
            for name, count in reasons.items():
                totals[name] = totals.get(name, 0) + count
    candidates = totals.pop("candidates", 0)
    told = {f"refresh_share_{_metric(name)}": count / max(1, candidates) for name, count in totals.items()}
    found = np.concatenate([one.counts_per_query for one in mined])
    told["refresh_queries_short"] = float((found < mined[0].wanted).mean())
    told["refresh_queries_without"] = float((found == 0).mean())
    return {"refresh_candidates": float(candidates), **told}


def _judged_elsewhere(dataset: RetrievalDataset, split: str, table: NegativesTable) -> bool:
    """Whether another split judges a query that negatives were mined for."""
    others = [rows.queries for name, rows in dataset.judgements.items() if name != split]
    return bool(others) and bool(np.isin(table.queries, np.concatenate(others)).any())


def _without(table: NegativesTable, origins: Sequence[str]) -> NegativesTable:
    """The rows of a table that others found."""
    keep = ~np.isin(table.origins, [ORIGINS.index(name) for name in origins])
    before = np.concatenate([[0], np.cumsum(keep)])
    columns = {name: getattr(table, name)[keep] for name in ("documents", "origins", "ranks", "scores", "rounds")}
    return replace(table, offsets=before[table.offsets], **columns)


def _metric(reason: str) -> str:
    """A reason as the tracker calls it."""
    return "".join(letter if letter.isalnum() else "_" for letter in reason.lower())
