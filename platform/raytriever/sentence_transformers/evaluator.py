"""Evaluator for the trainer of sentence-transformers: pooled AUC, a threshold for all queries, and nDCG@10.

It searches and evaluates like `raytriever evaluate`, so the same embeddings have the same metrics."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy import ndarray
from sentence_transformers.base.evaluation import BaseEvaluator
from torch import nn

from raytriever.core.errors import ConfigError, DataError
from raytriever.data.dataset import AbsentDocuments, Documents, Judgements, Queries, RetrievalDataset
from raytriever.data.hashed_ids import as_utf8
from raytriever.evaluation.protocol import AUC, Protocol
from raytriever.evaluation.systems import evaluate_embeddings
from raytriever.metrics.pair_threshold import ScoredPools, achieve_pairs, best_f1_threshold, choose_pair_threshold

_SPLIT, _NDCG = "dev", "ndcg_at_10"


class PooledAUCEvaluator(BaseEvaluator):
    """Evaluate how well one threshold for all queries separates relevant documents from others.

    Every query searches the whole corpus. The pool has the scores of all relevant documents, and the scores of the 500
    other documents of each query that score highest.

    Args:
        queries: text of each query id.
        corpus: text of each document id.
        relevant_docs: ids of the relevant documents of each query id. Queries without relevant documents are left out.
        name: name of the evaluation. The name of each metric begins with it.
        precision: target precision; the lowest threshold that reaches it is chosen. By default, F1 is maximized.
        drop_own_id: exclude the document with the id of the query from the query's results, as BEIR does.
        batch_size: number of texts to embed at once.
        query_prompt: text in front of each query.
        query_prompt_name: name of a prompt of the model, for each query.
        corpus_prompt: text in front of each document.
        corpus_prompt_name: name of a prompt of the model, for each document.
        truncate_dim: number of first components of an embedding to use.
        show_progress_bar: show a progress bar of the batches.
        write_csv: append the metrics to `Pooled-AUC_evaluation_NAME_results.csv` in the trainer's `eval` folder.

    A call returns `NAME_auc` (the primary metric), `NAME_ndcg@10`, and `NAME_threshold` with its `NAME_precision`,
    `NAME_recall` and `NAME_f1`. If no threshold reaches the target precision, the threshold is infinite, and
    `NAME_precision` is the highest possible precision.

    Raises:
        DataError: no query has a relevant document.
        ConfigError: the precision is out of range.
    """

    def __init__(
        self,
        queries: Mapping[str, str],
        corpus: Mapping[str, str],
        relevant_docs: Mapping[str, Iterable[str]],
        name: str = "",
        *,
        precision: float | None = None,
        drop_own_id: bool = False,
        batch_size: int = 32,
        query_prompt: str | None = None,
        query_prompt_name: str | None = None,
        corpus_prompt: str | None = None,
        corpus_prompt_name: str | None = None,
        truncate_dim: int | None = None,
        show_progress_bar: bool = False,
        write_csv: bool = True,
    ) -> None:
        super().__init__()
        if precision is not None and not 0 < precision <= 1:
            remedy = "give a number above 0 and at most 1"
            raise ConfigError(f"{precision!r} is out of range", "PooledAUCEvaluator(precision)", remedy)
        self.name, self.precision, self.write_csv, self.primary_metric = name, precision, write_csv, AUC
        self.csv_file = f"Pooled-AUC_evaluation{'_' if name else ''}{name}_results.csv"
        self._protocol = Protocol((_NDCG, AUC), drop_own=drop_own_id)
        self._prompts = ((query_prompt, query_prompt_name), (corpus_prompt, corpus_prompt_name))
        self._encoding: dict[str, Any] = {
            "batch_size": batch_size,
            "show_progress_bar": show_progress_bar,
            "truncate_dim": truncate_dim,
        }
        self._dataset = _dataset(queries, corpus, relevant_docs, name)

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        """Return the metrics of a model, by name.

        Args:
            model: a `SentenceTransformer` with the similarity cosine or dot.
            output_path: folder of the CSV file; None for no file.
            epoch: value for the column `epoch` of the CSV file.
            steps: value for the column `steps` of the CSV file.

        Raises:
            ConfigError: the model has another similarity.
        """
        if model.similarity_fn_name not in ("cosine", "dot"):
            raise ConfigError(
                f"the model's similarity is {model.similarity_fn_name}", "PooledAUCEvaluator", "use cosine or dot"
            )
        normalize = model.similarity_fn_name == "cosine"
        queries = self._embed(model.encode_query, self._dataset.queries.texts, self._prompts[0], normalize)
        documents = self._embed(model.encode_document, self._dataset.documents.texts, self._prompts[1], normalize)
        result = evaluate_embeddings(self._dataset, _SPLIT, queries, documents, self._protocol)
        pools = result.positive_scores, result.negative_scores
        if self.precision is None:
            threshold, precision, recall = best_f1_threshold(*pools)
        else:
            every = ScoredPools(*pools, result.positive_queries, result.negative_queries)
            threshold = choose_pair_threshold(every, "precision", self.precision).score
            fractions = achieve_pairs(every, threshold)
            precision, recall = fractions.precision.value if fractions.precision.count else 0.0, fractions.recall.value
        metrics = {
            AUC: result.metrics[AUC],
            "ndcg@10": result.metrics[_NDCG],
            "threshold": threshold,
            "precision": precision,
            "recall": recall,
            "f1": 2 * precision * recall / (precision + recall) if precision + recall else 0.0,
        }
        if output_path is not None and self.write_csv:
            _append_row(Path(output_path) / self.csv_file, {"epoch": epoch, "steps": steps, **metrics})
        named: dict[str, float] = self.prefix_name_to_metrics(metrics, self.name)
        self.store_metrics_in_model_card_data(model, named, epoch, steps)
        return named

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings for the model card."""
        return {"precision": self.precision, "truncate_dim": self._encoding["truncate_dim"]}

    def _embed(
        self, encode: Any, texts: Any, prompt: tuple[str | None, str | None], normalize: bool
    ) -> Float32[ndarray, "texts dim"]:
        embeddings = encode(
            list(texts), prompt=prompt[0], prompt_name=prompt[1], convert_to_tensor=True, **self._encoding
        ).float()
        array: ndarray = (nn.functional.normalize(embeddings, dim=-1) if normalize else embeddings).cpu().numpy()
        return array


def _dataset(
    queries: Mapping[str, str], corpus: Mapping[str, str], relevant_docs: Mapping[str, Iterable[str]], name: str
) -> RetrievalDataset:
    """Build a data set in memory from the corpus and the queries that have a relevant document.

    Raises:
        DataError: no query has a relevant document.
    """
    relevant = {query: sorted(set(relevant_docs.get(query, ()))) for query in queries}
    ids = [query for query, documents in relevant.items() if documents]
    if not ids:
        raise DataError("no query has a relevant document", "PooledAUCEvaluator(relevant_docs)", "check the query ids")
    position = {document: row for row, document in enumerate(corpus)}
    positives = [(row, document) for row, query in enumerate(ids) for document in relevant[query]]
    pairs = sorted((row, position[document]) for row, document in positives if document in position)
    absent = [(row, document) for row, document in positives if document not in position]
    rows = np.array(pairs, np.int64).reshape(-1, 2)
    lost = np.array([row for row, _ in absent], np.int64)
    return RetrievalDataset(
        name or "evaluation",
        Documents(list(map(as_utf8, corpus)), [""] * len(corpus), list(map(as_utf8, corpus.values()))),
        Queries(list(map(as_utf8, ids)), [as_utf8(queries[query]) for query in ids]),
        {_SPLIT: Judgements(rows[:, 0], rows[:, 1], np.ones(len(rows), np.int64))},
        absent={
            _SPLIT: AbsentDocuments(lost, [as_utf8(document) for _, document in absent], np.ones(len(lost), np.int64))
        },
    )


def _append_row(file: Path, row: Mapping[str, object]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    is_new = not file.exists()
    with file.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, row)
        if is_new:
            writer.writeheader()
        writer.writerow(row)
