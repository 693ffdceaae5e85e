"""Postings of a corpus for BM25: the documents that contain a term, how often, and the term's weight in the score.

1. A block of documents becomes a `PostingsBlock`: for each of its terms (`bm25_analyzer`), the rows and frequencies.
2. `merge` numbers the terms of all blocks, computes their weights from the whole corpus, and joins the postings of each
   term, in the order of the documents. The postings of a large corpus are memory-mapped in the cache. Processes
   analyze its blocks and commit each one, so that a killed command continues after the last block.

Weights are those of bm25s to the last bit (Lu 2024, arXiv:2407.03618; Robertson & Zaragoza 2009): Lucene's formula in
float64, with the inverse document frequency and the weight rounded to float32."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64, UInt32
from numpy import ndarray

from raytriever.core.errors import DataError
from raytriever.core.processes import TRIES, ProcessDeath, map_in_processes
from raytriever.core.progress import Progress
from raytriever.core.reading.arrays import read_array
from raytriever.core.store.cache import cache_folder, hold
from raytriever.core.store.commit import committed_directory
from raytriever.core.store.unfinished_pieces import Pieces, make_once
from raytriever.data.dataset import Documents, Passages
from raytriever.retrieval.mining.bm25_analyzer import ENGLISH_ANALYZER, Analyzer

K1, B = 0.9, 0.4
BLOCK = 1 << 15  # number of documents in a block
_TOGETHER = 1 << 16  # number of postings that are processed at a time
_FORMAT = 2  # version of files, terms and weights; increase it to discard cached postings
_TYPES = {"counts": "int64", "lengths": "int64", "starts": "int64", "weights": "float32"}
_TYPES |= dict.fromkeys(("rows", "frequencies", "documents"), "uint32")
_TERMS = "terms.txt"
# Function that allocates one array of `Postings`: (name, length, type) -> array.
_Allocate = Callable[[str, int, Any], ndarray]


@dataclass(frozen=True)
class PostingsBlock:
    """Terms of a block of documents."""

    terms: Sequence[str]  # distinct terms, sorted
    counts: Int64[ndarray, " terms"]  # number of documents that contain each term
    rows: UInt32[ndarray, " postings"]  # rows of these documents, term after term, ascending within a term
    frequencies: UInt32[ndarray, " postings"]  # how often the document contains the term, aligned with `rows`
    lengths: Int64[ndarray, " documents"]  # number of terms of each document, including repeated ones

    @classmethod
    def of(cls, texts: Sequence[str], analyzer: Analyzer = ENGLISH_ANALYZER) -> PostingsBlock:
        """Analyze texts."""
        terms, ids, lengths = analyzer.number_terms(texts)
        pairs = ids * len(texts) + np.repeat(np.arange(len(texts)), lengths)
        pairs, frequencies = np.unique(pairs, return_counts=True)
        counts = np.bincount(pairs // max(1, len(texts)), minlength=len(terms))
        rows = (pairs % max(1, len(texts))).astype(np.uint32)
        return cls(terms, counts, rows, frequencies.astype(np.uint32), lengths)

    def write(self, folder: Path) -> None:
        """Write the block to files."""
        (folder / _TERMS).write_text("\n".join(self.terms), encoding="utf-8")
        for name in ("counts", "rows", "frequencies", "lengths"):
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def read(cls, folder: Path) -> PostingsBlock:
        """Open the files of a block; arrays are memory-mapped."""
        terms = _read_terms(folder)
        counts = _mapped(folder, "counts", len(terms))
        rows, frequencies = (_mapped(folder, name, int(counts.sum())) for name in ("rows", "frequencies"))
        return cls(terms, counts, rows, frequencies, _mapped(folder, "lengths"))


@dataclass(frozen=True)
class Postings:
    """Postings of a corpus, in memory or memory-mapped."""

    size: int
    vocabulary: dict[str, int]  # term -> its number t
    starts: Int64[ndarray, " terms+1"]  # the postings of term t are at the indices `starts[t]` to `starts[t + 1]`
    documents: UInt32[ndarray, " postings"]  # positions of documents, ascending within a term
    weights: Float32[ndarray, " postings"]  # weight that the term adds to the score of the document, above 0

    @classmethod
    def of(cls, texts: Sequence[str], analyzer: Analyzer = ENGLISH_ANALYZER) -> Postings:
        """Index texts in memory."""
        starts = range(0, len(texts), BLOCK)
        blocks = [PostingsBlock.of(texts[start : start + BLOCK], analyzer) for start in starts]
        return merge(lambda: blocks, lambda name, length, kind: np.empty(length, kind))

    @classmethod
    def cached(cls, documents: Documents, analyzer: Analyzer) -> Postings:
        """Return the postings of a corpus from the cache. If the cache does not have them, make and store them."""
        versions = [version(package) for package in ("bm25s", "PyStemmer")]
        content = [_FORMAT, documents.digest, analyzer.settings, K1, B, versions]
        key = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        folder = cache_folder() / "bm25" / key[:16]
        make_once(folder, lambda: _make(folder, Passages(documents), analyzer))
        vocabulary = {term: number for number, term in enumerate(_read_terms(folder))}
        starts = _mapped(folder, "starts", len(vocabulary) + 1)
        arrays = (_mapped(folder, name, int(starts[-1])) for name in ("documents", "weights"))
        postings = cls(len(documents), vocabulary, starts, *arrays)
        hold(folder, postings)
        return postings


def merge(read_blocks: Callable[[], Iterable[PostingsBlock]], allocate: _Allocate) -> Postings:
    """Compute the postings of a corpus from its blocks. `read_blocks` returns them in order, and is called twice.
    `allocate` allocates the arrays of the result."""
    vocabulary: dict[str, int] = {}
    numbers, counts, lengths = [], np.zeros(0, np.int64), []
    for block in read_blocks():
        if not vocabulary:
            vocabulary.update(zip(block.terms, range(len(block.terms)), strict=True))
            number = np.arange(len(vocabulary), dtype=np.int32)
        else:
            number = np.fromiter((vocabulary.setdefault(term, len(vocabulary)) for term in block.terms), np.int32)
        if len(vocabulary) > len(counts):  # double the size: if each block caused a copy, time would be quadratic
            counts = np.concatenate([counts, np.zeros(2 * len(vocabulary) - len(counts), np.int64)])
        counts[number] += block.counts
        numbers.append(number)
        lengths.append(np.asarray(block.lengths))
    counts = counts[: len(vocabulary)]
    size, length = sum(map(len, lengths)), sum(int(length.sum()) for length in lengths)
    starts = allocate("starts", len(counts) + 1, np.int64)
    starts[0], starts[1:] = 0, np.cumsum(counts)
    documents = allocate("documents", int(starts[-1]), np.uint32)
    weights = allocate("weights", int(starts[-1]), np.float32)
    distinct, index = np.unique(counts, return_inverse=True)
    # bm25s uses Python's logarithm; NumPy's may differ in the last bit.
    logarithms = [math.log(1 + (size - count + 0.5) / (count + 0.5)) for count in distinct.tolist()]
    rarities = np.array(logarithms, np.float32)[index]
    ends, first = starts[:-1].copy(), 0
    for block, number, block_length in zip(read_blocks(), numbers, lengths, strict=True):
        if len(number):
            norms = K1 * ((1 - B) + B * block_length / (length / size))
            begins = np.concatenate([[0], np.cumsum(block.counts)])
            # The postings of a term continue where those of the previous block end.
            shifts, rarity = ends[number] - begins[:-1], rarities[number].astype(np.float64)
            # Process a few terms at a time, so that intermediate results stay in the processor's cache.
            cuts = np.unique(np.searchsorted(begins, np.arange(0, begins[-1], _TOGETHER)))
            for low, high in zip(cuts, [*cuts[1:], len(number)], strict=True):
                some = slice(begins[low], begins[high])
                rows, counted, each_count = block.rows[some], block.frequencies[some], block.counts[low:high]
                added = np.repeat(rarity[low:high], each_count) * (counted / (norms[rows] + counted))
                places = np.arange(some.start, some.stop) + np.repeat(shifts[low:high], each_count)
                documents[places], weights[places] = first + rows, added
            ends[number] += block.counts
        first += len(block_length)
    return Postings(size, vocabulary, starts, documents, weights)


def _make(folder: Path, passages: Passages, analyzer: Analyzer) -> None:
    unmerged = folder.with_name(f"{folder.name}-blocks")
    unmerged.mkdir(parents=True, exist_ok=True)
    hold(unmerged, passages)
    starts = range(0, len(passages), BLOCK)
    names = [f"{start // BLOCK:06}" for start in starts]
    pieces = Pieces(unmerged)
    missing = set(pieces.missing(names))
    with Progress("index for BM25", len(names), "block", done=len(names) - len(missing)) as progress:
        numbered = zip(names, starts, strict=True)
        blocks = ((name, passages[start : start + BLOCK]) for name, start in numbered if name in missing)
        for _ in _in_processes(pieces, blocks, analyzer):
            progress.advance(1)
    with committed_directory(folder, {"kind": "bm25", "documents": len(passages)}, replace=folder.exists()) as aside:

        def on_disk(name: str, length: int, dtype: Any) -> ndarray:
            shape = (length,)
            if not length:  # an empty file cannot be mapped
                np.save(aside / f"{name}.npy", np.empty(shape, dtype))
                return np.empty(shape, dtype)
            return np.lib.format.open_memmap(aside / f"{name}.npy", "w+", dtype, shape)

        postings = merge(lambda: (PostingsBlock.read(unmerged / name) for name in names), on_disk)
        (aside / _TERMS).write_text("\n".join(postings.vocabulary), encoding="utf-8")
        del postings
    pieces.remove()


def _in_processes(pieces: Pieces, blocks: Iterable[tuple[str, list[str]]], analyzer: Analyzer) -> Iterator[None]:
    try:
        yield from map_in_processes(partial(_write_block, pieces, analyzer), blocks, [__name__])
    except ProcessDeath as death:
        [(name, texts)] = death.args
        first = int(name) * BLOCK
        what = f"{TRIES} processes died while they analyzed these documents for BM25"
        where = f"rows {first + 1:,} to {first + len(texts):,} of the corpus"
        raise DataError(what, where, "free memory, and run the command again") from death


def _write_block(pieces: Pieces, analyzer: Analyzer, block: tuple[str, list[str]]) -> None:
    name, texts = block
    pieces.write(name, PostingsBlock.of(texts, analyzer).write)


def _mapped(folder: Path, name: str, length: int | None = None) -> ndarray:
    """Memory-map an array. It is writable, because code compiled for arrays in memory rejects read-only arrays."""
    remedy = f"delete {folder}, and run the command again"
    return np.asarray(read_array(folder / f"{name}.npy", [_TYPES[name]], (length,), remedy, "c"))


def _read_terms(folder: Path) -> list[str]:
    text = (folder / _TERMS).read_text(encoding="utf-8")
    return text.split("\n") if text else []
