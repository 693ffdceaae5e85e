"""Exact search of an embedding store and of a data set, and the hits that every search returns."""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray

from raytriever.core.errors import ConfigError, flag_of, setting
from raytriever.core.progress import activity
from raytriever.core.terminal import one_line, warn
from raytriever.data.columns import texts_at
from raytriever.data.dataset import Documents, RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.prepare.prepare_dataset import in_processes
from raytriever.metrics.answer_confidence import SCORE
from raytriever.models.inference import TextEncoder
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.embed_corpus import embed_corpus
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore
from raytriever.retrieval.encoding.encode_texts import encode_texts
from raytriever.retrieval.encoding.load_for_encoding import open_encoder
from raytriever.retrieval.index.exact_top_k import Corpus, tie_order, top_k_of_blocks
from raytriever.retrieval.index.rank_keys import TieOrder
from raytriever.retrieval.search.calibration_file import Calibration, Decider, current_calibration


@activity("searching the embeddings")
def search_store(
    store: EmbeddingStore, queries: Float32[ndarray, "queries dim"], k: int, ties: Int64[ndarray, " documents"]
) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
    """Search a store exactly, with only one shard in memory at a time; see `index.exact_top_k.top_k_of_blocks`."""
    return top_k_of_blocks(queries, store.blocks(), k, ties)


@dataclass(frozen=True)
class Hit:
    """Passage that a search found for a query.

    Attributes:
        score: cosine or dot product of the embeddings, depending on the model.
        document_id: id of the passage in the data set.
        title: title of the passage, which may be empty.
        text: text of the passage.
        probability: probability that the passage is relevant, by the model's `calibration.json`. None without one.

    Examples:
        >>> rt.Hit(0.73, "d1", "Vienna", "It lies on the Danube.").document_id
        'd1'
    """

    score: float
    document_id: str
    title: str
    text: str
    probability: float | None = None


class Hits(list[Hit]):
    """List of the hits of a query, best first, with the decision whether the query has an answer.

    Attributes:
        best_score: score of the best passage, even below the threshold of the search; None if there is no passage.
        confidence: number that is compared with the threshold. It is the best score, or another measure of the ranking
            that `calibration.json` names; None if there is no passage.
        confidence_name: name of the confidence, such as `score` or `combined`.
        threshold: lowest confidence at which the query has an answer. It is the threshold passed to the search, else
            that of the model's `calibration.json`, else None.
        lowest_score: lowest score that a hit may have, if the search has a threshold; else None.
        answerable: whether the confidence reaches the threshold; None if there is no threshold or no passage.
        stale: reason why the threshold may be wrong: many passages have changed since it was chosen. Empty otherwise.

    Examples:
        >>> hits = rt.Hits([rt.Hit(0.31, "d1", "", "It lies on the Danube.")], best_score=0.31, threshold=0.42)
        >>> hits.answerable, len(hits)
        (False, 1)
    """

    def __init__(
        self,
        hits: Iterable[Hit] = (),
        *,
        best_score: float | None = None,
        threshold: float | None = None,
        lowest_score: float | None = None,
        confidence: float | None = None,
        confidence_name: str = SCORE,
        stale: str = "",
    ) -> None:
        super().__init__(hits)
        self.best_score, self.threshold, self.lowest_score = best_score, threshold, lowest_score
        self.confidence = best_score if confidence is None else confidence
        self.confidence_name, self.stale = confidence_name, stale

    @property
    def answerable(self) -> bool | None:
        """True if the confidence reaches the threshold; None if there is no threshold or no passage."""
        if self.threshold is None or self.confidence is None:
            return None
        return self.confidence >= self.threshold


def hits_of(
    dataset: RetrievalDataset,
    scores: Float32[ndarray, "queries k"],
    ranking: Int64[ndarray, "queries k"],
    threshold: float | Literal["kept"] | None = None,
    calibration: Calibration | None = None,
    confidence: Float64[ndarray, " queries"] | None = None,
) -> list[Hits]:
    """Return the passages of rankings, best first, without those below the threshold and without padding.

    Args:
        threshold: lowest score of a hit; `kept` means the calibration's threshold of passages to keep.
        calibration: gives each hit a probability. Unless `threshold` is a score, the calibration's own threshold
            decides whether a query has an answer.
        confidence: confidence of each query, as the calibration defines it.
    """
    lowest_score: float | None = None
    if not isinstance(threshold, str):
        lowest_score = threshold
    else:
        if calibration is None or calibration.kept is None:
            what = "no calibration of this system for these passages has a threshold of passages to keep"
            remedy = f"run `raytriever evaluate {flag_of('calibrate')} kept=0.95 f1` first"
            raise ConfigError(what, setting("threshold", threshold), remedy)
        threshold, lowest_score = None, calibration.kept.score
    documents, is_hit = dataset.documents, ranking >= 0
    positions, numbers = np.unique(ranking[is_hit], return_inverse=True)
    ids, titles, texts = (texts_at(column, positions) for column in (documents.ids, documents.titles, documents.texts))
    passage_of = np.full(ranking.shape, -1)
    passage_of[is_hit] = numbers
    found = np.where(is_hit, scores, 0)
    probabilities, decided = np.full(scores.shape, None), {}
    if calibration is not None and confidence is not None and not calibration.stale:
        probabilities = calibration.probabilities(found, confidence).astype(object)
    lowest, values = threshold, np.full(len(scores), None)
    if lowest is None and calibration is not None and confidence is not None and calibration.threshold is not None:
        lowest, values = calibration.threshold.score, confidence.astype(object)
        decided = {"confidence_name": calibration.confidence.name, "stale": calibration.stale}
    return [
        Hits(
            (
                Hit(float(score), ids[at], titles[at], texts[at], probability)
                for score, at, probability in zip(*row, strict=True)
                if at >= 0 and (lowest_score is None or score >= lowest_score)
            ),
            best_score=float(row[0][0]) if len(row[1]) and row[1][0] >= 0 else None,
            threshold=lowest,
            lowest_score=lowest_score,
            confidence=value if len(row[1]) and row[1][0] >= 0 else None,
            **decided,
        )
        for *row, value in zip(scores, passage_of, probabilities, values, strict=True)
    ]


def format_hits(hits: Hits) -> str:
    """Format the hits of a query as text: if there is a threshold, a line with the decision; then each passage."""
    lines = []
    if not hits and hits.lowest_score is not None:
        return f"no answer: no passage scores {hits.lowest_score:g} or more"
    if hits.answerable is not None:
        name = "the best score" if hits.confidence_name == SCORE else f"the confidence ({hits.confidence_name})"
        found, is_at = ("answer", "reaches") if hits.answerable else ("no answer", "is below")
        doubt = f" (doubtful: {hits.stale})" if hits.stale else ""
        compared = f"{name} {hits.confidence:.4f} {is_at} the threshold {hits.threshold:.4f}{doubt}"
        lines.append(f"{found}: {compared}; the {'best' if hits.answerable else 'nearest'} passages are")
    for hit in hits:
        title = f"  {one_line(hit.title)}" if hit.title not in ("", hit.document_id) else ""
        probability = "" if hit.probability is None else f"  p={hit.probability:.2f}"
        lines.append(f"{hit.score:8.4f}{probability}  {one_line(hit.document_id)}{title}")
        lines.append(textwrap.indent(textwrap.shorten(hit.text, 240, placeholder=" …"), " " * 10))
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class PassageIndex(ABC):
    """Searchable index of a data set's passages, with their encoder and calibration."""

    dataset: RetrievalDataset
    retriever: TextEncoder
    calibration: Calibration | None = None  # meaning of the scores; None if it is unknown

    @property
    def documents(self) -> Documents:
        """Passages of the index."""
        return self.dataset.documents

    @cached_property
    def decider(self) -> Decider:
        """Function that computes the confidence of queries, as the calibration defines it."""
        return Decider(self.calibration, self.dataset.documents)

    @abstractmethod
    def rank(
        self, queries: Float32[ndarray, "queries dim"], k: int
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """Return scores and positions of the k best passages that the index finds for each query."""

    def search(self, queries: Sequence[str], top: int, threshold: float | Literal["kept"] | None = None) -> list[Hits]:
        """Return for each query the `top` passages with the highest scores, best first, but none below the threshold.

        Raises:
            ConfigError: the threshold is `kept`, and the calibration has no such threshold.
            ModelError: the embedding of a query has NaN or infinity.
        """
        prompt = self.retriever.prompts_of(self.dataset.name).query
        embeddings = encode_texts(self.retriever, queries, "query", "queries", prompt)
        scores, ranking = self.rank(embeddings, max(top, self.decider.depth))
        confidence = self.decider.confidence(queries, scores, ranking)
        return hits_of(self.dataset, scores[:, :top], ranking[:, :top], threshold, self.calibration, confidence)


@dataclass(frozen=True, kw_only=True)
class ExactIndex(PassageIndex):
    """Index of passages and their embeddings in memory, for any number of exact searches."""

    embeddings: Float32[ndarray, "passages dim"]

    @classmethod
    def build(
        cls, config: ModelConfig, retriever: TextEncoder, dataset: RetrievalDataset, calibration: Path | None = None
    ) -> ExactIndex:
        """Encode the passages, or read their embeddings from the cache. `retriever` was loaded with `config`.

        `calibration` is a file that the user names; see `current_calibration`."""
        retriever.prompts.check([dataset.name])
        current = current_calibration(
            config, dataset.name, dataset.documents, warn, int8=retriever.is_int8, file=calibration
        )
        passages = embed_corpus(config, retriever, dataset).array()
        return cls(dataset=dataset, retriever=retriever, embeddings=passages, calibration=current)

    @cached_property
    def _corpus(self) -> Corpus:
        blocks = [(0, self.embeddings)]
        return Corpus(lambda: blocks, TieOrder.of(tie_order(self.documents.ids)))

    def rank(
        self, queries: Float32[ndarray, "queries dim"], k: int
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """See `PassageIndex.rank`."""
        return self._corpus.top_k(queries, k)


def search_dataset(
    config: ModelConfig,
    dataset_name: str,
    query: str,
    top: int,
    threshold: float | Literal["kept"] | None = None,
    precision: str | None = None,
    calibration: Path | None = None,
) -> Hits:
    """Search a data set: return the `top` passages with the highest scores, best first, none below the threshold."""
    dataset = open_dataset(dataset_name, [], run=in_processes)
    retriever = open_encoder(config, precision)
    return ExactIndex.build(config, retriever, dataset, calibration).search([query], top, threshold)[0]
