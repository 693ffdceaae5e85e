"""Find the best passages of a data set for one query."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from raytriever.data.open import open_dataset
from raytriever.data.processes import in_processes
from raytriever.index.exact import tie_order, top_k
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision
from raytriever.retrieval.corpus import embed_corpus
from raytriever.retrieval.encode import encode_texts
from raytriever.retrieval.loading import load_for_encoding


@dataclass(frozen=True)
class Hit:
    """One passage found; the score is the cosine or the dot product of the model."""

    score: float
    document_id: str
    title: str
    text: str


def search_dataset(
    config: ModelConfig, dataset_name: str, query: str, top: int, threshold: float | None = None
) -> list[Hit]:
    """The `top` passages with the highest scores, best first; none below the threshold, where one is given."""
    dataset = open_dataset(dataset_name, [], run=in_processes)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    retriever = load_for_encoding(config, choose_precision(None, device), device)
    passages = embed_corpus(config, retriever, dataset).array()
    embedding = encode_texts(retriever, [query], "query", "query")
    scores, found = top_k(embedding, passages, top, tie_order(dataset.documents.ids))
    documents = dataset.documents
    return [
        Hit(float(score), documents.ids[place], documents.titles[place], documents.texts[place])
        for score, place in zip(scores[0], found[0], strict=True)
        if threshold is None or score >= threshold
    ]
