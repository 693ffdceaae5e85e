"""The systems a split is measured with: BM25, and a dense retriever before or after training."""

from __future__ import annotations

import numpy as np
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.index.exact import tie_order
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever
from raytriever.negatives.bm25 import Bm25Index
from raytriever.retrieval.corpus import embed_corpus
from raytriever.retrieval.encode import encode_texts
from raytriever.retrieval.evaluate import Evaluation, evaluate, evaluate_embeddings


def evaluate_retriever(dataset: RetrievalDataset, split: str, config: ModelConfig, retriever: Retriever) -> Evaluation:
    """Encode the corpus and the split's queries, search exactly, measure; `retriever` was loaded by `config`."""
    queries = [dataset.queries.texts[query] for query in dataset.positives(split).queries]
    return evaluate_embeddings(
        dataset,
        split,
        encode_texts(retriever, queries, "query", "queries"),
        embed_corpus(config, retriever, dataset).array(),
    )


def evaluate_bm25(dataset: RetrievalDataset, split: str, index: Bm25Index) -> Evaluation:
    """The lexical yardstick, by the same protocol."""
    texts = dataset.queries.texts
    ties = tie_order(dataset.documents.ids)

    def search(wanted: ndarray, depth: int) -> tuple[ndarray, ndarray]:
        scores, documents = index.search([texts[query] for query in wanted], depth)
        order = np.lexsort((ties[documents], -scores), axis=1)
        return np.take_along_axis(scores, order, 1), np.take_along_axis(documents, order, 1)

    def score(of: ndarray, to: ndarray) -> ndarray:
        found = np.empty(len(of), np.float32)
        for query in np.unique(of):
            pairs = of == query
            found[pairs] = index.scores(texts[query])[to[pairs]]
        return found

    return evaluate(dataset, split, search, score)
