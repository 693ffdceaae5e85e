"""Results of the query-document gap: tables, JSON, and figures.

The figures show rate over recall, scores of queries, embeddings on a plane, and models next to each other. A model of a
training run also has a curve of the mean distance between queries and positives, from its step log
(`losses/diagnostics.py`; out-of-distribution paper, Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64
from numpy import ndarray

from raytriever.errors import ConfigError
from raytriever.evaluation.results import without_nan
from raytriever.index.approximate.measure import OperatingPoint, format_count
from raytriever.report.figures import COLOURS, HEIGHT, WIDTH, label, lines, picture, plain_log_ticks
from raytriever.report.figures import save_curves as save_steps
from raytriever.store.commit import committed_directory
from raytriever.studies.ood.gap import CUTOFFS, Gap, GapEmbeddings, IndexMeasurement, K, describe_gap
from raytriever.terminal import text_table
from raytriever.tracking.steps import STEPS, read_curve

# --------------------------------------------------------------------------------------------------------------- tables


# Shares of the documents that an index may score for a query, 0 to 1.
BUDGETS = (0.01, 0.02, 0.05)


def recall_within(points: list[OperatingPoint], budget: float) -> float:
    """Return the highest recall of settings that score at most `budget` candidates.

    NaN if no setting scores so few, or if candidates are not counted.
    """
    return max((point.recall for point in points if point.candidates <= budget), default=float("nan"))


def format_tables(indexes: dict[str, IndexMeasurement], gap: Gap, documents: int) -> str:
    """Return the tables of costs, recalls and candidates of the indexes, and the distances."""
    costs = [
        [
            kind,
            f"{one.build_seconds:,.1f}",
            f"{one.bytes / 1e6:,.1f}",
            *(_text(recall_within(one.curves[K], share * documents), 3) for share in BUDGETS),
        ]
        for kind, one in indexes.items()
    ]
    shifts = [
        [
            kind,
            _text(one.queries.recall, 3),
            format_count(one.held_out.candidates),
            format_count(one.queries.candidates),
            _text(one.ratio, 2),
        ]
        for kind, one in indexes.items()
        if kind != "flat"
    ]
    heads = [f"recall@{K}, {share:.0%} scored" for share in BUDGETS]
    return "\n\n".join(
        [
            text_table([["index", "build s", "MB without embeddings", *heads], *costs], left=0),
            text_table(
                [[f"candidates at recall@{K} of", "", "held-out passages", "queries", "queries / passages"], *shifts],
                left=0,
            ),
            f"MMD² of queries {gap.queries:.4f}, of held-out passages {gap.held_out:.4f}; a query's score is above a "
            f"passage's in {gap.beyond:.1%} of pairs",
            describe_gap(indexes),
        ]
    )


def to_json(indexes: dict[str, IndexMeasurement], gap: Gap) -> dict[str, Any]:
    """Return all results with null in place of NaN."""
    measurements = {
        kind: {
            **asdict(one),
            "curves": {str(k): [asdict(point) for point in points] for k, points in one.curves.items()},
        }
        | {"ratio": one.ratio}
        for kind, one in indexes.items()
    }
    results: dict[str, Any] = without_nan(
        {
            "indexes": measurements,
            "mmd2": {"queries": gap.queries, "held_out": gap.held_out},
            "beyond": gap.beyond,
            "verdict": describe_gap(indexes),
        }
    )
    return results


def _text(value: float, decimals: int) -> str:
    return "-" if isnan(value) else f"{value:.{decimals}f}"


# -------------------------------------------------------------------------------------------------------------- figures


BINS = 40
# Limits of the t-SNE picture: more dots would hide each other and take minutes.
DOTS, COMPONENTS, PERPLEXITY = 1_000, 50, 30
# Metric of the step log: mean distance of queries and their positives.
DRIFT = "query_positive_distance"


def save_curves(path: Path, curves: Mapping[str, list[OperatingPoint]], k: int, title: str = "") -> None:
    """Draw queries per second of one thread over recall@k, one curve for each index; right and up is better."""
    with picture(path, WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        for (name, points), (colour, dash) in zip(curves.items(), lines(), strict=False):
            recalls, rates = [point.recall for point in points], [point.qps for point in points]
            axes.plot(recalls, rates, color=colour, linestyle=dash, marker="o", markersize=3, label=label(name))
        axes.set(xlabel=f"recall@{k}", ylabel="queries per second, one thread", yscale="log")
        plain_log_ticks(axes.yaxis)
        axes.set_title(title or f"Rate and recall@{k}")
        axes.legend(loc="lower left")


def save_scores(path: Path, gap: Gap) -> None:
    """Draw histograms of the scores MMD^2({q}, documents) of queries and of held-out passages."""
    edges = np.histogram_bin_edges(np.concatenate([gap.query_scores, gap.held_out_scores]), BINS)
    with picture(path, WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        both = (("held-out passages", gap.held_out_scores, COLOURS[0]), ("queries", gap.query_scores, COLOURS[1]))
        for text, scores, colour in both:
            density = np.histogram(scores, edges, density=True)[0]
            axes.stairs(density, edges, fill=True, color=colour, alpha=0.35, label=text)
            axes.stairs(density, edges, color=colour, linewidth=1.2)
        axes.set(xlabel="squared distance to the mean of the documents", ylabel="density")
        axes.set_title("MMD² of single queries")
        axes.legend()


def save_plane(path: Path, data: GapEmbeddings, seed: int) -> None:
    """Draw documents and queries on a plane, by t-SNE of their first 50 principal components."""
    rng = np.random.default_rng(seed)
    passages, queries = (
        vectors if len(vectors) <= DOTS else vectors[np.sort(rng.choice(len(vectors), DOTS, replace=False))]
        for vectors in (data.documents, data.queries)
    )
    points = project(np.concatenate([passages, queries]), seed)
    with picture(path, WIDTH, WIDTH) as figure:
        axes = figure.add_subplot()
        for text, group, colour in (
            ("passages", points[: len(passages)], COLOURS[0]),
            ("queries", points[len(passages) :], COLOURS[1]),
        ):
            axes.scatter(group[:, 0], group[:, 1], s=5, color=colour, alpha=0.6, linewidths=0, label=text)
        axes.set(xticks=[], yticks=[])
        axes.set_title("Passages and queries, t-SNE")
        axes.legend()


def project(vectors: Float32[ndarray, "rows width"], seed: int) -> Float64[ndarray, "rows 2"]:
    """Return a point on a plane for every row; near rows stay near."""
    try:
        from sklearn.decomposition import PCA
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise ConfigError("t-SNE needs scikit-learn", remedy="pip install 'raytriever[studies]'") from error
    components = min(COMPONENTS, *vectors.shape)
    reduced = PCA(components, random_state=seed).fit_transform(vectors)
    perplexity = min(PERPLEXITY, max(1, (len(vectors) - 1) // 3))
    return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(reduced).astype(np.float64)


def save_across(folder: Path, results: Mapping[str, Mapping[str, Any]], models: Mapping[str, str]) -> None:
    """Draw the models in common pictures, in a directory of their own; an existing one is replaced.

    Their `results.json`, and their directories or names, are given by their names in the pictures.
    """
    with committed_directory(folder, {"kind": "ood-across", "models": list(results)}, replace=True) as temporary:
        for kind in dict.fromkeys(kind for one in results.values() for kind in one["indexes"]):
            for k in CUTOFFS:
                curves = {
                    name: [_point(point) for point in one["indexes"][kind]["curves"][str(k)]]
                    for name, one in results.items()
                    if kind in one["indexes"]
                }
                save_curves(temporary / f"{kind}-rate-recall-{k}.png", curves, k, f"{kind}: rate and recall@{k}")
        drifts = {name: read_drift(Path(model)) for name, model in models.items()}
        if any(drifts.values()):
            save_steps(temporary / f"{DRIFT}.png", drifts, "mean distance of a query and its positives")


def read_drift(model: Path) -> list[tuple[int, float]]:
    """Return the mean query-positive distance by step of a run directory, or of its `model`; empty for other paths."""
    folder = next((path for path in (model, model.parent) if (path / STEPS).is_file()), None)
    return [] if folder is None else read_curve(folder, DRIFT)


def _point(fields: Mapping[str, Any]) -> OperatingPoint:
    values = {name: float("nan") if value is None else value for name, value in fields.items()}
    return OperatingPoint(int(values["effort"]), values["recall"], values["candidates"], values["qps"])
