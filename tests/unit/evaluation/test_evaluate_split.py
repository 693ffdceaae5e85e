"""The evaluation protocol against its definition, one query at a time."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
import pytrec_eval

from raytriever.core.errors import DataError
from raytriever.data.columns import Answers
from raytriever.data.dataset import Documents, Judgements, Queries, RetrievalDataset
from raytriever.evaluation import evaluate_split as module
from raytriever.evaluation.evaluate_split import Evaluation, evaluate
from raytriever.evaluation.evaluation_files import write_run
from raytriever.evaluation.protocol import Protocol, select_judged_queries
from raytriever.evaluation.systems import Bm25System, DenseSystem, evaluate_embeddings
from raytriever.metrics.auc import pooled_auc
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.retrieval.mining.bm25 import Bm25Index


def dataset_of(query_ids: list[str], document_ids: list[str], rows: list[tuple[int, int, int]]) -> RetrievalDataset:
    table = np.array(sorted(rows), dtype=np.int64)
    return RetrievalDataset(
        "made",
        Documents(document_ids, [""] * len(document_ids), [f"text {name}" for name in document_ids]),
        Queries(query_ids, [f"query {name}" for name in query_ids]),
        {"test": Judgements(table[:, 0], table[:, 1], table[:, 2])},
    )


def literal_pools(
    scores: np.ndarray, rows: list[tuple[int, int, int]], own: dict[int, int], depth: int
) -> tuple[list[float], list[float]]:
    positives, negatives = [], []
    for query in sorted({q for q, _, s in rows if s > 0}):
        relevant = {d for q, d, s in rows if q == query and s > 0} - {own.get(query)}
        positives += [scores[query, d] for d in relevant]
        others = [d for d in range(scores.shape[1]) if d not in relevant and d != own.get(query)]
        negatives += sorted((scores[query, d] for d in others), reverse=True)[:depth]
    return positives, negatives


@pytest.mark.parametrize("depth", [3, 7, 500])
def test_pools_and_metrics_follow_the_protocol(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AUC_NEGATIVES", depth)
    rng = np.random.default_rng(depth)
    queries = rng.normal(size=(5, 4)).astype(np.float32)
    documents = rng.normal(size=(30, 4)).astype(np.float32)
    # Query 1 bears the id of document 9, query 3 has no relevant document, grade 0 is a judged non-positive.
    rows = [(0, 3, 1), (0, 8, 2), (1, 9, 1), (1, 4, 1), (2, 5, 0), (2, 6, 3), (3, 7, 0), (4, 1, 1)]
    dataset = dataset_of(["a", "d9", "c", "d", "e"], [f"d{i}" for i in range(30)], rows)
    result = evaluate_embeddings(dataset, "test", queries[[0, 1, 2, 4]], documents)
    positives, negatives = literal_pools(queries @ documents.T, rows, {1: 9}, depth)
    np.testing.assert_allclose(np.sort(result.positive_scores), np.sort(positives), rtol=1e-5)
    np.testing.assert_allclose(np.sort(result.negative_scores), np.sort(negatives), rtol=1e-5)
    assert result.metrics["auc"] == pytest.approx(pooled_auc(np.array(positives), np.array(negatives)))
    assert result.queries.tolist() == [0, 1, 2, 4]
    assert 9 not in result.ranking[1]
    assert result.ranking[0].tolist() == np.argsort(-(queries[0] @ documents.T))[: result.ranking.shape[1]].tolist()


def test_what_counts_as_relevant_and_as_ones_own_is_the_protocols() -> None:
    rng = np.random.default_rng(1)
    queries, documents = (rng.normal(size=(n, 4)).astype(np.float32) for n in (4, 12))
    # Query 1 bears the id of document 9; query 2 is judged relevant to its own id alone; query 3 has grade 1 at most.
    rows = [(0, 3, 1), (0, 8, 2), (0, 5, 0), (1, 9, 2), (1, 4, 2), (2, 10, 2), (3, 7, 1)]
    dataset = dataset_of(["a", "d9", "d10", "d"], [f"d{i}" for i in range(12)], rows)

    def evaluated(**settings: object) -> Evaluation:
        return evaluate_embeddings(dataset, "test", queries, documents, Protocol(("judged_at_12",), **settings))

    assert evaluated().queries.tolist() == [0, 1, 2, 3]
    assert evaluated(level=2).queries.tolist() == [0, 1, 2]
    assert (len(evaluated().positive_scores), len(evaluated(drop_own=False).positive_scores)) == (4, 6)
    assert select_judged_queries(dataset, "test", Protocol()).count_own() == 2
    assert select_judged_queries(dataset, "test", Protocol(drop_own=False)).count_own() == 0
    strict = evaluated(level=2)
    assert (len(strict.positive_scores), strict.positive_queries.tolist()) == (2, [0, 1])
    assert len(strict.negative_scores) == 11 + 10 + 11
    assert strict.per_query["judged_at_12"].tolist() == [3 / 12, 1 / 11, 0]
    # As BEIR counts it: what is left out of the results stays among what is to be found.
    recall = evaluate_embeddings(dataset, "test", queries, documents, Protocol(("recall_at_12",)))
    assert recall.per_query["recall_at_12"].tolist() == [1, 0.5, 0, 1]
    with pytest.raises(DataError, match="made, split 'test': no query has a document of grade 3 or more; lower rel"):
        evaluated(level=3)


def test_accuracy_is_whether_an_answer_is_among_the_best() -> None:
    dataset = dataset_of(["a", "b"], ["x", "y", "z"], [(0, 0, 1), (1, 1, 1)])
    ranks = np.array([[0.3, 0.2, 0.1], [0.1, 0.2, 0.3]], np.float32)
    answers = Answers(np.array([0, 0, 1]), ["text Y", "nothing", "of x"])
    protocol = Protocol(("accuracy_at_1", "accuracy_at_2", "accuracy_at_3"))
    result = evaluate_embeddings(
        replace(dataset, answers=answers), "test", ranks, np.eye(3, dtype=np.float32), protocol
    )
    assert result.metrics == {"accuracy_at_1": 0.0, "accuracy_at_2": 0.5, "accuracy_at_3": 0.5}
    some = replace(dataset, answers=Answers(np.array([0]), ["y"]))
    with pytest.raises(DataError, match="query 'b' has no answers; leave acc@K out of metrics"):
        evaluate_embeddings(some, "test", ranks, np.eye(3, dtype=np.float32), protocol)


def test_a_dense_and_a_lexical_system_are_evaluated_alike(
    tiny_encoder: Path, tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raytriever.data.prepare.open_dataset import open_dataset

    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path))
    dataset = open_dataset(tiny_dataset, ["test"])
    bm25 = evaluate(dataset, "test", Bm25System(dataset, Bm25Index(dataset.passages())))
    assert bm25.metrics["ndcg_at_10"] > 0.99  # a passage begins with its query's word
    config = ModelConfig(str(tiny_encoder))
    retriever = load_retriever(config)
    first = evaluate(dataset, "test", DenseSystem(dataset, config, retriever))
    assert first.metrics.keys() == bm25.metrics.keys()
    assert evaluate(dataset, "test", DenseSystem(dataset, config, retriever)).metrics == first.metrics  # from the cache
    assert len(list((tmp_path / "embeddings").iterdir())) == 1
    shorter = ModelConfig(str(tiny_encoder), passage_length=5)
    evaluate(dataset, "test", DenseSystem(dataset, shorter, load_retriever(shorter)))
    assert len(list((tmp_path / "embeddings").iterdir())) == 2  # other lengths, other embeddings


def test_every_metric_is_trec_evals_on_the_run_file(tmp_path: Path) -> None:
    """MAP of the whole ranking would differ, and R-precision of 150 documents among 100 results; ids have blanks."""
    rng = np.random.default_rng(5)
    queries, documents = (rng.normal(size=(n, 4)).astype(np.float32) for n in (3, 300))
    rows = [(query, document, 1) for query in range(2) for document in range(query, 300, 10)]
    ids = ["a b", "b", "c"], [f"d {i}" for i in range(300)]
    dataset = dataset_of(*ids, [*rows, (2, 7, 1)])
    many = dataset_of(*ids, [*((0, i, 1) for i in range(150)), *rows[30:]])
    names = {"map_at_100": "map_cut_100", "map": "map", "r_precision": "Rprec", "success_at_5": "success_5"}
    for result, judged, results in (
        (evaluate_embeddings(dataset, "test", queries, documents, Protocol(tuple(names))), dataset, 100),
        (evaluate_embeddings(many, "test", queries[:2], documents, Protocol(tuple(names))), many, 150),
    ):
        assert result.ranking.shape[1] == results
        write_run(tmp_path / "run.trec", result, judged, "tag")
        with (tmp_path / "run.trec").open() as stream:
            run = pytrec_eval.parse_run(stream)
        table = judged.judgements["test"]
        qrels: dict[str, dict[str, int]] = {}
        for query, document, grade in zip(table.queries, table.documents, table.scores, strict=True):
            pair = quote(judged.queries.ids[query]), quote(judged.documents.ids[document])
            qrels.setdefault(pair[0], {})[pair[1]] = int(grade)
        theirs = pytrec_eval.RelevanceEvaluator(qrels, {"map", "map_cut.100", "Rprec", "success.5"}).evaluate(run)
        for ours, trec in names.items():
            mean = np.mean([values[trec] for values in theirs.values()])
            assert result.metrics[ours] == pytest.approx(mean, abs=1e-6), ours


@pytest.mark.slow
def test_a_run_is_written_a_few_queries_at_a_time(tmp_path: Path) -> None:
    queries, results = 400, 250
    dataset = dataset_of([f"q{i}" for i in range(queries)], [f"d{i}" for i in range(results)], [(0, 0, 1)])
    result = Evaluation(
        queries=np.arange(queries),
        ranking=np.tile(np.arange(results), (queries, 1)),
        scores=np.full((queries, results), 0.5, np.float32),
        **{name: np.empty(0, np.float32) for name in ("positive_scores", "negative_scores")},
        **{name: np.empty(0, np.int64) for name in ("positive_queries", "negative_queries")},
        per_query={},
        metrics={},
    )
    result.ranking[7, 3:] = -1
    tracemalloc.start()
    write_run(tmp_path / "run.trec", result, dataset, "tag")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    lines = (tmp_path / "run.trec").read_text().splitlines()
    assert len(lines) == (queries - 1) * results + 3
    assert lines[0] == "q0 Q0 d0 1 0.5 tag"
    assert [line for line in lines if line.startswith("q7 ")] == [f"q7 Q0 d{i} {i + 1} 0.5 tag" for i in range(3)]
    assert peak < (tmp_path / "run.trec").stat().st_size * 1.5, "all lines are in memory at once"
