"""`jobs/study.py ood`: the query-document gap of one or several models, each a committed directory that is kept.

DIR/MODEL/results.json      every figure
DIR/MODEL/tables.txt        what is printed
DIR/MODEL/*.png, *.svg      rates over recall, scores of queries, both clouds
    DIR/across/*.png, *.svg     models side by side, where there are several
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch

from raytriever.data.prepare.open import open_dataset
from raytriever.data.prepare.pipeline import in_processes
from raytriever.encoding.corpus import embed_corpus
from raytriever.encoding.encode import encode_texts
from raytriever.encoding.loading import load_for_encoding
from raytriever.errors import ConfigError, DataError, StorageError
from raytriever.index.approximate.config import IndexConfig
from raytriever.index.approximate.synthetic import control
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision
from raytriever.reading.structured import read_json
from raytriever.storage import check_writable, committed_directory, disk_errors, read_manifest
from raytriever.studies.ood.figures import save_across, save_clouds, save_curves, save_scores
from raytriever.studies.ood.gap import CUTOFFS, Material, gap, hold_out, query_positive_distance, study
from raytriever.studies.ood.tables import record, tables

Say = Callable[[str], None]
CONTROL = "control"
RESULTS, ACROSS = "results.json", "across"


@dataclass(frozen=True)
class OodJob:
    """What is studied.

    Args:
        models: names or directories of encoders; `control` is the positive control (`index/approximate/synthetic.py`).
        dataset: path, URI or name; its `train` queries are RoarGraph's.
        split: whose queries are asked.
        indexes: which are built.
        asked: how many queries, and as many passages held out; fewer where there are fewer.
        control_documents: of the control.
        precision: the encoders' arithmetic; None for what the hardware is fastest at.
        max_bad_rows: the share of each file's rows that may be bad.
        seed: of all that is drawn.
        lengths: longest query and passage, in tokens; the encoders' own where none are named.
        pictures: whether curves, scores and clouds are drawn, for the last of which scikit-learn is needed.
    """

    models: tuple[str, ...]
    dataset: str
    split: str
    indexes: tuple[str, ...]
    asked: int
    control_documents: int
    precision: str | None
    max_bad_rows: float
    seed: int
    lengths: tuple[int, int] | None = None
    pictures: bool = True


def run_ood(job: OodJob, output: Path, names: dict[str, str], say: Say) -> dict[str, str]:
    """Study every model, or read what stands; answers each one's tables, by its name.

    Args:
        job: what is studied.
        output: a directory per model is made there.
        names: of the models' directories.
        say: hears of progress.

    Raises:
        UserError: something a user can mend; models that are finished are kept.
    """
    if ACROSS in names.values():
        raise ConfigError(f"a model is called {ACROSS!r}", "--model", "give it another directory: pictures stand there")
    check_writable(output)
    found = {}
    for model in job.models:
        folder = output / names[model]
        material, key, distance = _material(job, model, say)
        if folder.exists():
            if read_manifest(folder)["meta"].get("key") != key:
                raise StorageError("is of another study", str(folder), "give another --output, or remove it")
        else:
            _study(job, material, key, distance, folder, say)
        found[model] = (folder / "tables.txt").read_text()
    if len(job.models) > 1:
        results = {names[model]: read_ood(output / names[model]) for model in job.models}
        save_across(output / ACROSS, results, {names[model]: model for model in job.models})
    return found


class OodPoint(TypedDict):
    """One point of a curve, see `index.measure.OperatingPoint`."""

    effort: int
    recall: float | None
    candidates: float | None
    qps: float | None


class OodIndex(TypedDict):
    """What one kind of index pays for the shift of queries."""

    ratio: float | None
    curves: dict[str, list[OodPoint]]


class OodResults(TypedDict):
    """The content of `results.json`, see `ood_table.record`."""

    indexes: dict[str, OodIndex]
    mmd2: dict[str, float | None]
    query_positive_distance: float | None


def read_ood(folder: Path) -> OodResults:
    """Read what `run_ood` found for one model; raises `StorageError` where it is not as it was written."""
    file, remedy = folder / RESULTS, f"remove {folder}; it is measured again"
    with disk_errors(file, reading=True):
        found = read_json(file, OodResults, remedy, needed=True)
    cutoffs = {str(k) for k in CUTOFFS}
    if not all(one["curves"].keys() >= cutoffs for one in found["indexes"].values()) or "queries" not in found["mmd2"]:
        raise StorageError("is torn or changed: a curve or the distance of the queries is missing", str(file), remedy)
    return found


def _study(job: OodJob, material: Material, key: str, distance: float | None, folder: Path, say: Say) -> None:
    figures = {}
    for kind in job.indexes:
        say(f"{folder.name}: {kind} over {len(material.documents):,} passages")
        figures[kind] = study(material, IndexConfig(index=kind), job.seed)
    apart = gap(material.documents, material.queries, material.held_out)
    text = tables(figures, apart, len(material.documents))
    if distance is not None:
        text += f"\nmean distance of a query and its positives {distance:.4f}"
    with committed_directory(folder, {"kind": "ood", "key": key}) as aside:
        if job.pictures:
            for k in CUTOFFS:
                save_curves(aside / f"rate-recall-{k}.png", {kind: one.curves[k] for kind, one in figures.items()}, k)
            save_scores(aside / "scores.png", apart)
            save_clouds(aside / "clouds.png", material, job.seed)
        told = record(figures, apart) | {"query_positive_distance": distance, "documents": len(material.documents)}
        (aside / RESULTS).write_text(json.dumps(told, indent=1, allow_nan=False))
        (aside / "tables.txt").write_text(text + "\n")


def _material(job: OodJob, model: str, say: Say) -> tuple[Material, str, float | None]:
    """Embeddings, a digest of what decides the study, and the distance of queries and their positives."""
    settings = [job.split, job.indexes, job.asked, job.seed]
    if model == CONTROL:
        drawn = control(job.control_documents, job.asked, job.seed)
        material = Material(drawn.documents, drawn.unshifted, drawn.shifted, drawn.training)
        return material, _digest([*settings, CONTROL, job.control_documents]), None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = open_dataset(job.dataset, ["train", job.split], max_bad_rows=job.max_bad_rows, run=in_processes, say=say)
    queries_to, passages_to = job.lengths or (None, None)
    config = ModelConfig(model=model, query_length=queries_to, passage_length=passages_to)
    retriever = load_for_encoding(config, choose_precision(job.precision, device), device)
    store = embed_corpus(config, retriever, dataset)
    if store.meta["left_out"]:
        raise DataError(f"{len(store.meta['left_out'])} passages could not be encoded", dataset.name, "remove them")
    embeddings, positives = store.array(), dataset.positives(job.split)
    texts = dataset.queries.texts
    count = min(job.asked, len(positives), len(embeddings) // 10)
    chosen = np.sort(np.random.default_rng(job.seed).choice(len(positives), count, replace=False))
    queries = encode_texts(retriever, [texts[int(positives.queries[row])] for row in chosen], "query", "queries")
    training = [texts[int(query)] for query in dataset.positives("train").queries]
    of = np.repeat(np.arange(count), [len(positives.of(int(row))) for row in chosen])
    to = np.concatenate([positives.of(int(row)) for row in chosen])
    kept, out = hold_out(embeddings, count, job.seed)
    material = Material(
        embeddings[kept], embeddings[out], queries, encode_texts(retriever, training, "query", "training queries")
    )
    key = _digest([*settings, store.meta["key"], dataset.digest])
    return material, key, query_positive_distance(queries, embeddings, of, to)


def _digest(decides: object) -> str:
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()
