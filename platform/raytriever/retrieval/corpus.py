"""The embeddings of a whole corpus, kept between calls.

They are committed under the cache, keyed by the weights, the settings of encoding and the corpus: a second question
is answered at once, and a changed model or corpus is never answered from old embeddings. When the folder outgrows
its bound the entries that were used longest ago go.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.errors import StorageError
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever
from raytriever.models.source import resolve_model
from raytriever.retrieval.encode import encode_texts
from raytriever.storage import cache_folder, committed_directory, read_manifest, sha256_of

EMBEDDINGS = "embeddings.npy"
CACHE_BYTES = 4 * 2**30


def embed_corpus(
    config: ModelConfig, retriever: Retriever, dataset: RetrievalDataset
) -> Float32[ndarray, "documents width"]:
    """All passages of a data set, encoded now or read back.

    Args:
        config: names the directory the weights came from.
        retriever: loaded from there.
        dataset: whose documents are encoded, in their order.
    """
    folder = cache_folder() / "embeddings"
    place = folder / _key(config, retriever, dataset)
    try:
        read_manifest(place)
    except StorageError:
        embeddings = encode_texts(retriever, dataset.passages(), "passage", "passages")
        with committed_directory(place, {"dataset": dataset.name, "model": config.model}, replace=True) as aside:
            np.save(aside / EMBEDDINGS, embeddings, allow_pickle=False)
        _prune(folder, keep=place)
        return embeddings
    os.utime(place)
    return np.load(place / EMBEDDINGS, allow_pickle=False)


def _key(config: ModelConfig, retriever: Retriever, dataset: RetrievalDataset) -> str:
    directory = resolve_model(config.model, config.revision)
    weights = {str(file.relative_to(directory)): sha256_of(file) for file in sorted(directory.rglob("*.safetensors"))}
    precision = str(next(retriever.parameters()).dtype)
    parts = [weights, asdict(retriever.description), precision, dataset.documents.digest]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _prune(folder: Path, keep: Path) -> None:
    """Remove the entries used longest ago until the rest is within the bound."""
    entries = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: -path.stat().st_mtime)
    total = 0
    for path in entries:
        total += sum(file.stat().st_size for file in path.iterdir())
        if total > CACHE_BYTES and path != keep:
            shutil.rmtree(path, ignore_errors=True)
