"""Rankings in the format of TREC runs: `query Q0 document rank score tag`, one result a line."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import numpy as np

from raytriever.data.dataset import RetrievalDataset
from raytriever.retrieval.evaluate import Evaluation
from raytriever.storage import write_atomically


def write_run(path: Path, evaluation: Evaluation, dataset: RetrievalDataset, tag: str) -> None:
    """Write an evaluation's rankings; white space inside an id, which the format cannot hold, is percent-encoded."""
    ranked = np.unique(evaluation.ranking[evaluation.ranking >= 0])
    queries = {query: _column(dataset.queries.ids[query]) for query in evaluation.queries.tolist()}
    documents = {document: _column(dataset.documents.ids[document]) for document in ranked.tolist()}
    lines = []
    for query, ranking, scores in zip(evaluation.queries, evaluation.ranking, evaluation.scores, strict=True):
        for rank, (document, score) in enumerate(zip(ranking, scores, strict=True), start=1):
            if document >= 0:
                lines.append(f"{queries[query]} Q0 {documents[document]} {rank} {score:.9g} {tag}\n")
    write_atomically(path, "".join(lines))


def _column(name: str) -> str:
    return name if name.split() == [name] else quote(name, safe="")
