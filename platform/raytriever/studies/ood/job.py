"""Job of `raytriever study ood`: the query-document gap of one or several models, each in a committed directory.

DIR/MODEL/results.json      all results
DIR/MODEL/tables.txt        the printed tables
DIR/MODEL/*.png, *.svg      rate over recall, scores of queries, embeddings on a plane
DIR/across/*.png, *.svg     comparison of the models, if there are several
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypedDict

import numpy as np

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.data.prepare.pipeline import in_processes
from raytriever.encoding.corpus import embed_corpus, plan_embeddings
from raytriever.encoding.encode import encode_queries
from raytriever.encoding.loading import load_for_encoding
from raytriever.errors import ConfigError, StorageError, setting
from raytriever.index.approximate.config import IndexConfig
from raytriever.index.approximate.synthetic import control
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision, default_device
from raytriever.models.retriever import Retriever
from raytriever.reading.structured import read_json
from raytriever.store.commit import committed_directory, read_manifest
from raytriever.store.disk import check_writable, disk_errors
from raytriever.studies.ood.gap import (
    CUTOFFS,
    GapEmbeddings,
    hold_out,
    measure_gap,
    measure_index,
    query_positive_distance,
)
from raytriever.studies.ood.report import format_tables, save_across, save_curves, save_plane, save_scores, to_json

Log = Callable[[str], None]
CONTROL = "control"
RESULTS, ACROSS = "results.json", "across"


@dataclass(frozen=True, kw_only=True)
class OodJob:
    """Settings of a study of the query-document gap.

    Args:
        models: names or directories of encoders; `control` is the positive control (`index/approximate/synthetic.py`).
        dataset: path, URI or name; RoarGraph is built from its `train` queries.
        query_count: number of queries, and of held-out passages; at most as many as the data set has.
        precision: precision of the encoders; None for the fastest on the hardware.
        max_bad_rows: share of bad rows that each file may have, 0 to 1.
        lengths: longest query and passage, in tokens; None for the limits of the encoders.
        pictures: whether pictures are drawn; the t-SNE picture needs scikit-learn.
    """

    models: tuple[str, ...]
    dataset: str
    split: str
    indexes: tuple[str, ...]
    query_count: int
    control_documents: int
    precision: str | None
    max_bad_rows: float
    seed: int
    lengths: tuple[int | None, int | None] | None = None
    pictures: bool = True


def run_ood(job: OodJob, output: Path, names: dict[str, str], log: Log) -> dict[str, str]:
    """Measure every model, or read its existing results.

    Args:
        names: name of the directory of each model.

    Returns:
        The tables of each model as text, by model.
    """
    if ACROSS in names.values():
        raise ConfigError(
            f"a model is called {ACROSS!r}",
            setting("model"),
            "give a model of another name: this folder holds the pictures of all models",
        )
    check_writable(output)
    tables = {}
    for model in job.models:
        folder = output / names[model]
        key, embed = _open(job, model, log)
        if folder.exists():
            if read_manifest(folder)["meta"].get("key") != key:
                raise StorageError(
                    "holds a study with other settings", str(folder), f"give another {setting('output')}, or remove it"
                )
        else:
            _measure(job, *embed(), key, folder, log)
        tables[model] = (folder / "tables.txt").read_text()
    if len(job.models) > 1:
        results = {names[model]: read_ood(output / names[model]) for model in job.models}
        save_across(output / ACROSS, results, {names[model]: model for model in job.models})
    return tables


class OodPoint(TypedDict):
    """Point of a curve, see `index.approximate.measure.OperatingPoint`."""

    effort: int
    recall: float | None
    candidates: float | None
    qps: float | None


class OodIndex(TypedDict):
    """Candidate ratio and curves of one kind of index."""

    ratio: float | None
    curves: dict[str, list[OodPoint]]


class OodResults(TypedDict):
    """Content of `results.json`, see `studies.ood.report.to_json`."""

    indexes: dict[str, OodIndex]
    mmd2: dict[str, float | None]
    query_positive_distance: float | None


def read_ood(folder: Path) -> OodResults:
    """Read the results of one model; raises `StorageError` if the file was damaged or changed."""
    file, remedy = folder / RESULTS, f"remove {folder}; it is measured again"
    with disk_errors(file, reading=True):
        results = read_json(file, OodResults, remedy, needed=True)
    cutoffs = {str(k) for k in CUTOFFS}
    if (
        not all(one["curves"].keys() >= cutoffs for one in results["indexes"].values())
        or "queries" not in results["mmd2"]
    ):
        raise StorageError(
            "is damaged or changed: a curve or the distance of the queries is missing", str(file), remedy
        )
    return results


def _measure(job: OodJob, data: GapEmbeddings, distance: float | None, key: str, folder: Path, log: Log) -> None:
    indexes = {}
    for kind in job.indexes:
        log(f"{folder.name}: {kind} over {len(data.documents):,} passages")
        indexes[kind] = measure_index(data, IndexConfig(index=kind), job.seed)
    gap = measure_gap(data.documents, data.queries, data.held_out)
    text = format_tables(indexes, gap, len(data.documents))
    if distance is not None:
        text += f"\nmean distance of a query and its positives {distance:.4f}"
    with committed_directory(folder, {"kind": "ood", "key": key}) as temporary:
        if job.pictures:
            for k in CUTOFFS:
                save_curves(
                    temporary / f"rate-recall-{k}.png", {kind: one.curves[k] for kind, one in indexes.items()}, k
                )
            save_scores(temporary / "scores.png", gap)
            save_plane(temporary / "clouds.png", data, job.seed)
        results = to_json(indexes, gap) | {"query_positive_distance": distance, "documents": len(data.documents)}
        (temporary / RESULTS).write_text(json.dumps(results, indent=1, allow_nan=False))
        (temporary / "tables.txt").write_text(text + "\n")


def _open(job: OodJob, model: str, log: Log) -> tuple[str, Callable[[], tuple[GapEmbeddings, float | None]]]:
    """Return a digest of the settings, the weights and the data, and a function that encodes.

    The function returns embeddings, and the mean distance of queries and their positives.
    """
    settings = [job.split, job.indexes, job.query_count, job.seed]
    if model == CONTROL:

        def draw() -> tuple[GapEmbeddings, None]:
            sample = control(job.control_documents, job.query_count, job.seed)
            return GapEmbeddings(sample.documents, sample.unshifted, sample.shifted, sample.training), None

        return _digest([*settings, CONTROL, job.control_documents]), draw
    device = default_device()
    dataset = open_dataset(
        job.dataset, ["train", job.split], max_bad_rows=job.max_bad_rows, run=in_processes, report=log
    )
    query_length, passage_length = job.lengths or (None, None)
    config = ModelConfig(model=model, query_length=query_length, passage_length=passage_length)
    retriever = load_for_encoding(config, choose_precision(job.precision, device), device)
    prompts = retriever.prompts_of(dataset.name)
    plan = plan_embeddings(config, retriever, dataset, "passage", "fp32", prompts=prompts)
    key = _digest([*settings, plan.key, dataset.digest])
    return key, partial(_embed, job, config, retriever, dataset)


def _embed(
    job: OodJob, config: ModelConfig, retriever: Retriever, dataset: RetrievalDataset
) -> tuple[GapEmbeddings, float]:
    store = embed_corpus(config, retriever, dataset)
    embeddings, positives = store.array(), dataset.positives(job.split)
    count = min(job.query_count, len(positives), len(embeddings) // 10)
    chosen = np.sort(np.random.default_rng(job.seed).choice(len(positives), count, replace=False))
    queries = encode_queries(retriever, dataset, positives.queries[chosen])
    training = encode_queries(retriever, dataset, dataset.positives("train").queries, "training queries")
    of = np.repeat(np.arange(count), [len(positives.of(int(row))) for row in chosen])
    to = np.concatenate([positives.of(int(row)) for row in chosen])
    remaining, held_out = hold_out(embeddings, count, job.seed)
    data = GapEmbeddings(embeddings[remaining], embeddings[held_out], queries, training)
    return data, query_positive_distance(queries, embeddings, of, to)


def _digest(settings: object) -> str:
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()
