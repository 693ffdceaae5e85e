"""Metrics: ranking metrics against pytrec_eval, AUC against scikit-learn, and the evaluator for sentence-transformers
against that of the library.

Run: `python benchmarks/metrics.py [--json PATH]`. Times are processor seconds. The
time of pytrec_eval does not include its input dictionaries; our time includes sorting the results."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import pytrec_eval
from sklearn.metrics import roc_auc_score

from ends import End, at_least, at_most, parser, report, reported
from raytriever.metrics.auc import auc_interval, pooled_auc
from raytriever.metrics.ranking_metrics import Relevance, evaluate_ranking

QUERIES, RESULTS, DOCUMENTS, JUDGED = 10_000, 1_000, 1_000_000, 20
NAMES = {
    "ndcg_at_10": "ndcg_cut_10",
    "mrr": "recip_rank",
    "recall_at_100": "recall_100",
    "map": "map",
    "precision_at_10": "P_10",
    "r_precision": "Rprec",
}
# Of the corpus of SciFact and its test queries.
TEXTS, ASKED, DIM, ROUNDS = 5_183, 300, 384, 5
SCORES, PER_POSITIVE = 10**7, 500


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """Return the least processor time of a few calls."""
    took = []
    for _ in range(times):
        began = process_time()
        work()
        took.append(process_time() - began)
    return min(took)


def rankings() -> dict[str, End]:
    """Measure six metrics of 10,000 queries by 1,000 results with 20 judgements each, half of them in the results."""
    rng = np.random.default_rng(0)
    rows = np.arange(QUERIES)[:, None]
    documents = rng.permuted(np.arange(RESULTS) * 997 + rng.integers(0, 997, (QUERIES, RESULTS)), axis=1)
    scores = -np.sort(-rng.normal(size=(QUERIES, RESULTS)).astype(np.float32), axis=1)
    listed = documents[rows, rng.permuted(np.tile(np.arange(0, RESULTS, RESULTS // JUDGED), (QUERIES, 1)), axis=1)]
    judged = np.where(rng.random((QUERIES, JUDGED)) < 0.5, listed, DOCUMENTS + np.arange(JUDGED))
    grades = rng.integers(0, 4, (QUERIES, JUDGED))

    def ours() -> dict[str, np.ndarray]:
        # Every call sorts the judgements again.
        relevance = Relevance(np.repeat(np.arange(QUERIES), JUDGED), judged.ravel(), grades.ravel(), QUERIES)
        return evaluate_ranking(documents, relevance, NAMES)

    figures = ours()
    run = {
        f"q{q}": dict(zip(map(str, d), s, strict=True))
        for q, (d, s) in enumerate(zip(documents.tolist(), scores.tolist(), strict=True))
    }
    qrels = {
        f"q{q}": dict(zip(map(str, d), g, strict=True))
        for q, (d, g) in enumerate(zip(judged.tolist(), grades.tolist(), strict=True))
    }
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, set(NAMES.values()))
    theirs = {}
    duration = seconds(lambda: theirs.update(evaluator.evaluate(run)))
    apart = max(
        float(np.abs(figures[name] - [theirs[f"q{q}"][trec] for q in range(QUERIES)]).max())
        for name, trec in NAMES.items()
    )
    ready = seconds(ours, 3)
    return {
        "10,000 x 1,000, as a search gives them (s)": reported(ready),
        "pytrec_eval (s)": reported(duration),
        "ahead of pytrec_eval, as a search gives them (x)": at_least(duration / ready, 5),
        "largest difference of a figure from pytrec_eval's": End(apart, "under 1e-6", apart < 1e-6),
    }


def pooled() -> dict[str, End]:
    """Measure the AUC of 10^7 scores around 30 and 40, with 500 negatives a positive and with as many of each."""
    results = {}
    for title, dtype, positives in (
        ("1 positive to 500", np.float32, SCORES // (PER_POSITIVE + 1)),
        ("as many of each", np.float32, SCORES // 2),
        ("as many of each, float64", np.float64, SCORES // 2),
    ):
        rng = np.random.default_rng(0)
        ours = rng.normal(40, 9, positives).astype(dtype)
        theirs = rng.normal(30, 9, SCORES - positives).astype(dtype)
        labels = np.r_[np.ones(len(ours), bool), np.zeros(len(theirs), bool)]
        together = np.r_[ours, theirs]
        apart = float(abs(pooled_auc(ours, theirs) - roc_auc_score(labels, together)))
        duration = seconds(lambda a=ours, b=theirs: pooled_auc(a, b), 3)
        ratio = seconds(lambda a=labels, b=together: roc_auc_score(a, b)) / duration
        results |= {
            f"AUC of 10^7 scores, {title} (s)": reported(duration),
            f"AUC of 10^7 scores, {title}: ahead of scikit-learn (x)": at_least(ratio, 20),
            f"AUC of 10^7 scores, {title}: difference": End(apart, "under 1e-9", apart < 1e-9),
        }
        if title.startswith("1"):
            queries = np.arange(len(ours)), np.repeat(np.arange(len(ours)), PER_POSITIVE + 1)[: len(theirs)]
            auc_interval(ours[:9], theirs[:9])
            interval = seconds(lambda a=ours, b=theirs, q=queries: auc_interval(a, b, *q))
            results["its interval, clustered by query (s)"] = reported(interval)
    return results


def evaluators() -> dict[str, End]:
    """Compare `PooledAUCEvaluator` with the library's evaluator on stored embeddings, and with the time of encoding."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    from raytriever.models.resolve_model import resolve_model
    from raytriever.sentence_transformers import PooledAUCEvaluator

    model: Any = SentenceTransformer(str(resolve_model("minilm")), device="cpu")
    encoding = seconds(lambda: model.encode([f"{number} " + "word " * 120 for number in range(64)])) / 64
    documents = torch.nn.functional.normalize(torch.randn(TEXTS, DIM, generator=torch.Generator().manual_seed(0)))
    queries = torch.nn.functional.normalize(documents[:ASKED] + documents[ASKED : 2 * ASKED] / 2)
    # A text is the number of its embedding.
    model.encode_query = lambda texts, **_: queries[[int(text) for text in texts]]
    model.encode_document = lambda texts, **_: documents[[int(text) for text in texts]]
    data = (
        {f"q{row}": str(row) for row in range(ASKED)},
        {f"d{row}": str(row) for row in range(TEXTS)},
        {f"q{row}": {f"d{row}", f"d{ASKED + row}"} for row in range(ASKED)},
    )
    ours, theirs = PooledAUCEvaluator(*data), InformationRetrievalEvaluator(*data)
    figures, expected = ours(model), theirs(model)
    took = [(seconds(lambda: ours(model)), seconds(lambda: theirs(model))) for _ in range(ROUNDS)]
    alone, both = median(item / other for item, other in took), encoding * (TEXTS + ASKED)
    whole = median((item + both) / (other + both) for item, other in took)
    name = f"evaluator, {ASKED} queries, {TEXTS:,} documents"
    same = abs(figures["ndcg@10"] - expected["cosine_ndcg@10"])
    return {
        f"{name}: seconds": reported(median(item for item, _ in took)),
        f"{name}: seconds / InformationRetrievalEvaluator": reported(alone),
        f"{name}: the same with encoding by MiniLM": at_most(whole, 1.01),
        f"{name}: nDCG@10 less that of the library": at_most(same, 1e-6),
    }


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__ or "")
    options = arguments.parse_args()
    report("metrics", rankings() | pooled() | evaluators(), options.json)


if __name__ == "__main__":
    main()
