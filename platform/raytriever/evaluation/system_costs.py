"""Cost of each system of an evaluation: texts encoded, pairs scored by a cross-encoder, and seconds of search."""

from __future__ import annotations

from collections.abc import Sequence

from raytriever.evaluation.measurements import PartMeasurement
from raytriever.evaluation.requested_models import EvaluatedModel
from raytriever.evaluation.result_tables import Cell, ReportTable, Rows
from raytriever.evaluation.results import CostRow
from raytriever.evaluation.system_names import Reranking, encoders_of, nodes_of

_NOTE = "Passages and queries together. The search is that of all queries, after the passages were encoded or indexed."


def cost_rows(dataset: str, parts: Sequence[PartMeasurement], models: Sequence[EvaluatedModel]) -> list[CostRow]:
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
