"""Figures of the query-document gap: rate over recall, scores of queries, both clouds, models side by side.

The model of a training run has a curve of the mean distance between queries and positives, from its step log
(`losses/diagnostics.py`; out-of-distribution paper, Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64
from numpy import ndarray

from raytriever.errors import ConfigError
from raytriever.index.approximate.measure import OperatingPoint
from raytriever.report.figures import COLOURS, HEIGHT, WIDTH, label, lines, picture, plain_log_ticks
from raytriever.report.figures import save_curves as save_steps
from raytriever.storage import committed_directory
from raytriever.studies.ood.gap import CUTOFFS, Gap, Material
from raytriever.tracking.steps import STEPS, read_curve

BINS = 40
# Of a picture of clouds: more would hide each other, and take minutes.
DOTS, COMPONENTS, PERPLEXITY = 1_000, 50, 30


def save_curves(path: Path, curves: Mapping[str, list[OperatingPoint]], k: int, title: str = "") -> None:
    """Queries a second of one thread over recall@k, a curve an index: further right and up is better.

    Args:
        path: of the PNG; the SVG stands beside it.
        curves: by the name of the index.
        k: how many documents are looked for.
        title: above the picture.
    """
    with picture(path, WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        for (name, points), (colour, dash) in zip(curves.items(), lines(), strict=False):
            found, rates = [point.recall for point in points], [point.qps for point in points]
            axes.plot(found, rates, color=colour, linestyle=dash, marker="o", markersize=3, label=label(name))
        axes.set(xlabel=f"recall@{k}", ylabel="queries a second, one thread", yscale="log")
        plain_log_ticks(axes.yaxis)
        axes.set_title(title or f"Rate and recall@{k}")
        axes.legend(loc="lower left")


def save_scores(path: Path, gap: Gap, title: str = "") -> None:
    """Histograms of the scores MMD^2({q}, documents) of queries and of passages held out."""
    edges = np.histogram_bin_edges(np.concatenate([gap.query_scores, gap.held_out_scores]), BINS)
    with picture(path, WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        both = (("passages held out", gap.held_out_scores, COLOURS[0]), ("queries", gap.query_scores, COLOURS[1]))
        for text, scores, colour in both:
            density = np.histogram(scores, edges, density=True)[0]
            axes.stairs(density, edges, fill=True, color=colour, alpha=0.35, label=text)
            axes.stairs(density, edges, color=colour, linewidth=1.2)
        axes.set(xlabel="squared distance to the documents' mean", ylabel="density")
        axes.set_title(title or "MMD² of single queries")
        axes.legend()


def save_clouds(path: Path, material: Material, seed: int, title: str = "") -> None:
    """Documents and queries on a plane, by t-SNE of their first 50 principal components.

    Raises:
        ConfigError: the extra `studies` is not installed.
    """
    rng = np.random.default_rng(seed)
    clouds = [_some(rng, vectors) for vectors in (material.documents, material.queries)]
    places = plane(np.concatenate(clouds), seed)
    with picture(path, WIDTH, WIDTH) as figure:
        axes = figure.add_subplot()
        for text, part, colour in (
            ("passages", places[: len(clouds[0])], COLOURS[0]),
            ("queries", places[len(clouds[0]) :], COLOURS[1]),
        ):
            axes.scatter(part[:, 0], part[:, 1], s=5, color=colour, alpha=0.6, linewidths=0, label=text)
        axes.set(xticks=[], yticks=[])
        axes.set_title(title or "Passages and queries, t-SNE")
        axes.legend()


def plane(vectors: Float32[ndarray, "rows width"], seed: int) -> Float64[ndarray, "rows 2"]:
    """A place on a plane for every row; near rows stay near.

    Raises:
        ConfigError: scikit-learn is not installed.
    """
    try:
        from sklearn.decomposition import PCA
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise ConfigError("t-SNE needs scikit-learn", remedy="pip install 'raytriever[studies]'") from error
    parts = min(COMPONENTS, *vectors.shape)
    reduced = PCA(parts, random_state=seed).fit_transform(vectors)
    perplexity = min(PERPLEXITY, max(1, (len(vectors) - 1) // 3))
    return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(reduced).astype(np.float64)


def _some(rng: np.random.Generator, vectors: ndarray) -> ndarray:
    return vectors if len(vectors) <= DOTS else vectors[np.sort(rng.choice(len(vectors), DOTS, replace=False))]


DRIFT = "query_positive_distance"


def save_across(folder: Path, results: Mapping[str, Mapping[str, Any]], places: Mapping[str, str]) -> None:
    """Write the pictures into a directory of their own; one there gives way.

    Args:
        folder: the directory.
        results: `results.json` of each model, by its name in pictures.
        places: the models as they were named, by the same names.

    Raises:
        StorageError: it cannot be written.
    """
    with committed_directory(folder, {"kind": "ood-across", "models": list(results)}, replace=True) as aside:
        for kind in dict.fromkeys(kind for one in results.values() for kind in one["indexes"]):
            for k in CUTOFFS:
                curves = {
                    name: [_point(point) for point in one["indexes"][kind]["curves"][str(k)]]
                    for name, one in results.items()
                    if kind in one["indexes"]
                }
                save_curves(aside / f"{kind}-rate-recall-{k}.png", curves, k, f"{kind}: rate and recall@{k}")
        drifts = {name: drift(Path(place)) for name, place in places.items()}
        if any(drifts.values()):
            save_steps(aside / f"{DRIFT}.png", drifts, "mean distance of a query and its positives")


def drift(model: Path) -> list[tuple[int, float]]:
    """The distance at every step of the run a model is of: its directory, or `model` within; empty where it is none."""
    folder = next((place for place in (model, model.parent) if (place / STEPS).is_file()), None)
    return [] if folder is None else read_curve(folder, DRIFT)


def _point(told: Mapping[str, Any]) -> OperatingPoint:
    values = {name: float("nan") if value is None else value for name, value in told.items()}
    return OperatingPoint(int(values["effort"]), values["recall"], values["candidates"], values["qps"])
