"""Where the hard negatives of a run come from.

1. The negatives table that is named, and the rows that the data set brings along, whoever found them.
2. BM25, where these have none, or where the mix asks for some of BM25's and they have none of those.
"""

from __future__ import annotations

from collections.abc import Callable

from raytriever.data.config import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives_file import read_negatives
from raytriever.data.negatives_table import NegativesTable
from raytriever.data.origins import parse_mix
from raytriever.data.records import ORIGINS
from raytriever.negatives.bm25 import Bm25Index
from raytriever.negatives.config import MiningConfig
from raytriever.retrieval.mine import mine

DEPTH = 30
_BM25 = ORIGINS.index("bm25")


def hard_negatives(
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
