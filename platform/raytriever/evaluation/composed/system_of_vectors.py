"""Dense retriever without an encoder: it has only the embeddings of texts, by id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.core.errors import DataError, flag_of
from raytriever.core.progress import activity
from raytriever.data.dataset import RetrievalDataset
from raytriever.evaluation.composed.fusion_and_reranking import count_ids
from raytriever.evaluation.systems import score_pairs
from raytriever.retrieval.encoding.vectors_of_others import PASSAGES, QUERIES, StoredVectors, open_vectors, state_of
from raytriever.retrieval.index.exact_top_k import tie_order, top_k_of_blocks
from raytriever.retrieval.search.calibration_file import digest_of

COSINE, DOT = "cosine", "dot"


class VectorSystem:
    """`PreparedSystem` that searches a data set with the vectors of a folder, by `cosine` or `dot`. The default is
    `cosine` if all vectors have unit length, else `dot`.

    A passage without a vector is in no result, and a query without a vector has no results. Vectors of other texts are
    ignored."""

    def __init__(self, dataset: RetrievalDataset, folder: str, similarity: str | None = None) -> None:
        self.dataset, self.folder = dataset, folder
        self.passages, self.queries = (open_vectors(folder, side) for side in (PASSAGES, QUERIES))
        if self.passages.dim != self.queries.dim:
            what = f"has passages of dimension {self.passages.dim} and queries of dimension {self.queries.dim}"
            raise DataError(what, folder, "encode both with the same model")
        with activity("checking the vectors"):
            self.is_unit = all(
                [self.passages.has_unit_length, self.queries.has_unit_length]
            )  # a list, so that both sides are checked for components that are not finite
        self.similarity = similarity or (COSINE if self.is_unit else DOT)
        self._document, self._passage_row = self._match(self.passages, dataset.documents.ids, PASSAGES)
        _, self._query_row = self._match(self.queries, dataset.queries.ids, QUERIES)
        self._asked = np.zeros(0, np.int64)

    def _match(self, vectors: StoredVectors, ids: Sequence[str], side: str) -> tuple[ndarray, ndarray]:
        """Return each vector's position in the data set, and the row of each text's vector; -1 if there is none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        texts = pa.array(list(ids), pa.string())
        of_row, of_text = (
            pc.fill_null(pc.index_in(keys, value_set=other), -1).to_numpy(zero_copy_only=False).astype(np.int64)
            for keys, other in ((vectors.ids, texts), (texts, vectors.ids))
        )
        if (of_row < 0).all():
            what = f"has ids like {vectors.ids[0].as_py()!r}, but no id of {self.dataset.name}, such as {ids[0]!r}"
            raise DataError(what, vectors.name, "give vectors with the ids of the data set")
        return of_row, of_text

    @property
    def digest(self) -> str:
        """See `PreparedSystem.digest`."""
        return digest_of("vectors", state_of(self.folder), self.similarity)

    def prepare(self) -> None:
        """See `PreparedSystem.prepare`."""

    def search(self, queries: ndarray, depth: int) -> tuple[ndarray, ndarray]:
        """See `System.search`."""
        self._asked = np.union1d(self._asked, queries)
        scores = np.full((len(queries), depth), -np.inf, np.float32)
        documents = np.full(scores.shape, -1)
        known = np.flatnonzero(self._query_row[queries] >= 0)
        ranked = self._document[self._document >= 0]
        if len(known):
            found = top_k_of_blocks(self._encode(queries[known]), self._blocks(), depth, self._ties[ranked])
            dim = found[0].shape[1]
            scores[known, :dim], documents[known, :dim] = found[0], np.where(found[1] >= 0, ranked[found[1]], -1)
        return scores, documents

    def score(self, queries: ndarray, documents: ndarray) -> ndarray:
        """See `System.score`; NaN for a text without a vector."""
        scores = np.full(len(queries), np.nan, np.float32)
        known = (self._query_row[queries] >= 0) & (self._passage_row[documents] >= 0)
        if known.any():
            scores[known] = score_pairs(self._encode, self._read, queries[known], documents[known])
        return scores

    def notes(self) -> list[str]:
        """Return sentences about the similarity, and about missing and unknown texts. Call it after a search."""
        documents, queries = self.dataset.documents.ids, self.dataset.queries.ids
        shape = "have unit length" if self.is_unit else "do not all have unit length"
        norm = f"; {flag_of('similarity')} {COSINE} compares directions" if self.similarity == DOT else ""
        lines = [f"the vectors of {self.folder} {shape} and are compared by {self.similarity}{norm}"]
        missing = np.flatnonzero(self._passage_row < 0)
        lines += count_ids("passages have no vector", [documents[row] for row in missing[:3].tolist()], len(missing))
        asked = self._asked[self._query_row[self._asked] < 0]
        lines += count_ids("queries have no vector", [queries[row] for row in asked[:3].tolist()], len(asked))
        unknown = np.flatnonzero(self._document < 0)
        names = [self.passages.ids[row].as_py() for row in unknown[:3].tolist()]
        return lines + count_ids("vectors are of passages that the data set does not have", names, len(unknown))

    @cached_property
    def _ties(self) -> Int64[ndarray, " documents"]:
        return tie_order(self.dataset.documents.ids)

    def _encode(self, queries: ndarray) -> Float32[ndarray, "queries dim"]:
        return self._scaled(self.queries.read(self._query_row[queries]))

    def _read(self, documents: ndarray) -> Float32[ndarray, "documents dim"]:
        return self._scaled(self.passages.read(self._passage_row[documents]))

    def _blocks(self) -> Iterator[tuple[int, Float32[ndarray, "rows dim"]]]:
        """Yield blocks of vectors, each with the number of its first row. Skip, and do not count, unknown passages."""
        before = 0
        for first, block in self.passages.blocks():
            kept = self._document[first : first + len(block)] >= 0
            yield before, self._scaled(block if kept.all() else block[kept])
            before += int(kept.sum())

    def _scaled(self, vectors: Float32[ndarray, "rows dim"]) -> Float32[ndarray, "rows dim"]:
        if self.similarity == DOT or self.is_unit:
            return vectors
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
