"""The evaluator for the trainer of sentence-transformers has the figures of `raytriever evaluate`."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from library_losses import write_model
from sentence_transformers import SentenceTransformer
from tiny_models import text_of

import raytriever as rt
from raytriever.metrics.pair_threshold import best_f1_threshold
from raytriever.sentence_transformers import PooledAUCEvaluator

CORPUS = {f"d{number}": text_of(6 + number % 9, number) for number in range(60)}
QUERIES = {f"q{number}": text_of(4 + number % 5, 200 + number) for number in range(20)}
RELEVANT = {f"q{number}": {f"d{number}", f"d{3 * number}"} for number in range(18)} | {"q18": set()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "model"
    write_model(path)
    return path


@pytest.fixture
def model(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


@pytest.mark.slow
def test_the_figures_are_those_of_raytriever(
    folder: Path, model: SentenceTransformer, tmp_path: Path, own_cache: Path
) -> None:
    grades = {"test": {query: dict.fromkeys(documents, 1) for query, documents in RELEVANT.items() if documents}}
    data = rt.Dataset.from_dict(CORPUS, QUERIES, grades)
    expected = rt.evaluate([str(folder)], data, metrics="ndcg@10,auc", precision="fp32").to_pandas().iloc[0]
    evaluator = PooledAUCEvaluator(QUERIES, CORPUS, RELEVANT, "tiny")
    metrics = evaluator(model, str(tmp_path), epoch=1, steps=7)
    assert evaluator.primary_metric == "tiny_auc"
    assert metrics["tiny_auc"] == pytest.approx(expected["auc"], abs=1e-4)  # equal scores may swap by rounding
    assert metrics["tiny_ndcg@10"] == pytest.approx(expected["ndcg_at_10"], rel=1e-6)
    assert 0.4 < metrics["tiny_auc"] < 1
    rows = list(csv.DictReader((tmp_path / evaluator.csv_file).read_text().splitlines()))
    assert [float(row["auc"]) for row in rows] == [metrics["tiny_auc"]]
    assert (rows[0]["epoch"], rows[0]["steps"]) == ("1", "7")
    assert set(metrics) == {f"tiny_{name}" for name in ("auc", "ndcg@10", "threshold", "precision", "recall", "f1")}


def test_a_threshold_has_the_wanted_precision_or_the_best_f1(model: SentenceTransformer) -> None:
    best = PooledAUCEvaluator(QUERIES, CORPUS, RELEVANT, write_csv=False)(model)
    chosen = PooledAUCEvaluator(QUERIES, CORPUS, RELEVANT, precision=0.03, write_csv=False)(model)
    assert chosen["precision"] >= 0.03
    assert best["f1"] >= chosen["f1"]
    assert best["threshold"] != chosen["threshold"]
    unreached = PooledAUCEvaluator(QUERIES, CORPUS, RELEVANT, precision=1.0, write_csv=False)(model)
    assert unreached["threshold"] == np.inf or unreached["precision"] == 1.0
    assert best["f1"] == pytest.approx(2 * best["precision"] * best["recall"] / (best["precision"] + best["recall"]))


def test_half_of_a_surrogate_pair_is_read(model: SentenceTransformer) -> None:
    corpus, queries = {**CORPUS, "d0": CORPUS["d0"] + "\ud83d"}, {**QUERIES, "q1": QUERIES["q1"] + "\ud83d"}
    assert PooledAUCEvaluator(queries, corpus, RELEVANT, write_csv=False)(model)["ndcg@10"] > 0


def test_documents_outside_the_corpus_count_as_not_found(model: SentenceTransformer) -> None:
    whole = PooledAUCEvaluator(QUERIES, CORPUS, RELEVANT)(model)
    more = {query: documents | {"lost"} for query, documents in RELEVANT.items() if documents}
    assert PooledAUCEvaluator(QUERIES, CORPUS, more)(model)["ndcg@10"] < whole["ndcg@10"]


def test_the_best_f1_is_that_of_all_thresholds() -> None:
    generator = np.random.default_rng(4)
    positives, negatives = generator.normal(1, 1, 40).round(1), generator.normal(0, 1, 200).round(1)
    scores = np.concatenate([positives, negatives])
    f1 = {
        score: 2 * (positives >= score).sum() / (40 + (scores >= score).sum()) for score in np.unique(scores).tolist()
    }
    threshold, precision, recall = best_f1_threshold(positives, negatives)
    assert threshold == max(f1, key=lambda score: (f1[score], score))
    assert precision == (positives >= threshold).sum() / (scores >= threshold).sum()
    assert recall == (positives >= threshold).mean()


def test_wrong_input_is_one_line(model: SentenceTransformer) -> None:
    with pytest.raises(rt.DataError, match=r"PooledAUCEvaluator\(relevant_docs\): no query has a relevant document"):
        PooledAUCEvaluator(QUERIES, CORPUS, {"other": {"d1"}})
    with pytest.raises(rt.ConfigError, match=r"PooledAUCEvaluator\(precision\): 90 is out of range"):
        PooledAUCEvaluator(QUERIES, CORPUS, RELEVANT, precision=90)
    model.similarity_fn_name = "manhattan"
    with pytest.raises(rt.ConfigError, match="the model's similarity is manhattan; use cosine or dot"):
        PooledAUCEvaluator(QUERIES, CORPUS, RELEVANT)(model)
