"""Quantized and truncated variants of a model's embeddings, made from its embeddings in fp32.

A variant is a system of the evaluation, like a model, but nothing is encoded for it. A variant in fp32 keeps the first
components, normalized again for cosine, and equals the model loaded with `truncate_dim`. `index.quantized_search`
searches the other types. For each result of the run file, it finds `rescore_multiplier` candidates, and rescores them
to choose the results. All scores of results, including those in the AUC, are rescored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from raytriever.core.errors import DataError, setting
from raytriever.data.dataset import RetrievalDataset
from raytriever.evaluation.dataset_evaluation import DatasetEvaluation
from raytriever.evaluation.protocol import RUN_DEPTH, target_text
from raytriever.evaluation.requested_models import QuantizedVariant
from raytriever.evaluation.results import ThresholdRow, VariantRow
from raytriever.evaluation.systems import DenseSystem, score_pairs
from raytriever.metrics.answer_confidence import SCORE
from raytriever.metrics.pair_threshold import achieve_pairs, best_f1_threshold
from raytriever.retrieval.index.exact_top_k import top_k_of_blocks
from raytriever.retrieval.index.quantized_search import FP32, INT8, QuantisedDocuments, Quantizer, bytes_per_document
from raytriever.retrieval.search.calibration_file import digest_of

# Largest and smallest number of documents, evenly spaced in the corpus, whose embeddings set the ranges of int8.
SAMPLE, FEWEST = 10_000, 2


def check_samples(variants: Sequence[QuantizedVariant], datasets: Sequence[RetrievalDataset]) -> None:
    """Raise `DataError` if a corpus has fewer than two documents, which int8 needs for its ranges."""
    for dataset in datasets:
        if any(variant.dtype == INT8 for variant in variants) and len(dataset.documents) < FEWEST:
            what = "has fewer than two documents, which int8 needs for its ranges"
            raise DataError(what, dataset.name, f"leave int8 out of {setting('dtype')}")


@dataclass
class QuantizedSystem:
    """`System` that searches a quantized or truncated variant of a dense system's embeddings.

    `kept` is the number of results that rescoring chooses for each query; see `Protocol.kept_of`."""

    dense: DenseSystem
    variant: QuantizedVariant
    kept: int = RUN_DEPTH

    @property
    def digest(self) -> str:
        """See `PreparedSystem.digest`."""
        return digest_of(self.dense.digest, self.variant.dtype, self.variant.dim, self.variant.rescore_multiplier)

    def search(self, queries: ndarray, depth: int) -> tuple[ndarray, ndarray]:
        """See `System.search`."""
        if self.quantized is None:
            return top_k_of_blocks(self.encode(queries), self.blocks(), depth, self.dense.ties)
        return self.quantized.search(self.encode(queries), depth, self.variant.rescore_multiplier * self.kept)

    def score(self, queries: ndarray, documents: ndarray) -> ndarray:
        """See `System.score`."""
        if self.quantized is None:
            return score_pairs(self.encode, self.read, queries, documents)
        asked, rows = np.unique(queries, return_inverse=True)
        return self.quantized.score(self.encode(asked), rows, documents)

    def prepare(self) -> None:
        """See `PreparedSystem.prepare`."""
        _ = self.quantized  # computed here, so that the search time excludes it

    def encode(self, queries: ndarray) -> Float32[ndarray, "queries components"]:
        """Return the embeddings of queries that are given by position."""
        return self._cut(self.dense.encode(queries))

    @cached_property
    def quantized(self) -> QuantisedDocuments | None:
        """Quantized documents; None for a variant in fp32."""
        if self.variant.dtype == FP32:
            return None
        store = self.dense.encode_corpus()
        sample = np.linspace(0, len(store) - 1, min(SAMPLE, len(store))).astype(np.int64)
        quantizer = Quantizer.fit(self.variant.dtype, self.read(sample))
        return QuantisedDocuments(quantizer, self.blocks, self.read, self.dense.ties)

    def blocks(self) -> Iterator[tuple[int, Float32[ndarray, "rows dim"]]]:
        """Yield blocks of the documents' embeddings, each with the number of its first row."""
        return ((first, self._cut(values)) for first, values in self.dense.encode_corpus().blocks())

    def read(self, rows: ndarray) -> Float32[ndarray, "rows dim"]:
        """Return the embeddings of documents."""
        return self._cut(self.dense.encode_corpus().read(rows))

    def _cut(self, embeddings: Float32[ndarray, "rows dim"]) -> Float32[ndarray, "rows components"]:
        if self.variant.dim is None:
            return embeddings
        cut = embeddings[:, : self.variant.dim]
        if self.dense.retriever.description.similarity != "cosine":
            return cut
        norms = np.linalg.norm(cut, axis=1, keepdims=True)
        return cut / np.maximum(norms, np.finfo(np.float32).tiny)


def variant_rows(
    evaluated: DatasetEvaluation,
    variants: Sequence[QuantizedVariant],
    systems: Mapping[str, Mapping[str, Any]],
    thresholds: Sequence[ThresholdRow] = (),
) -> list[VariantRow]:
    """Return a row for each model that has variants, and for each of its variants.

    All rows use one threshold, which was chosen for the scores of the model itself in fp32 with all components. It is
    the threshold of the first target that was reached, or else that of the highest F1 on the evaluated split."""
    rows = []
    for model in dict.fromkeys(variant.model for variant in variants):
        threshold, chosen = _threshold(evaluated, model, thresholds)
        answered = _answered(evaluated, model, threshold)
        whole = QuantizedVariant(model, FP32, None, 1)
        for variant in [whole, *(variant for variant in variants if variant.model == model)]:
            name = model if variant is whole else variant.name
            achieved = achieve_pairs(evaluated.pools(name), threshold)
            dim = systems[name]["dim"]
            rows.append(
                VariantRow(
                    dataset=evaluated.source.name,
                    model=model,
                    system=name,
                    dtype=variant.dtype,
                    dim=dim,
                    bytes=bytes_per_document(variant.dtype, dim),
                    metrics=evaluated.metrics(name),
                    threshold=threshold,
                    chosen=chosen,
                    precision=achieved.precision.value if achieved.precision.total else None,
                    recall=achieved.recall.value,
                    changed=float((_answered(evaluated, name, threshold) != answered).mean()),
                )
            )
    return rows


def _threshold(evaluated: DatasetEvaluation, model: str, rows: Sequence[ThresholdRow]) -> tuple[float, str]:
    for row in rows:
        is_own = (row.dataset, row.model, row.confidence) == (evaluated.source.name, model, SCORE)
        if is_own and row.threshold is not None:
            return row.threshold, f"{target_text(row.target, row.wanted)} on {row.chosen_on}"
    pools = evaluated.pools(model)
    return best_f1_threshold(pools.positives, pools.negatives)[0], f"highest F1 on {evaluated.source.split}"


def _answered(evaluated: DatasetEvaluation, system: str, threshold: float) -> ndarray:
    best = [part.evaluations[system] for part in evaluated.parts]
    return np.concatenate([(ranked.ranking[:, 0] >= 0) & (ranked.scores[:, 0] >= threshold) for ranked in best])
