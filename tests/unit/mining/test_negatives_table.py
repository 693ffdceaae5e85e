"""Sources of the hard negatives of a training run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raytriever.data.config import DataConfig
from raytriever.data.dataset import NegativeRows, RetrievalDataset
from raytriever.data.negatives import NegativesTable, write_negatives
from raytriever.data.prepare.open import open_dataset
from raytriever.data.records import ORIGINS
from raytriever.mining.bm25 import Bm25Index
from raytriever.mining.miner import build_negatives_table


@pytest.fixture
def dataset(tmp_path: Path) -> RetrievalDataset:
    """Data set of 160 documents that share a word with every query; the training split has 96 of the queries."""
    folder = tmp_path / "words"
    (folder / "qrels").mkdir(parents=True)
    for name, text in (("corpus", "garden number"), ("queries", "garden of")):
        rows = "".join(f'{{"_id": "{n}", "text": "{text} {n}"}}\n' for n in range(160))
        (folder / f"{name}.jsonl").write_text(rows)
    pairs = "".join(f"{n}\t{n}\t1\n" for n in range(96))
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + pairs)
    return open_dataset(folder, ["train"])


def with_negatives(dataset: RetrievalDataset, origin: str) -> RetrievalDataset:
    queries = np.arange(96)
    rows = NegativeRows(
        queries,
        (queries + 5) % 160,
        np.full(96, ORIGINS.index(origin)),
        np.zeros(96, np.int64),
        np.full(96, np.nan, np.float32),
    )
    return replace(dataset, negatives=rows)


def count_by_origin(dataset: RetrievalDataset, table: str = "", mix: str = "") -> dict[str, int]:
    config = DataConfig(negatives_per_query=2, negatives_mix=mix)
    counts = build_negatives_table(dataset, config, table, lambda: Bm25Index(dataset.passages())).counts()
    return {name: counts[name] for name in ORIGINS if name in counts}


def test_bm25_is_mined_if_the_data_set_has_no_negatives(dataset: RetrievalDataset) -> None:
    assert list(count_by_origin(dataset)) == ["bm25"]


def test_negatives_of_the_data_set_suffice(dataset: RetrievalDataset) -> None:
    assert count_by_origin(with_negatives(dataset, "gold")) == {"gold": 96}


def test_bm25_is_mined_if_the_mix_needs_it(dataset: RetrievalDataset) -> None:
    assert list(count_by_origin(with_negatives(dataset, "gold"), mix="gold=1,bm25=1")) == ["gold", "bm25"]
    assert count_by_origin(with_negatives(dataset, "bm25"), mix="gold=1,bm25=1") == {"bm25": 96}
    assert count_by_origin(with_negatives(dataset, "gold"), mix="gold=1,random=1") == {"gold": 96}
    assert count_by_origin(dataset, mix="random=1") == {}


def test_a_table_is_merged_with_the_negatives_of_the_data_set(dataset: RetrievalDataset, tmp_path: Path) -> None:
    mined = NegativesTable.of(dataset, np.arange(96), (np.arange(96) + 9) % 160, "dense")
    write_negatives(tmp_path / "mined", mined, dataset)
    assert count_by_origin(with_negatives(dataset, "gold"), table=str(tmp_path / "mined")) == {"gold": 96, "dense": 96}
