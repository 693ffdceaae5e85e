"""What a finished run leaves to read: rankings as TREC runs, figures, and a page that holds them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from raytriever.data.dataset import RetrievalDataset
from raytriever.retrieval.evaluate import Evaluation
from raytriever.retrieval.figures import save_losses, save_roc, save_score_histograms
from raytriever.retrieval.report import write_report
from raytriever.retrieval.run_file import write_run

Curve = Sequence[tuple[int, float]]


def write_outcome(
    folder: Path,
    title: str,
    split: str,
    dataset: RetrievalDataset,
    found: Mapping[str, Evaluation],
    losses: Curve,
    dev_losses: Curve,
    config_yaml: str,
) -> None:
    """Write `runs/*.trec`, `figures/*.png` and `report.html`.

    Args:
        folder: the run directory.
        title: heading of the page.
        split: what was measured.
        dataset: opened with that split.
        found: evaluations by system; `before` and `after` are drawn.
        losses: by step.
        dev_losses: by step.
        config_yaml: the resolved settings, shown on the page.
    """
    for name, evaluation in found.items():
        write_run(folder / "runs" / f"{name}.trec", evaluation, dataset, name)
    dense = {name: found[name] for name in ("before", "after")}
    figures = {
        "ROC curve": folder / "figures" / "roc.png",
        "Scores of positives and of the best non-positives": folder / "figures" / "scores.png",
        "Loss": folder / "figures" / "loss.png",
    }
    roc, scores, loss = figures.values()
    save_roc(roc, dense)
    save_score_histograms(scores, dense)
    save_losses(loss, losses, dev_losses)
    queries, documents = len(found["after"].queries), len(dataset.documents)
    about = f"Measured on the {queries:,} queries of split {split}, searched in all {documents:,} documents."
    rows = {name: evaluation.metrics for name, evaluation in found.items()}
    write_report(folder / "report.html", title, [about], rows, figures, config_yaml)
