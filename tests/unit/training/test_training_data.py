"""Training data: one data set or several, equal in every process; a teacher's scores on their way into the steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from beir import write_beir, write_rows

from raytriever.core.errors import ConfigError, DataError
from raytriever.data.data_settings import DataConfig
from raytriever.data.hard_negatives import NegativesTable
from raytriever.data.prepare.corpus_tokenization import Tokenization
from raytriever.losses.distributed import ALONE
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.retrieval.encoding.shard_encoder import tokenization_of
from raytriever.training.loop import TrainingSetup
from raytriever.training.training_data import TrainingData


@pytest.fixture(scope="module")
def retriever(tiny_encoder: Path) -> Retriever:
    return load_retriever(ModelConfig(str(tiny_encoder)))


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Sixteen documents of one word and two queries each, a training split alone."""
    documents, queries = [f"word {n}" for n in range(16)], [f"number {n}" for n in range(32)]
    return write_beir(tmp_path / "other", documents, queries, train=[(n, n // 2) for n in range(32)])


def open_material(retriever: Retriever, *names: Path, **settings: object) -> TrainingData:
    config = DataConfig(dataset=str(names[0]), extra_datasets=",".join(map(str, names[1:])), **settings)
    return TrainingData.open(config.datasets, config, tokenization_of(retriever), 16, seed=0)


def test_further_ones_are_learnt_from_but_not_looked_at(retriever: Retriever, tiny_dataset: Path, other: Path) -> None:
    training_data = open_material(retriever, tiny_dataset, other)
    train = training_data.train(None)
    assert len(train.examples) == 96 + 32
    assert len(training_data.dev().examples) == 32
    seen = np.concatenate([train.order.batch(step) for step in range(8)])
    assert sorted(seen) == list(range(128))
    # A passage of the second stands where the first one's 160 documents end, with its own tokens.
    batch = train.batch(0, retriever, ALONE)
    texts = retriever.tokenizer.batch_decode(batch.passages.buckets[0]["input_ids"], skip_special_tokens=True)
    ids = batch.relevance.passages.tolist()
    for index, row in enumerate(batch.passages.indices.tolist()):
        if row < len(texts):
            assert texts[row].startswith("w ##o ##r ##d ") == (ids[index] >= 160)


def test_weights_and_batches_of_one_data_set(retriever: Retriever, tiny_dataset: Path, other: Path) -> None:
    train = open_material(retriever, tiny_dataset, other, dataset_weights="1,3", mixing="batches").train(None)
    of_other = [set(train.order.batch(step) >= 96) for step in range(40)]
    assert all(len(owners) == 1 for owners in of_other)
    assert sum(owners == {True} for owners in of_other) == 30


def test_no_two_queries_of_one_positive(retriever: Retriever, other: Path, tiny_dataset: Path) -> None:
    def most(settings: dict[str, bool]) -> int:
        train = open_material(retriever, tiny_dataset, other, **settings).train(None)
        rows = [train.examples.positives.documents[train.order.batch(step)] for step in range(8)]
        return max(np.unique(row, return_counts=True)[1].max() for row in rows)

    assert most({"duplicates": True}) > 1
    assert most({"duplicates": False}) == 1


def test_negatives_of_all_are_one_behind_the_other(retriever: Retriever, tiny_dataset: Path, other: Path) -> None:
    training_data = open_material(retriever, tiny_dataset, other, negatives_per_query=1, negatives_mix="gold=1")
    first, second = training_data.datasets
    tables = [
        NegativesTable.of(first, np.arange(160), (np.arange(160) + 1) % 160, "gold"),
        NegativesTable.of(second, np.arange(32), (np.arange(32) // 2 + 3) % 16, "gold"),
    ]
    train = training_data.train(NegativesTable.chained(tables, [0, 160]))
    batch = train.batch(2, retriever, ALONE)
    for query, (_, hard) in zip(
        batch.relevance.queries.tolist(), batch.relevance.passages.reshape(16, 2).tolist(), strict=True
    ):
        assert hard == ((query + 1) % 160 if query < 160 else 160 + ((query - 160) // 2 + 3) % 16)


def test_grades_and_labels_of_the_data_reach_a_batch(retriever: Retriever, tmp_path: Path) -> None:
    labels = {n: [round(0.5 + n / 100, 2), 0.25] for n in range(32)}  # of a positive and of a hard negative
    rows = [{"query": f"q {n}", "docs": [f"text {n}", f"text {n + 40}"], "labels": row} for n, row in labels.items()]
    (tmp_path / "soft").mkdir()
    for split in ("train", "dev"):
        write_rows(tmp_path / "soft" / f"{split}.jsonl", [row | {"query": f"{split} {row['query']}"} for row in rows])
    graded = [(n, n // 2, 1 + n % 3) for n in range(32)]
    write_beir(tmp_path / "graded", [f"word {n}" for n in range(16)], [f"number {n}" for n in range(32)], train=graded)
    data = open_material(retriever, tmp_path / "soft", tmp_path / "graded", negatives_per_query=1)
    first, second = data.datasets
    negatives = [
        NegativesTable.of(first, first.negatives.queries, first.negatives.documents, "gold"),
        NegativesTable.of(second, np.arange(32), (np.arange(32) // 2 + 3) % 16, "gold"),
    ]
    source, seen = data.train(NegativesTable.chained(negatives, [0, len(first.documents)])), {}
    for step in range(4):
        found = source.batch(step, retriever, ALONE).relevance
        for query, is_scored, row in zip(
            found.queries.tolist(), found.labels.is_scored, found.labels.scores, strict=True
        ):
            seen[data.combined.queries.texts[query]] = row[is_scored].tolist()
    expected = {f"train q {n}": row for n, row in labels.items()}
    expected |= {f"number {n}": [grade / 3] for n, _, grade in graded}
    assert seen.keys() == expected.keys()
    for text, row in expected.items():
        assert seen[text] == pytest.approx(row), text
    # Of the dev split too, whose groups have random negatives.
    found = data.dev().batch(0, retriever, ALONE).relevance.labels
    assert found.scores[found.is_scored].min() == 0.5


def test_what_does_not_fit_is_refused(retriever: Retriever, tiny_dataset: Path, other: Path) -> None:
    with pytest.raises(ConfigError, match="dataset_weights"):
        open_material(retriever, tiny_dataset, other, dataset_weights="1,2,3").train(None)
    with pytest.raises(ConfigError, match="negatives_mix"):
        open_material(retriever, tiny_dataset, negatives_mix="bm52=1").train(None)
    with pytest.raises(DataError, match="no query has a positive of source 'llm'"):
        open_material(retriever, tiny_dataset, positives="llm").train(None)
    with pytest.raises(DataError, match="no split 'dve'"):
        open_material(retriever, tiny_dataset, dev_split="dev", train_split="dve")
    bare = [replace(dataset, tokens=None) for dataset in open_material(retriever, tiny_dataset).datasets]
    with pytest.raises(DataError, match="has no tokens"):
        TrainingData(bare, DataConfig(), 16, 0).dev()


def test_another_tokenizer_is_another_preparation(retriever: Retriever, tiny_dataset: Path) -> None:
    tokenization = tokenization_of(retriever)
    assert isinstance(tokenization, Tokenization)
    places = {
        TrainingData.open([str(tiny_dataset)], DataConfig(), tokens, 16, 0).datasets[0].location
        for tokens in (tokenization, replace(tokenization, query_prompt="query: ", table=None))
    }
    assert len(places) == 2


def test_other_texts_or_negatives_are_another_digest(retriever: Retriever, tiny_dataset: Path, other: Path) -> None:
    one, two = open_material(retriever, tiny_dataset), open_material(retriever, tiny_dataset, other)
    dataset = one.datasets[0]
    tables = [NegativesTable.of(dataset, np.arange(5), np.arange(5) + shift, "gold") for shift in (7, 8)]
    assert len({one.digest(None), two.digest(None), *(one.digest(table) for table in tables)}) == 4
    assert one.digest(tables[0]) == open_material(retriever, tiny_dataset).digest(tables[0])


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


def open_taught(encoder: Path, dataset: Path, **settings: object) -> TrainingData:
    config = DataConfig(dataset=str(dataset), negatives_per_query=1, **settings)
    return TrainingData.open(
        config.datasets, config, tokenization_of(load_retriever(ModelConfig(str(encoder)))), 16, seed=0
    )


def test_material_reads_scores_and_answers_for_them(
    tiny_encoder: Path, tiny_dataset: Path, scores: Path, score: Score
) -> None:
    plain, training_data = (
        open_taught(tiny_encoder, tiny_dataset, **settings) for settings in ({}, {"teacher": str(scores)})
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
        training_data = open_taught(tiny_encoder, tiny_dataset, extra_datasets=str(again), teacher=given)
        assert len(training_data.teacher) == logged * 320
        first = np.isfinite(training_data.teacher.of_pairs(np.array([3, 163]), np.array([3, 163])))
        assert first.tolist() == [not given.startswith(","), given != f"{scores}"]
    with pytest.raises(DataError, match=r"a: there are no scores; give a directory that `raytriever score` wrote"):
        _ = open_taught(tiny_encoder, tiny_dataset, extra_datasets=str(again), teacher="a,b").teacher
