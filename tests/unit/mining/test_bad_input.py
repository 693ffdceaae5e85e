"""What cannot be mined is told, and what cannot be encoded is left out."""

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
from gardens import made, rows_of


@pytest.mark.parametrize(
    ("config", "error", "told"),
    [
        (MiningConfig(method="bm52"), ConfigError, "--method: unknown method 'bm52'; did you mean 'bm25'?"),
        (MiningConfig(method="bm25,bm25"), ConfigError, "'bm25' is named twice"),
        (MiningConfig(range_min=60), ConfigError, "--range-min: 60 passes over all 60 documents"),
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
        (MiningConfig(drop_answers=True), ConfigError, "--drop-answers: made brings no answers along"),
        (MiningConfig(method="gold"), ConfigError, "--method gold: made brings no gold negatives along"),
    ],
)
def test_mistakes_are_told(
    gardens: tuple[RetrievalDataset, Embeddings], config: MiningConfig, error: type[Exception], told: str
) -> None:
    with pytest.raises(error) as raised:
        mine(replace(gardens[0], negatives=None), "train", config)
    assert told in str(raised.value)


def test_an_empty_split_and_broken_embeddings_are_told(gardens: tuple[RetrievalDataset, Embeddings]) -> None:
    dataset, embeddings = gardens
    with pytest.raises(DataError, match="no query of split 'none' has a relevant document"):
        mine(made(["a"], ["b"], none=[]), "none", MiningConfig())
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
class Partly(ArrayEmbeddings):
    """Embeddings of which some rows are 0, for want of one."""

    missing: tuple[int, ...] = ()

    @property
    def left_out(self) -> np.ndarray:
        return np.array(self.missing, dtype=np.int64)


@pytest.mark.parametrize("method", ["dense", "bm25,dense", "dense,random,gold"])
def test_a_document_that_kills_the_encoder_is_no_negative_and_bounds_nothing(
    gardens: tuple[RetrievalDataset, Embeddings], method: str
) -> None:
    dataset, whole = gardens
    positive = int(dataset.positives("train").of(4)[0])
    missing = (positive, 7, 8, 9)
    array = whole.documents.read(np.arange(60)).copy()
    array[list(missing)] = 0
    config = MiningConfig(method=method, num_negatives=50, range_max=60, relative_margin=0.0)
    mined = mine(dataset, "train", config, embeddings=Embeddings(whole.queries, Partly(array, missing)))
    assert not set(mined.table.documents.tolist()) & set(missing)
    assert np.isfinite(mined.table.scores).all()
    assert mined.counts["dense"]["has no embedding"] > 50
    # A query none of whose positives has a score gets nothing that is held to one; others do.
    assert mined.found[4] == 0
    assert mined.found.max() > 5


@pytest.mark.data
def test_many_positives_a_query(data_packs: Path) -> None:
    dataset = open_dataset(data_packs / "adi", ["test"])
    positives = dataset.positives("test")
    mined = mine(dataset, "test", MiningConfig(num_negatives=20))
    index = Bm25Index(dataset.passages())
    for place, query in enumerate(positives.queries.tolist()):
        ranking = index.search([dataset.queries.texts[query]], 82)[1][0].tolist()
        own = dataset.queries.ids[query]
        wanted = [d for d in ranking if d not in positives.of(place) and dataset.documents.ids[d] != own]
        rows = rows_of(mined)[query]
        assert [document for document, _ in rows] == wanted[: len(rows)]
        assert len(rows) > 0
