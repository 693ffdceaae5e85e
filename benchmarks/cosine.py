"""Which score is a match: scores of right and wrong passages, and F1 at a threshold of dev and at 0.5.

Run: `python benchmarks/cosine.py RESULTS DATASET... [--guess X] [--image PATH]`, where RESULTS/DATASET.dev and
RESULTS/DATASET.test are directories of `raytriever evaluate`. A pair is a match if its score is at or above the
threshold: F1 is that of all pairs of the pools, of which `scores/` has the scores. The threshold has the highest F1 on
dev. The figure has the fraction of right and wrong passages by score; wrong ones are the best of each question."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy import ndarray

from raytriever.evaluation.evaluation_files import read_pools
from raytriever.evaluation.results import Results
from raytriever.experiments.report.figures import COLORS, picture
from raytriever.metrics.auc import pooled_auc
from raytriever.metrics.pair_threshold import ScoredPools, best_f1_threshold


def f1_at(pools: ScoredPools, threshold: float) -> float:
    """Return the F1 of the pairs at or above a threshold."""
    right, wrong = int((pools.positives >= threshold).sum()), int((pools.negatives >= threshold).sum())
    return 2 * right / (right + wrong + len(pools.positives))


def best_negatives(pools: ScoredPools) -> ndarray:
    """Return the score of the best wrong passage of each question."""
    assert pools.negative_queries is not None
    best = np.full(int(pools.negative_queries.max()) + 1, -np.inf)
    np.maximum.at(best, pools.negative_queries, pools.negatives)
    return best[np.isfinite(best)]


def main() -> None:
    """Print the table, and plot the figure."""
    line = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    line.add_argument("results", type=Path)
    line.add_argument("datasets", nargs="+")
    line.add_argument("--guess", type=float, default=0.5)
    line.add_argument("--image", type=Path)
    options = line.parse_args()
    drawn: dict[tuple[str, str], tuple[ScoredPools, float]] = {}
    print(
        "| data set | system | threshold of dev | F1 | F1 at the guess | F1 at the threshold of the first set | AUC |"
    )
    first: dict[str, float] = {}
    for name in options.datasets:
        dev, test = options.results / f"{name}.dev", options.results / f"{name}.test"
        for model in Results.read(test).models:
            chosen, pools = read_pools(dev, model, name), read_pools(test, model, name)
            threshold = best_f1_threshold(chosen.positives, chosen.negatives)[0]
            first.setdefault(model, threshold)
            figures = [100 * f1_at(pools, at) for at in (threshold, options.guess, first[model])]
            area = 100 * pooled_auc(pools.positives, pools.negatives)
            print(
                f"| {name} | {model} | {threshold:.3g} |",
                " | ".join(f"{figure:.1f}" for figure in [*figures, area]),
                "|",
            )
            drawn[name, model] = pools, threshold
    if options.image is None:
        return
    models = list(first)
    with picture(options.image, 8.0, 1.5 * len(models)) as figure:
        axes = figure.subplots(len(models), len(options.datasets), sharex="row", squeeze=False)
        for (name, model), (pools, threshold) in drawn.items():
            row, column = models.index(model), options.datasets.index(name)
            axis, wrong = axes[row, column], best_negatives(pools)
            low, high = (float(np.quantile(np.concatenate([pools.positives, wrong]), at)) for at in (0.002, 0.998))
            for scores, color, label in (
                (wrong, COLORS[5], "best wrong passage"),
                (pools.positives, COLORS[0], "right"),
            ):
                axis.hist(scores, np.linspace(low, high, 30), density=True, alpha=0.45, color=color, label=label)
            axis.axvline(threshold, color="0.2", linestyle="--", linewidth=1)
            axis.set_yticks([])
            if not row:
                axis.set_title(name)
            if not column:
                axis.set_ylabel(model)
        axes[0, 0].legend(fontsize=7)


if __name__ == "__main__":
    main()
