"""User errors of mining, and documents that cannot be encoded."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.errors import ConfigError, DataError, ModelError
from raytriever.mining.bm25 import Bm25Index
from raytriever.mining.config import MiningConfig
from raytriever.mining.miner import mine
from raytriever.mining.scorers import ArrayEmbeddings, Embeddings

sys.path.append(str(Path(__file__).parents[2] / "support"))
from mining_data import dataset_of, rows_of


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (MiningConfig(method="bm52"), ConfigError, "--method: unknown method 'bm52'; did you mean 'bm25'?"),
        (MiningConfig(method="bm25,bm25"), ConfigError, "'bm25' is named twice"),
        (MiningConfig(range_min=60), ConfigError, "--range-min: 60 skips all 60 documents"),
        (MiningConfig(range_min=5, range_max=5), ConfigError, "--range-max: 5 is not above --range-min 5"),
        (MiningConfig(range_min=2, range_max=8), ConfigError, "--num-negatives: 10 negatives out of 6 ranks (2 to 7)"),
        (
            MiningConfig(method="random", max_score=1.0),
            ConfigError,
            "--max-score: has no effect with --method random and without --judge",
        ),
        (
            MiningConfig(judge="x"),
            ConfigError,
            "--judge: has no effect without --relative-margin and without --absolute-margin",
        ),
        (MiningConfig(method="dense"), ConfigError, "dense and cross-query need embeddings"),
        (MiningConfig(drop_answers=True), ConfigError, "--drop-answers: made has no answers"),
        (MiningConfig(method="gold"), ConfigError, "--method gold: made has no gold negatives"),
    ],
)
def test_user_errors_name_the_flag(
    word_data: tuple[RetrievalDataset, Embeddings], config: MiningConfig, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        mine(replace(word_data[0], negatives=None), "train", config)
    assert message in str(raised.value)


def test_an_empty_split_and_broken_embeddings_are_refused(word_data: tuple[RetrievalDataset, Embeddings]) -> None:
    dataset, embeddings = word_data
    with pytest.raises(DataError, match="no query of split 'none' has a relevant document"):
        mine(dataset_of(["a"], ["b"], none=[]), "none", MiningConfig())
    dense = MiningConfig(method="dense")
    broken = embeddings.queries.copy()
    broken[7, 3] = np.nan
    with pytest.raises(ModelError, match="the embedding of query 7 is not finite"):
        mine(dataset, "train", dense, embeddings=Embeddings(broken, embeddings.documents))
    with pytest.raises(ModelError, match="39 embeddings of 40 queries"):
        mine(dataset, "train", dense, embeddings=Embeddings(embeddings.queries[1:], embeddings.documents))
    bad = np.full((60, 16), np.inf, np.float32)
    bad[0] = 0
    with pytest.raises(ModelError, match="the embedding of document 1 is not finite"):
        mine(dataset, "train", dense, embeddings=Embeddings.of(embeddings.queries, bad))


@dataclass(frozen=True)
class PartialEmbeddings(ArrayEmbeddings):
    """Embeddings with rows of 0 for documents that could not be encoded."""

    missing: tuple[int, ...] = ()

    @property
    def left_out(self) -> np.ndarray:
        return np.array(self.missing, dtype=np.int64)


@pytest.mark.parametrize("method", ["dense", "bm25,dense", "dense,random,gold"])
def test_a_document_without_an_embedding_is_no_negative_and_sets_no_bound(
    word_data: tuple[RetrievalDataset, Embeddings], method: str
) -> None:
    dataset, whole = word_data
    positive = int(dataset.positives("train").of(4)[0])
    missing = (positive, 7, 8, 9)
    array = whole.documents.read(np.arange(60)).copy()
    array[list(missing)] = 0
    config = MiningConfig(method=method, num_negatives=50, range_max=60, relative_margin=0.0)
    mined = mine(dataset, "train", config, embeddings=Embeddings(whole.queries, PartialEmbeddings(array, missing)))
    assert not set(mined.table.documents.tolist()) & set(missing)
    assert np.isfinite(mined.table.scores).all()
    assert mined.counts["dense"]["has no embedding"] > 50
    # A query without a scored positive gets no negative, because the margin has no bound; other queries do.
    assert mined.counts_per_query[4] == 0
    assert mined.counts_per_query.max() > 5


@pytest.mark.data
def test_queries_with_many_positives(data_packs: Path) -> None:
    dataset = open_dataset(data_packs / "adi", ["test"])
    positives = dataset.positives("test")
    mined = mine(dataset, "test", MiningConfig(num_negatives=20))
    index = Bm25Index(dataset.passages())
    for row, query in enumerate(positives.queries.tolist()):
        ranking = index.search([dataset.queries.texts[query]], 82)[1][0].tolist()
        own = dataset.queries.ids[query]
        wanted = [d for d in ranking if d not in positives.of(row) and dataset.documents.ids[d] != own]
        rows = rows_of(mined)[query]
        assert [document for document, _ in rows] == wanted[: len(rows)]
        assert len(rows) > 0
