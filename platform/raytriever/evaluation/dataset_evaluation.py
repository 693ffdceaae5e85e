"""Measurements of an evaluation: the results and costs of the models on one data set, and their store.

Judgements refer to ids, so a copy of a relevant passage counts as not relevant, as in trec_eval. If many copies rank
above these passages, the metrics are too pessimistic: people would accept the copies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.core.store.unfinished_pieces import Pieces
from raytriever.data.dataset import RetrievalDataset
from raytriever.evaluation.differences.system_significance import testable_values
from raytriever.evaluation.evaluate_split import Evaluation, UnansweredRanking
from raytriever.evaluation.evaluated_datasets import EvaluationDataset, safe_name
from raytriever.evaluation.protocol import AUC, JudgedQueries
from raytriever.evaluation.requested_models import EvaluatedModel
from raytriever.evaluation.result_tables import Cell, ReportTable, Rows
from raytriever.evaluation.results import About, AnalysisAbout, AucRow, CostRow, finite
from raytriever.evaluation.system_names import Reranking, encoders_of, nodes_of
from raytriever.metrics.auc import auc_interval
from raytriever.metrics.pair_threshold import ScoredPools


def count_copies_above(dataset: RetrievalDataset, judged: JudgedQueries, evaluation: Evaluation) -> int:
    """Return the number of queries with a relevant passage that ranks below a copy of itself."""
    copies, ranking = dataset.documents.copies, evaluation.ranking
    if not len(copies):
        return 0
    relevant = judged.is_relevant & judged.is_in_corpus
    rows, documents = judged.relevance.queries[relevant], judged.relevance.documents[relevant]
    size = len(dataset.documents)
    is_answer = np.isin(np.arange(len(ranking))[:, None] * size + ranking, rows * size + documents) & (ranking >= 0)
    texts = np.arange(len(ranking))[:, None] * size + copies.first(ranking)
    is_copy = np.isin(texts, rows * size + copies.first(documents)) & (ranking >= 0) & ~is_answer
    count = 0
    for row in np.flatnonzero(is_copy.any(1)).tolist():
        own = documents[rows == row]
        firsts = copies.first(own)
        count += any(
            not np.isin(own[firsts == copies.first(ranking[row, place])], ranking[row, :place]).all()
            for place in np.flatnonzero(is_copy[row])
        )
    return count


UNFINISHED, FORMAT = ".unfinished", 4
ARRAYS = "evaluation.npz"


@dataclass(frozen=True)
class PartEvaluation:
    """Results of all models, by name, on an undivided data set, or on a part of a divided one.

    `calibration` has the results on the split for choosing thresholds, if thresholds are requested."""

    name: str
    dataset: RetrievalDataset
    judged: JudgedQueries
    evaluations: dict[str, Evaluation]
    calibration: dict[str, Evaluation] = field(default_factory=dict)
    calibration_judged: JudgedQueries | None = None

    def metrics(self, model: str) -> dict[str, float | None]:
        """Return the metrics of a model. A metric is None if no query has a value."""
        return {name: finite(value) for name, value in self.evaluations[model].metrics.items()}


@dataclass(frozen=True)
class DatasetEvaluation:
    """Results of all models on one data set of an evaluation, part by part."""

    source: EvaluationDataset
    parts: list[PartEvaluation]
    # `bm25`, `prompts`: see `results.About`.
    bm25: Mapping[str, AnalysisAbout] = field(default_factory=dict)
    prompts: Mapping[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)  # `digest` of each system; empty unless thresholds are chosen

    @property
    def models(self) -> list[str]:
        """Names of the models."""
        return list(self.parts[0].evaluations)

    def label(self, part: PartEvaluation) -> str:
        """Return the part's name in paths."""
        return self.source.label(part.name)

    def metrics(self, model: str) -> dict[str, float | None]:
        """Return the mean of each metric over the parts, with equal weights; None if a part has no value."""
        rows = [part.evaluations[model].metrics for part in self.parts]
        return {name: finite(float(np.mean([row[name] for row in rows]))) for name in rows[0]}

    def testable_values(self, model: str) -> dict[str, Float64[ndarray, " queries"]]:
        """Return the values of all queries, part by part, scaled so that their mean is the mean of the parts' means.

        Significance tests use these values: scaling changes no sign of a difference, and their mean is in the table."""
        counts = [len(part.evaluations[model].queries) for part in self.parts]
        weights = np.repeat([sum(counts) / (len(counts) * count) for count in counts], counts)
        rows = [testable_values(part.evaluations[model]) for part in self.parts]
        return {name: weights * np.concatenate([row[name] for row in rows]) for name in rows[0]}

    def about(self) -> About:
        """Return the split and, summed over all parts, the numbers that `results.About` describes."""
        absent = [part.judged.count_absent() for part in self.parts]
        return About(
            queries=sum(len(part.judged.queries) for part in self.parts),
            documents=sum(len(part.dataset.documents) for part in self.parts),
            split=self.source.split,
            copies_above={
                model: sum(
                    count_copies_above(part.dataset, part.judged, part.evaluations[model]) for part in self.parts
                )
                for model in self.models
            },
            parts=self.source.labels if self.source.is_divided else [],
            notes={model: notes for model in self.models if (notes := self._notes(model))},
            bm25=dict(self.bm25),
            prompts=dict(self.prompts),
            **{count: sum(counts[count] for counts in absent) for count in absent[0]},
        )

    def _notes(self, model: str) -> list[str]:
        labels = [f"{self.label(part)}: " if self.source.is_divided else "" for part in self.parts]
        notes = (part.evaluations[model].notes for part in self.parts)
        return [label + note for label, some in zip(labels, notes, strict=True) for note in some]

    def splits(self, model: str) -> list[list[tuple[JudgedQueries, Evaluation]]]:
        """Return the judged queries and results of each part: on the evaluated split and, if it differs, on the split
        on which thresholds are chosen."""
        evaluated = [(part.judged, part.evaluations[model]) for part in self.parts]
        chosen_on = [(part.calibration_judged or part.judged, part.calibration[model]) for part in self.parts]
        return [evaluated] if chosen_on[0][1] is evaluated[0][1] else [evaluated, chosen_on]

    def pools(self, model: str) -> ScoredPools:
        """Return the pooled scores of a model over all parts."""
        return pool_scores([part.evaluations[model] for part in self.parts])


def pool_scores(evaluations: Sequence[Evaluation]) -> ScoredPools:
    """Concatenate the pooled scores of evaluations. Query indices continue from one evaluation to the next."""
    firsts = np.cumsum([0, *(len(evaluation.queries) for evaluation in evaluations)])
    return ScoredPools(
        np.concatenate([evaluation.positive_scores for evaluation in evaluations]),
        np.concatenate([evaluation.negative_scores for evaluation in evaluations]),
        np.concatenate(
            [evaluation.positive_queries + first for evaluation, first in zip(evaluations, firsts, strict=False)]
        ),
        np.concatenate(
            [evaluation.negative_queries + first for evaluation, first in zip(evaluations, firsts, strict=False)]
        ),
    )


@dataclass(frozen=True)
class EvaluationStore:
    """Store of the finished results of an unfinished evaluation, in `OUTPUT.unfinished/MODEL.DATASET.SPLIT/`.

    Each model on each data set is written as soon as it is evaluated, with all data that the final files need. The same
    command continues after the last stored result, and its files have the same bytes as without an interruption. The
    folder is removed when the evaluation's directory is complete.

    A stored result is reused only for the same key: digests of weights and data, how texts are read, protocol and
    precision. A damaged result is computed again."""

    folder: Path
    log: Callable[[str], None]

    def get(
        self, model: str, dataset: str, split: str, key: Mapping[str, Any], evaluate: Callable[[], Evaluation]
    ) -> Evaluation:
        """Return the stored result. If there is none, compute and store it."""
        parts = Pieces(self.folder, hashlib.sha256(json.dumps([FORMAT, key], sort_keys=True).encode()).hexdigest())
        name = safe_name(f"{model}.{dataset}.{split}")
        if (stored := parts.read(name, _load)) is not None:
            self.log(f"{dataset}, {split}: {model} was evaluated before, see {self.folder / name}")
            return stored
        evaluation = evaluate()
        parts.write(name, lambda folder: _write(folder / ARRAYS, evaluation), {"kind": "evaluation"})
        return evaluation


def _write(file: Path, evaluation: Evaluation) -> None:
    """Write an evaluation as arrays: `FIELD`, or `FIELD.NAME` for each entry of a field that is a dictionary."""
    arrays: dict[str, Any] = {}
    for name, value in (vars(evaluation) | {"notes": np.array(evaluation.notes, dtype=str)}).items():
        arrays |= {f"{name}.{key}": array for key, array in value.items()} if isinstance(value, dict) else {name: value}
    for name, ranked in list(arrays.items()):
        if isinstance(ranked, UnansweredRanking):
            arrays |= {f"{name}.{key}": value for key, value in vars(arrays.pop(name)).items()}
    np.savez(file, **arrays)


def _load(folder: Path, meta: object) -> Evaluation:
    # The digest of the file was checked, so its content is exactly what `_write` has written.
    with np.load(folder / ARRAYS, allow_pickle=False) as stored:  # noqa: TID251 - its digest was compared
        arrays = dict(stored.items())
    fields: dict[str, Any] = {"per_query": {}, "metrics": {}, "unanswered": {}}
    for key, value in arrays.items():
        name, _, entry = key.partition(".")
        if not entry:
            fields[name] = value
        elif name == "unanswered":
            kind, _, column = entry.partition(".")
            fields[name].setdefault(kind, {})[column] = value
        else:
            fields[name][entry] = float(value) if name == "metrics" else value
    fields |= {"search_seconds": float(fields["search_seconds"]), "notes": fields["notes"].tolist()}
    fields["unanswered"] = {kind: UnansweredRanking(**columns) for kind, columns in fields["unanswered"].items()}
    return Evaluation(**fields)


def auc_rows(evaluated: DatasetEvaluation) -> list[AucRow]:
    """Return a row for each model that has an AUC.

    A divided data set has no rows, because its AUC is a mean over parts and has no interval."""
    if evaluated.source.is_divided:
        return []
    rows = []
    for model, evaluation in evaluated.parts[0].evaluations.items():
        pools = evaluated.pools(model)
        if AUC in evaluation.metrics and len(pools.positives) and len(pools.negatives):
            one = auc_interval(pools.positives, pools.negatives, pools.positive_queries, pools.negative_queries)
            bounds = finite(one.low), finite(one.high)
            rows.append(AucRow(evaluated.source.name, model, one.auc, *bounds, one.misordered, one.note))
    return rows


_NOTE = "Texts are passages and queries. The search is that of all queries, after passages were encoded or indexed."


def cost_rows(dataset: str, parts: Sequence[PartEvaluation], models: Sequence[EvaluatedModel]) -> list[CostRow]:
    """Return the cost of each system on a data set. A variant of embeddings costs as much as its model."""
    rows = []
    for model in models:
        texts = pairs = 0
        for part in parts:
            documents, queries = len(part.dataset.documents), len(part.judged.queries)
            texts += len(encoders_of(model.system)) * (documents + queries)
            nodes = nodes_of(model.system)
            pairs += sum(queries * min(node.depth, documents) for node in nodes if isinstance(node, Reranking))
        seconds = sum(part.evaluations[model.name].search_seconds for part in parts)
        rows.append(CostRow(dataset, model.name, texts, pairs, round(seconds, 3)))
    return rows


def cost_table(rows: Sequence[CostRow]) -> ReportTable:
    """Return the table of the costs."""
    cells: Rows = [
        [
            row.dataset,
            row.model,
            *(Cell(f"{count:,}", float(count)) for count in (row.texts, row.pairs)),
            Cell(f"{row.seconds:.2f}", row.seconds),
        ]
        for row in rows
    ]
    columns = ["data set", "model", "texts encoded", "pairs scored", "seconds of search"]
    return ReportTable("Cost", columns, cells, _NOTE)
