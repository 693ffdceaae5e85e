"""A part of a corpus on which checkpoints are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.evaluation.evaluated_datasets import sample_corpus
from raytriever.retrieval.mining.bm25 import Bm25Index


@pytest.fixture(scope="module")
def dataset(tiny_dataset: Path) -> RetrievalDataset:
    return open_dataset(tiny_dataset, ["dev"])


def index_of(dataset: RetrievalDataset) -> Bm25Index:
    return Bm25Index(dataset.passages())


def ids(dataset: RetrievalDataset) -> list[str]:
    return list(dataset.documents.ids)


def test_judged_documents_stay_and_others_come_by_rank_and_by_seed(dataset: RetrievalDataset) -> None:
    judged = {dataset.documents.ids[int(position)] for position in dataset.judgements["dev"].documents}
    part = sample_corpus(dataset, "dev", 20, 3, index_of)
    assert len(ids(part)) == len(set(ids(part))) == len(judged) + 20
    assert judged <= set(ids(part))
    # In the order of the whole, each with its own texts and judgements.
    assert ids(part) == [name for name in ids(dataset) if name in set(ids(part))]
    position = {name: number for number, name in enumerate(ids(dataset))}
    assert [part.passage_text(n) for n in range(len(part.documents))] == [
        dataset.passage_text(position[name]) for name in ids(part)
    ]
    pairs = [
        {(int(q), item.documents.ids[int(d)]) for q, d in zip(rows.queries, rows.documents, strict=True)}
        for item, rows in ((dataset, dataset.judgements["dev"]), (part, part.judgements["dev"]))
    ]
    assert pairs[0] == pairs[1]
    assert np.array_equal(part.positives("dev").queries, dataset.positives("dev").queries)
    # Half of them are what BM25 ranks first; the other half is drawn.
    again, other = (sample_corpus(dataset, "dev", 20, seed, index_of) for seed in (3, 4))
    assert ids(again) == ids(part)
    same = set(ids(other)) & set(ids(part)) - judged
    assert 10 <= len(same) < 20


def test_where_the_corpus_has_no_more_it_is_the_whole(dataset: RetrievalDataset) -> None:
    def nobody(dataset: RetrievalDataset) -> Bm25Index:
        raise AssertionError("no index is needed")

    assert sample_corpus(dataset, "dev", 128, 0, nobody) is dataset
    alone = sample_corpus(dataset, "dev", 0, 0, nobody)
    assert len(alone.documents) == 32
