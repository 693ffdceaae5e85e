"""Scores that a cross-encoder gives the best document of each query of an evaluation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TypedDict

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.data.dataset import joined
from raytriever.data.prepare.open import open_dataset
from raytriever.errors import StorageError
from raytriever.evaluation.files import read_per_query
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.models.precision import default_device
from raytriever.models.resolution import resolve_model
from raytriever.reading.structured import read_json
from raytriever.store.commit import write_atomically
from raytriever.studies.definition import Evaluated, MeasuredDataset

_REMEDY = "remove it; it is written again"


class _Scores(TypedDict):
    model: str
    scores: list[float | None]


def score_best_documents(dataset: MeasuredDataset, evaluated: Evaluated) -> None:
    """Write the logit of each query and its best document to `evaluated.cross_scores`, if it does not exist.

    Raises:
        ModelError: the cross-encoder cannot be loaded.
        StorageError: a file of the evaluation was damaged or changed.
    """
    if evaluated.cross_scores.is_file():
        return
    content = read_per_query(evaluated.folder / "per_query" / f"{evaluated.dataset}.json")
    tops = content["models"][evaluated.model]["top"]
    documents = open_dataset(dataset.dataset, [dataset.split], max_bad_rows=1.0).documents
    row_of = {name: row for row, name in enumerate(documents.ids)}
    ranked = [row for row, top in enumerate(tops) if top]
    best = [row_of[tops[row][0][0]] for row in ranked]
    passages = [joined(documents.titles[at], documents.texts[at]) for at in best]
    model = CrossEncoder(resolve_model(dataset.cross_encoder), default_device(), "fp32")
    logits = model.logits([content["texts"][row] for row in ranked], passages)
    scores: list[float | None] = [None] * len(tops)
    for row, logit in zip(ranked, logits.tolist(), strict=True):
        scores[row] = logit
    text = json.dumps({"model": dataset.cross_encoder, "scores": scores}, allow_nan=False)
    write_atomically(evaluated.cross_scores, text + "\n")


def read_cross_scores(file: Path, queries: int) -> Float64[ndarray, " queries"] | None:
    """Read the scores of an evaluation's queries, -inf for a query without a document; None if there is no file.

    Raises:
        StorageError: the file was damaged or changed.
    """
    try:
        scores = read_json(file, _Scores, _REMEDY)["scores"]
    except FileNotFoundError:
        return None
    if len(scores) != queries:
        raise StorageError(f"is damaged or changed: {len(scores)} scores for {queries} queries", str(file), _REMEDY)
    return np.array([-math.inf if score is None else score for score in scores])
