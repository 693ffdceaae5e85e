"""A teacher's scores on their way into the steps: batches, training data, several data sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from raytriever.core.errors import DataError
from raytriever.data.data_settings import DataConfig
from raytriever.data.hard_negatives import NegativesTable
from raytriever.losses.distributed import ALONE
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.retrieval.encoding.shard_encoder import tokenization_of
from raytriever.training.loop import TrainingSetup
from raytriever.training.training_data import TrainingData

Make = Callable[..., tuple[TrainingSetup, object]]
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]


def test_a_batch_brings_the_scores_of_its_groups(taught: Make, score: Score) -> None:
    work, _ = taught()
    batch = work.train.batch(2, work.retriever, ALONE)
    relevance, teacher = batch.relevance, batch.relevance.group
    groups = relevance.passages.reshape(teacher.scores.shape)
    assert torch.equal(
        relevance.keep(relevance.passages)[teacher.columns][teacher.is_scored], groups[teacher.is_scored]
    )
    missing = 0
    for query, documents, scores in zip(relevance.queries.tolist(), groups, teacher.scores, strict=True):
        for document, actual in zip(documents.tolist(), scores.tolist(), strict=True):
            if (document - query) % 160 == 5:
                missing += 1
                assert np.isnan(actual)
            else:
                assert actual == pytest.approx(float(score(np.array(query), np.array(document))), rel=1e-6)
    assert 0 < missing < 16
    assert work.dev.batch(0, work.retriever, ALONE).relevance.group is None
    moved = relevance.map(lambda tensor: tensor.to("meta")).group
    assert moved.scores.device.type == moved.columns.device.type == "meta"


@pytest.fixture
def scores(tmp_path: Path, score: Score) -> Path:
    """Of the positive and of the next document of every query, as a file of somebody's."""
    queries = np.repeat(np.arange(160), 2)
    documents = (queries + np.tile([0, 1], 160)) % 160
    columns = {"query": [f"q{q}" for q in queries], "document": [f"d{d}" for d in documents]}
    pq.write_table(pa.table({**columns, "score": score(queries, documents)}), tmp_path / "scores.parquet")
    return tmp_path / "scores.parquet"


def open_material(encoder: Path, dataset: Path, **settings: object) -> TrainingData:
    config = DataConfig(dataset=str(dataset), negatives_per_query=1, **settings)
    return TrainingData.open(
        config.datasets, config, tokenization_of(load_retriever(ModelConfig(str(encoder)))), 16, seed=0
    )


def test_material_reads_scores_and_answers_for_them(
    tiny_encoder: Path, tiny_dataset: Path, scores: Path, score: Score
) -> None:
    plain, training_data = (
        open_material(tiny_encoder, tiny_dataset, **settings) for settings in ({}, {"teacher": str(scores)})
    )
    dataset = training_data.datasets[0]
    near, far = (NegativesTable.of(dataset, np.arange(96), (np.arange(96) + shift) % 160, "gold") for shift in (1, 2))
    assert plain.train(near).teacher is None
    assert training_data.train(near).teacher.scores[:2].tolist() == score(np.zeros(2), np.arange(2)).tolist()
    assert training_data.train(None).teacher is not None
    with pytest.raises(DataError, match=r"scores.parquet: has no score for any of the 96 hard negatives"):
        training_data.train(far)
    assert len({plain.digest(near), training_data.digest(near), training_data.digest(far)}) == 3
    assert training_data.dev().teacher is None


def test_scores_of_several_data_sets(tiny_encoder: Path, tiny_dataset: Path, scores: Path) -> None:
    again = tiny_dataset.parent / tiny_dataset.name
    for given, logged in ((f"{scores}", 1), (f",{scores}", 1), (f"{scores},{scores}", 2)):
        training_data = open_material(tiny_encoder, tiny_dataset, extra_datasets=str(again), teacher=given)
        assert len(training_data.teacher) == logged * 320
        first = np.isfinite(training_data.teacher.of_pairs(np.array([3, 163]), np.array([3, 163])))
        assert first.tolist() == [not given.startswith(","), given != f"{scores}"]
    with pytest.raises(DataError, match=r"a: there are no scores; give a directory that `raytriever score` wrote"):
        _ = open_material(tiny_encoder, tiny_dataset, extra_datasets=str(again), teacher="a,b").teacher
