"""Index job: build the approximate index of a data set's passages or open it, answer queries, and compare its results
with exact search."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.data.prepare.pipeline import in_processes
from raytriever.encoding.corpus import embed_corpus, open_matching_store
from raytriever.encoding.encode import encode_texts
from raytriever.encoding.loading import load_for_encoding
from raytriever.encoding.store import EmbeddingStore
from raytriever.errors import ConfigError, StorageError
from raytriever.index.approximate.build import DocumentVectors, build_index
from raytriever.index.approximate.config import IndexConfig, check_index
from raytriever.index.approximate.index import ApproximateIndex
from raytriever.index.approximate.measure import format_count, measure
from raytriever.index.approximate.store import read_index, read_meta, write_index
from raytriever.index.exact.search import tie_order
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision
from raytriever.models.retriever import Retriever
from raytriever.search.exact import Hit, hits_of, search_store
from raytriever.storage import check_writable
from raytriever.terminal import one_line, text_table

Say = Callable[[str], None]
# Only RoarGraph reads queries.
_TRAINING_SPLIT = "train"


@dataclass(frozen=True)
class IndexJob:
    """What is indexed, and how.

    Args:
        dataset: path, URI or name.
        config: of the index.
        model: the encoder.
        precision: its arithmetic; None for what the hardware is fastest at.
        max_bad_rows: the share of each file's rows that may be bad.
        seed: of whatever the index draws.
        split: whose queries the caller will ask, if any; opened with the rest.
        embeddings: of the passages, a store that `model` made of this data set; made or found in the cache by default.
    """

    dataset: str
    config: IndexConfig
    model: ModelConfig
    precision: str | None
    max_bad_rows: float
    seed: int
    split: str | None = None
    embeddings: Path | None = None


@dataclass(frozen=True)
class IndexResult:
    """An index in memory, with what made it; `seconds` is what building took, None where it stood already."""

    index: ApproximateIndex
    dataset: RetrievalDataset
    retriever: Retriever
    store: EmbeddingStore
    seconds: float | None

    def search(self, queries: Sequence[str], top: int, threshold: float | None = None) -> list[list[Hit]]:
        """Return for each query the best passages that the index finds, best first, none below the threshold.

        Raises:
            ModelError: the embedding of a query is not finite.
        """
        embeddings = encode_texts(self.retriever, queries, "query", "queries")
        return hits_of(self.dataset, *self.index.search(embeddings, top), threshold)

    def queries(self, split: str) -> Float32[ndarray, "queries width"]:
        """The embeddings of the judged queries of a split."""
        return _queries(self.retriever, self.dataset, split)


def run_index(job: IndexJob, output: Path, say: Say) -> IndexResult:
    """Build the index and commit it to `output`, or open it there.

    Raises:
        UserError: something a user can mend, such as another index at `output`; nothing is written then.
    """
    check_index(job.config)
    trained = (job.config.training_split or _TRAINING_SPLIT) if job.config.index == "roargraph" else None
    if trained and trained == job.split:
        raise ConfigError(
            f"the graph is built from the queries of {trained}", "--split", "ask others: it answers these too well"
        )
    check_writable(output)
    stands = output.exists() and read_meta(output)
    splits = [split for split in dict.fromkeys((trained, job.split)) if split]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = open_dataset(job.dataset, splits, max_bad_rows=job.max_bad_rows, run=in_processes, say=say)
    retriever = load_for_encoding(job.model, choose_precision(job.precision, device), device)
    store = open_matching_store(job.embeddings, job.model, retriever, dataset) if job.embeddings else None
    store = store or embed_corpus(job.model, retriever, dataset)
    meta = _meta(job, dataset, store, trained)
    if stands:
        if stands["key"] != meta["key"]:
            raise StorageError(
                f"holds another index ({stands['index']} of {stands['dataset']} by {stands['model']})",
                str(output),
                "give another --output, or remove it",
            )
        index = read_index(output)
        index = replace(index, effort=job.config.effort or index.effort)
        return IndexResult(index, dataset, retriever, store, None)
    training = _queries(retriever, dataset, trained) if trained else None
    rows = _rows(store, dataset)
    say(f"{dataset.name}: building {job.config.index} over {len(rows.embeddings):,} passages")
    began = perf_counter()
    index = build_index(rows, job.config, training, job.seed, torch.get_num_threads())
    seconds = perf_counter() - began
    write_index(output, index, job.config.index, meta)
    return IndexResult(index, dataset, retriever, store, seconds)


def _rows(store: EmbeddingStore, dataset: RetrievalDataset) -> DocumentVectors:
    kept = np.setdiff1d(np.arange(len(store)), np.array(store.meta["left_out"], np.int64))
    embeddings = store.array() if len(kept) == len(store) else store.read(kept)
    return DocumentVectors(embeddings, kept, tie_order(dataset.documents.ids))


def _queries(retriever: Retriever, dataset: RetrievalDataset, split: str) -> Float32[ndarray, "queries width"]:
    asked = dataset.positives(split).queries
    if not len(asked):
        raise ConfigError(f"{dataset.name} has no judged query", split, "name another split")
    return encode_texts(retriever, [dataset.queries.texts[int(query)] for query in asked], "query", f"{split} queries")


def _meta(job: IndexJob, dataset: RetrievalDataset, store: EmbeddingStore, trained: str | None) -> dict[str, Any]:
    """What is kept in the manifest; `key` is the digest of all that decides the index."""
    config = job.config
    settings = {name: value for name, value in asdict(config).items() if name != "effort"}
    settings |= {"degree": config.value("degree"), "build_beam": config.value("build_beam")}
    settings |= {"nearest": config.value("nearest"), "training_split": trained}
    decides = [settings, job.seed, store.meta["key"], dataset.documents.digest]
    decides += [dataset.queries.digest, dataset.positives(trained).queries.tolist()] if trained else []
    return {
        **settings,
        "seed": job.seed,
        "model": job.model.model,
        "dataset": dataset.name,
        "embeddings": store.meta["key"],
        "key": hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest(),
    }


CUTOFFS = (10, 100)


def format_answers(indexed: IndexResult, query: str, top: int) -> str:
    """The best passages for a query, with their scores, as text."""
    embedding = encode_texts(indexed.retriever, [query], "query", "query")
    scores, found = indexed.index.search(embedding, top)
    documents = indexed.dataset.documents
    lines = []
    for score, place in zip(scores[0], found[0], strict=True):
        if place >= 0:
            title = documents.titles[place]
            shown = f"  {one_line(title)}" if title not in ("", documents.ids[place]) else ""
            lines.append(f"{score:8.4f}  {one_line(documents.ids[place])}{shown}")
            lines.append(textwrap.indent(textwrap.shorten(documents.texts[place], 240, placeholder=" …"), " " * 10))
    return "\n".join(lines)


def format_measurements(indexed: IndexResult, split: str) -> str:
    """Recall against exact search, candidates and queries a second on one thread, as a table.

    Raises:
        ConfigError: the split has no judged query.
    """
    queries, index = indexed.queries(split), indexed.index
    rows = []
    for k in CUTOFFS:
        _, true = search_store(indexed.store, queries, k, index.ties)
        point = measure(index, queries, true, index.effort)
        rows.append([f"{k}", f"{point.recall:.4f}", format_count(point.candidates), format_count(point.qps)])
    head = ["k", "recall of the exact k", "candidates a query", "queries/s, 1 thread"]
    return f"{len(queries):,} queries of {split}, effort {index.effort}\n" + text_table([head, *rows], left=0)
