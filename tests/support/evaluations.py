"""An evaluation's directory as evaluation writes it, of made-up models, with texts that no page may take for markup."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raytriever.evaluation.decision import SHARES
from raytriever.evaluation.results import RESULTS, Results

HOSTILE = "what is <script>window.hacked = 1</script> & <img src=x onerror='window.hacked = 2'> \"quoted\"?"
ENDS = "</script><script>window.hacked = 3</script><!-- {{title}} 模型"
METRICS = ("ndcg_at_10", "mrr_at_10")


def about_of(queries: int, documents: int = 4000, split: str = "test") -> dict[str, Any]:
    """Return the facts about a data set whose relevant documents are all in its corpus."""
    absent = {"absent_relevant": 0, "relevant": queries, "unanswerable_queries": 0}
    return {"queries": queries, "documents": documents, "split": split, **absent, "copies_above": {}}


def threshold_row(**values: Any) -> dict[str, Any]:
    """Return a row of `decision.calibration_rows`; figures that are not given are None."""
    counts = [key for keys in SHARES.values() for key in keys]
    figures = [f"{name}{end}" for name in (*SHARES, "calibration_error") for end in ("", "_low", "_high")]
    row = dict.fromkeys([*counts, *figures, "chosen", "checked", "low", "high"])
    row |= {"confidence": "score", "chosen_on": "dev", "checked_on": "test", "unanswerable": {}, "notes": []}
    return row | values


def write_results(folder: Path, **values: Any) -> None:
    """Write the `results.json` of `Results` with these values."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULTS).write_text(Results(**values).content({}))


def write_evaluation(
    folder: Path,
    models: Sequence[str] = ("bm25", "mini", "mini<b>tuned</b>"),
    datasets: Sequence[str] = ("letters", "numbers"),
    queries: int = 40,
) -> Path:
    """Write a whole evaluation; the values of a model grow with its place."""
    rng = np.random.default_rng(3)
    results: dict[str, Any] = {"models": {}, "baselines": [models[0]], "pairs": [], "calibration": [], "about": {}}
    for sub in ("per_query", "scores"):
        (folder / sub).mkdir(parents=True, exist_ok=True)
    for dataset in datasets:
        results["about"][dataset] = about_of(queries)
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
            results["models"].setdefault(model, {})[dataset] = means | {"auc": 0.8 + 0.05 * index}
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
            np.savez(
                folder / "scores" / f"{dataset}.{model.replace('/', '_')}.npz",
                **{k: v.astype(np.float32) for k, v in scores.items()},
                positive_queries=np.arange(queries),
                negative_queries=np.arange(2000) % queries,
            )
            if index:
                for metric in METRICS:
                    row = {"dataset": dataset, "metric": metric, "model": model, "against": models[0]}
                    row |= {"difference": 0.15 * index, "low": 0.1 * index, "high": 0.2 * index, "p": 0.001}
                    results["pairs"].append({**row, "p_holm": 0.002, "effect": 0.5, "queries": queries})
        for index, model in enumerate(models):
            for aim, wanted in (("precision", 0.9), ("recall", 0.8)):
                row = threshold_row(dataset=dataset, model=model, aim=aim, wanted=wanted, chosen=wanted)
                row |= {"threshold": 0.5 + 0.1 * index, "reached": True}
                row |= {"checked": wanted - 0.02 * index, "low": wanted - 0.1, "high": wanted + 0.05}
                if index == 0 and aim == "precision":  # BM25 never gets there
                    row |= {"threshold": None, "reached": False, "checked": None, "low": None, "high": None}
                results["calibration"].append(row | {"calibration_error": 0.01 * (1 + index)})
        (folder / "per_query" / f"{dataset}.json").write_text(json.dumps(per_query))
    write_results(folder, **results)
    return folder
