"""Build an approximate index from embeddings and settings, continue a build that was killed, and update an index.

A finder by FAISS is filled a block of rows at a time, and saved now and then (`store.parts.Savepoint` decides when):

    FOLDER/manifest.json    the digest of the file, and the number of rows or of iterations
    FOLDER/index.faiss      the index of the first rows
    FOLDER/centres.npy      or the centres of an inverted file that are being learnt

An update adds the new documents of a changed corpus, and hides those that were removed. Documents are recognised by
their embeddings, bit by bit. FAISS adds rows to an inverted file and to an HNSW graph. It removes none from a graph, so
rows without a document stay, and searches skip them. The centres, codes and layers are those of the first documents:
after more than a fifth of the rows was added or hidden, the index is built again. Vamana and RoarGraph are built again
after every change."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.activity import activity
from raytriever.data.keys import WIDTH, KeyIndex, Keys, keys_of
from raytriever.errors import ConfigError, DataError, setting
from raytriever.index.approximate.config import IndexConfig
from raytriever.index.approximate.faiss_finders import Centres, Flat, Hnsw, Ivf, default_code_bytes
from raytriever.index.approximate.index import ApproximateIndex, Finder
from raytriever.index.approximate.roargraph import RoarGraph
from raytriever.index.approximate.vamana import Vamana
from raytriever.index.score import check_finite
from raytriever.progress import Progress
from raytriever.store.cache import keep_within_bound
from raytriever.store.capacity import check_memory
from raytriever.store.parts import Parts, Savepoint

BLOCK = 1 << 16
# Copies that the disk must have room for: the one that is written, that before it, and the finished index.
_COPIES = 3

F = TypeVar("F", Ivf, Hnsw)


def grow(
    begin: Callable[[Centres | None, Callable[[Centres], None]], F],
    load: Callable[[Path, tuple[int, ...]], F],
    embeddings: Float32[ndarray, "rows width"],
    threads: int,
    folder: Path | None = None,
) -> F:
    """Return a finder of all rows.

    Args:
        begin: makes a finder without rows, from kept centres or None, and calls a function with the centres to keep.
        load: reads the files of a finder over embeddings of a shape.
        embeddings: finite embeddings, in memory or memory-mapped.
        folder: Folder of the unfinished finder, named after all that decides it; None to keep none.
    """
    parts = Parts(folder and folder.parent, optional="a build")
    savepoint = Savepoint(parts, folder.name if folder else "")

    def offer(finder: F | Centres, meta: dict[str, int]) -> None:
        if savepoint.offer(finder.save, _COPIES * finder.bytes, meta) and folder is not None:
            keep_within_bound(folder)

    kept = parts.read(savepoint.name, partial(_load, load, embeddings.shape[1]))
    if kept is None or isinstance(kept, Centres):
        kept = begin(kept, lambda centres: offer(centres, {"iterations": centres.iterations}))
    finder, start = kept.reserve(len(embeddings)), kept.index.ntotal
    del kept
    with Progress("index", len(embeddings), "passage", done=start) as progress:
        while start < len(embeddings):
            block = np.ascontiguousarray(embeddings[start : start + BLOCK])
            finder = finder.add(block, threads)
            start += len(block)
            progress.advance(len(block))
            offer(finder, {"rows": start})
    return finder


def _load(load: Callable[[Path, tuple[int, ...]], F], width: int, path: Path, meta: dict[str, Any]) -> F | Centres:
    """Return a saved finder, or the centres of one."""
    if "iterations" in meta:
        return Centres.load(path, width, int(meta["iterations"]))
    return load(path, (int(meta["rows"]), width))


@dataclass(frozen=True)
class DocumentVectors:
    """Documents that are indexed.

    Args:
        embeddings: embeddings of the documents that have one.
        documents: positions of these documents in the corpus, ascending.
        ties: result of `exact.search.tie_order` for the whole corpus.
    """

    embeddings: Float32[ndarray, "rows width"]
    documents: Int64[ndarray, " rows"]
    ties: Int64[ndarray, " documents"]

    @classmethod
    def of(cls, embeddings: Float32[ndarray, "documents width"]) -> DocumentVectors:
        """Create the documents of a corpus without ids; equal scores are ordered by position."""
        positions = np.arange(len(embeddings))
        return cls(embeddings, positions, positions)


@activity("building the index")
def build_index(
    rows: DocumentVectors,
    config: IndexConfig,
    training: Float32[ndarray, "training width"] | None,
    seed: int,
    threads: int,
    folder: Path | None = None,
) -> ApproximateIndex:
    """Build an index.

    Args:
        rows: documents, at least one.
        training: queries from which RoarGraph is built; not used by other kinds.
        threads: only the graph of HNSW depends on their number.
        folder: folder of an unfinished index of FAISS, from which a build that was killed continues; see `grow`.

    Raises:
        DataError: there are no documents.
        ModelError: an embedding is not finite.
        ConfigError: a setting does not suit the corpus, RoarGraph has no training queries, or a library is missing.
    """
    if not len(rows.embeddings):
        raise DataError("there are no documents to index", remedy="encode a data set with documents")
    check_finite(rows.embeddings, "document", rows.documents)
    embeddings = np.ascontiguousarray(rows.embeddings, np.float32)
    finder = _finder(embeddings, config, training, seed, threads, folder)
    return ApproximateIndex(
        finder=finder, embeddings=embeddings, documents=rows.documents, ties=rows.ties, effort=config.value("effort")
    )


def _finder(
    embeddings: ndarray, config: IndexConfig, training: ndarray | None, seed: int, threads: int, folder: Path | None
) -> Finder:
    degree, beam, width = config.value("degree"), config.value("build_beam"), embeddings.shape[1]
    if config.index == "flat":
        return Flat(embeddings)
    if config.index in ("ivf", "ivfpq"):
        code_bytes = (config.code_bytes or default_code_bytes(width)) if config.index == "ivfpq" else None
        train = partial(Ivf.trained, embeddings, config.lists, code_bytes, seed, threads)
        return grow(train, Ivf.load, embeddings, threads, folder)
    if config.index == "hnsw":
        load = partial(Hnsw.load, seed=seed, mapped=True)
        return grow(lambda *_: Hnsw.empty(width, degree, beam, seed), load, embeddings, threads, folder)
    if config.index == "vamana":
        return Vamana.build(embeddings, degree, beam, threads)
    if training is None or not len(training):
        raise ConfigError(
            "RoarGraph is built from training queries, and there are none",
            setting("training_split"),
            f"name a split that has queries, or use {setting('index')} hnsw",
        )
    return RoarGraph.build(embeddings, training, degree, config.value("nearest"), beam, seed, threads)


MOST_CHANGED = 0.2  # of the rows with which the index was built


@activity("updating the index")
def update_index(
    index: ApproximateIndex,
    rows: DocumentVectors,
    built: int,
    threads: int,
    join: Callable[[Sequence[ndarray], tuple[int, int]], ndarray] = lambda blocks, shape: np.concatenate(blocks),
) -> ApproximateIndex | None:
    """Return the index of changed documents; None if it should be built again.

    Args:
        index: index of the earlier documents; its finder is changed.
        built: number of rows with which the index was built.
        join: makes the embeddings of the result from blocks, given their shape; by default in memory.
    """
    finder = index.finder
    if not isinstance(finder, Ivf | Hnsw):
        return None
    check_finite(rows.embeddings, "document", rows.documents)
    earlier, now = _matches(_keys(index.embeddings), _keys(rows.embeddings))
    added = np.setdiff1d(np.arange(len(rows.documents)), now)
    documents = np.full(len(index.documents), -1)
    documents[earlier] = rows.documents[now]
    documents = np.concatenate([documents, rows.documents[added]])
    hidden = np.flatnonzero(documents < 0)
    if len(documents) - built + len(hidden) > MOST_CHANGED * built:
        return None
    new = np.ascontiguousarray(rows.embeddings[added], np.float32)
    return ApproximateIndex(
        finder=replace(finder.reserve(len(documents)).add(new, threads), hidden=hidden),
        embeddings=join([index.embeddings, new], (len(documents), new.shape[1])),
        documents=documents,
        ties=rows.ties,
        effort=index.effort,
    )


def edit_index(
    index: ApproximateIndex,
    keep: Int64[ndarray, " kept"],
    added: Float32[ndarray, "added width"],
    ties: Int64[ndarray, " documents"],
    built: int,
    threads: int,
) -> ApproximateIndex:
    """Return an index in memory of some documents of an index, by ascending positions, and of others after these.

    The index itself does not change, so others may search it meanwhile.

    Args:
        added: finite embeddings of the other documents.
        ties: order of all documents of the result; see `DocumentVectors`.
    Raises:
        ConfigError: the library cannot change this kind of index, or too much of it would have changed.
    """
    finder, rows = index.finder, len(index.documents) + len(added)
    if not isinstance(finder, Flat | Ivf | Hnsw):
        kind = type(finder).__name__.lower()
        remedy = "build another kind, such as hnsw, or change the data set and build the index again"
        raise ConfigError(f"a {kind} index cannot be changed in memory", remedy=remedy)
    check_memory(rows * (4 * index.embeddings.shape[1]), "the embeddings of a changed index", "build it again instead")
    places = np.full(len(index.ties), -1)
    places[keep] = np.arange(len(keep))
    documents = np.where(index.documents < 0, -1, places[index.documents])
    documents = np.concatenate([documents, np.arange(len(keep), len(keep) + len(added))])
    embeddings = np.concatenate([index.embeddings, added])
    if isinstance(finder, Flat):
        there = documents >= 0
        embeddings, documents = embeddings[there], documents[there]
        return replace(index, finder=Flat(embeddings), embeddings=embeddings, documents=documents, ties=ties)
    hidden = np.flatnonzero(documents < 0)
    if len(documents) - built + len(hidden) > MOST_CHANGED * built:
        raise ConfigError(
            f"more than {MOST_CHANGED:.0%} of the passages have changed since the index was built",
            remedy="build it again from the changed data set",
        )
    changed = replace(finder.copied(rows).add(added, threads) if len(added) else finder, hidden=hidden)
    return replace(index, finder=changed, embeddings=embeddings, documents=documents, ties=ties)


def _keys(embeddings: Float32[ndarray, "rows width"]) -> Keys:
    def hashes() -> Iterator[bytes]:
        for row in np.ascontiguousarray(embeddings, np.float32):
            yield hashlib.blake2b(row, digest_size=WIDTH).digest()

    return keys_of(hashes())


def _matches(earlier: Keys, now: Keys) -> tuple[Int64[ndarray, " matches"], Int64[ndarray, " matches"]]:
    """Return the rows of equal keys, each row at most once."""
    first = KeyIndex(np.concatenate([earlier, now])).first()
    most = len(first)
    numbers, of_others = _numbered(first[: len(earlier)], most), _numbered(first[len(earlier) :], most)
    _, rows, others = np.intersect1d(numbers, of_others, assume_unique=True, return_indices=True)
    return rows, others


def _numbered(groups: Int64[ndarray, " rows"], most: int) -> Int64[ndarray, " rows"]:
    """Return a number for each row that tells the first row of a group from its second, and so on."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(groups[order]) > 0)[: len(groups)])
    within = np.arange(len(groups)) - np.repeat(starts, np.diff(np.append(starts, len(groups))))
    numbers = np.empty(len(groups), np.int64)
    numbers[order] = groups[order] * most + within
    return numbers
