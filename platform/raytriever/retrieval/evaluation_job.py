"""Measure one model on several data sets, each beside BM25, and write `results.json`, TREC runs and figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from raytriever.data.open import open_dataset
from raytriever.data.processes import in_processes
from raytriever.errors import ConfigError
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision
from raytriever.negatives.bm25 import Bm25Index
from raytriever.retrieval.evaluate import Evaluation
from raytriever.retrieval.figures import save_roc, save_score_histograms
from raytriever.retrieval.loading import load_for_encoding
from raytriever.retrieval.run_file import write_run
from raytriever.retrieval.systems import evaluate_bm25, evaluate_retriever
from raytriever.storage import check_writable, write_atomically


@dataclass
class Results:
    """Metrics by data set and system, and a line for every data set that had bad rows."""

    rows: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    quarantined: list[str] = field(default_factory=list)


def run_evaluation(
    config: ModelConfig,
    datasets: Sequence[str],
    split: str,
    output: Path,
    precision: str | None,
    max_bad_rows: float,
    say: Callable[[str], None],
) -> Results:
    """Evaluate; everything is opened and checked before the first text is encoded."""
    check_writable(output)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    opened = [open_dataset(name, [split], max_bad_rows=max_bad_rows, run=in_processes) for name in datasets]
    names = [dataset.name for dataset in opened]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"two data sets are called {name!r}", "--datasets", "give them one by one, each with its own --output"
            )
    chosen = choose_precision(precision, device)
    retriever = load_for_encoding(config, chosen, device)
    results = Results()
    for dataset in opened:
        say(f"{dataset.name}: {len(dataset.documents):,} documents; BM25, then {config.model} ({chosen} on {device})")
        found: dict[str, Evaluation] = {
            "bm25": evaluate_bm25(dataset, split, Bm25Index(dataset.passages())),
            config.model: evaluate_retriever(dataset, split, config, retriever),
        }
        folder = output / dataset.name
        left_out = dataset.quarantine.write(folder)
        if left_out.total:
            results.quarantined.append(str(left_out))
        for system, evaluation in found.items():
            tag = Path(system).name
            write_run(folder / f"{tag}.trec", evaluation, dataset, tag)
        save_roc(folder / "figures" / "roc.png", found)
        save_score_histograms(folder / "figures" / "scores.png", found)
        results.rows[dataset.name] = {system: evaluation.metrics for system, evaluation in found.items()}
    models = {
        system: {dataset: rows[system] for dataset, rows in results.rows.items()} for system in ("bm25", config.model)
    }
    content = {"split": split, "precision": chosen, "models": models}
    write_atomically(output / "results.json", json.dumps(content, indent=2) + "\n")
    return results
