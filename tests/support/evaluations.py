"""An evaluation's directory as evaluation writes it, of made-up models, with texts that no page may take for markup."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raytriever.data.dataset import RetrievalDataset
from raytriever.evaluation.dataset_evaluation import DatasetEvaluation, PartEvaluation
from raytriever.evaluation.evaluate_split import Evaluation
from raytriever.evaluation.evaluated_datasets import EvaluationDataset, safe_name
from raytriever.evaluation.protocol import Protocol, select_judged_queries
from raytriever.evaluation.results import About, ErrorRow, Results, TestedPair, ThresholdRow
from raytriever.evaluation.run_evaluation import EvaluationDirectory
from raytriever.metrics.intervals import Proportion
from raytriever.retrieval.mining.bm25_analyzer import Analysis

HOSTILE = "what is <script>window.hacked = 1</script> & <img src=x onerror='window.hacked = 2'> \"quoted\"?"
ENDS = "</script><script>window.hacked = 3</script><!-- {{title}} 模型"
METRICS = ("ndcg_at_10", "mrr_at_10")


def about_of(queries: int, documents: int = 4000, split: str = "test") -> About:
    """Return the facts about a data set whose relevant documents are all in its corpus."""
    return About(queries, documents, split, absent_relevant=0, relevant=queries, unanswerable_queries=0)


def threshold_row(**values: Any) -> ThresholdRow:
    """Return a threshold that is out of reach, and has no shares, unless these are given."""
    row = {
        "dataset": "d",
        "model": "m",
        "target": "precision",
        "wanted": 0.9,
        "confidence": "score",
        "chosen_on": "dev",
    }
    row |= {"checked_on": "test", "threshold": None, "chosen": 0.5, "calibration_error": ErrorRow(0.1, None, None)}
    return ThresholdRow(**(row | values))


def write_evaluated(
    folder: Path, dataset: RetrievalDataset, evaluations: Mapping[str, Evaluation], baseline: str
) -> Results:
    """Write the directory of an evaluation of the split `test` whose systems were measured one by one."""
    name, judged = safe_name(dataset.name), select_judged_queries(dataset, "test", Protocol())
    source = EvaluationDataset(name, {name: str(dataset.location)}, "test")
    analyses: dict[str, Any] = {name: Analysis.of(dataset.documents).content()}
    directory = EvaluationDirectory(folder, Results(baselines=[baseline]))
    directory.add(DatasetEvaluation(source, [PartEvaluation(name, dataset, judged, dict(evaluations))], analyses))
    directory.finish()
    return directory.results


def write_evaluation(
    folder: Path,
    models: Sequence[str] = ("bm25", "mini", "mini<b>tuned</b>"),
    datasets: Sequence[str] = ("letters", "numbers"),
    queries: int = 40,
) -> Path:
    """Write a whole evaluation; the values of a model grow with its place."""
    rng = np.random.default_rng(3)
    results = Results(baselines=[models[0]])
    for sub in ("per_query", "scores"):
        (folder / sub).mkdir(parents=True, exist_ok=True)
    for dataset in datasets:
        results.about[dataset] = about_of(queries)
        per_query: dict[str, Any] = {
            "dataset": dataset,
            "queries": [f"q{i}" for i in range(queries)],
            "texts": [HOSTILE if i == 0 else f"what is number {i} of {dataset}?" for i in range(queries)],
            "models": {},
            "relevant": [[[f"d{i}", f"Title {i}", f"Text of {i}. " * 12, 1]] for i in range(queries)],
        }
        for index, model in enumerate(models):
            values = {metric: np.clip(rng.random(queries) * 0.7 + 0.15 * index, 0, 1) for metric in METRICS}
            values["ndcg_at_10"][0] = 0.0
            means = {metric: float(of_metric.mean()) for metric, of_metric in values.items()}
            results.models.setdefault(model, {})[dataset] = means | {"auc": 0.8 + 0.05 * index}
            top = [
                [
                    [
                        f"d{i + rank}",
                        "" if rank else ENDS,
                        f"Text of {i + rank}. " * 12,
                        9.5 - rank,
                        1 if rank == index else None,
                    ]
                    for rank in range(5)
                ]
                for i in range(queries)
            ]
            per_query["models"][model] = {"metrics": {name: v.tolist() for name, v in values.items()}, "top": top}
            scores = {
                "positives": rng.normal(0.6 + 0.05 * index, 0.1, queries),
                "negatives": rng.normal(0.4, 0.1, 2000),
            }
            pools = folder / "scores" / model.replace("/", "_") / f"{dataset}.npz"
            pools.parent.mkdir(exist_ok=True)
            np.savez(
                pools,
                **{k: v.astype(np.float32) for k, v in scores.items()},
                positive_queries=np.arange(queries),
                negative_queries=np.arange(2000) % queries,
            )
            if index:
                for metric in METRICS:
                    numbers = 0.15 * index, 0.1 * index, 0.2 * index, 0.001, 0.002, 0.5, queries
                    results.pairs.append(TestedPair(dataset, metric, model, models[0], *numbers))
        for index, model in enumerate(models):
            for target, wanted in (("precision", 0.9), ("recall", 0.8)):
                row = {"dataset": dataset, "model": model, "target": target, "wanted": wanted, "chosen": wanted}
                row["calibration_error"] = ErrorRow(0.01 * (1 + index), None, None)
                if index or target == "recall":  # BM25 never has the precision
                    fraction = Proportion(round(100 * wanted) - 2 * index, 100, wanted - 0.1, wanted + 0.05)
                    row |= {"threshold": 0.5 + 0.1 * index, "checked": fraction}
                results.thresholds.append(threshold_row(**row))
        (folder / "per_query" / f"{dataset}.json").write_text(json.dumps(per_query))
    results.write(folder)
    return folder
