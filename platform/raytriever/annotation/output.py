"""Annotations as a data set in BEIR layout (docs/reference/formats.md), which every job can read.

The corpus, the queries, their answers and the judgements of all splits are copied from the data set. The annotated
split also has the positives of the model with source `llm` and their ranks. A pair that both people and the model
judged relevant has one row, with the source that `agreed` names. A pair that people judged 0 stays 0.
`annotations.jsonl` contains the answers of the model for each query, and no job reads it. Hard negatives of the data
set that have no judgement are written as a table in `negatives/`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from raytriever.annotation.annotator import Annotation
from raytriever.data.dataset import Judgements, RetrievalDataset
from raytriever.data.negatives import NegativesTable, write_negatives
from raytriever.data.records import SOURCES
from raytriever.storage import committed_directory

_HUMAN, _LLM = (SOURCES.index(name) for name in ("human", "llm"))
ANNOTATIONS, NEGATIVES = "annotations.jsonl", "negatives"
# White space at the ends is included, because a reader of columns may strip it.
_BREAKS = re.compile(r"[\t\r\n]|^\s|\s$")


def write_annotated(
    path: Path,
    dataset: RetrievalDataset,
    split: str,
    annotations: Mapping[int, Annotation],
    candidates: Mapping[int, Sequence[int]],
    agreed: str,
    meta: dict[str, Any],
) -> dict[str, int]:
    """Write the data set to the directory `path`.

    Args:
        path: a new directory.
        dataset: data set with all its splits.
        split: name of the annotated split, which may be new.
        annotations, candidates: by the position of the query.
        agreed: `human` or `llm`.
        meta: meta of the manifest; the returned counts are added to it.

    Returns:
        Counts: positives of the model; those that people also judged relevant; those left out because people judged
        them 0; copied hard negatives.

    Raises:
        StorageError: `path` exists already, or cannot be written.
    """
    rows = dataset.judgements.get(split)
    merged, counts = merge_positives(rows, annotations, agreed)
    with committed_directory(path, meta) as temporary:
        documents, queries = dataset.documents, dataset.queries
        with open(temporary / "corpus.jsonl", "w", encoding="utf-8") as file:
            for name, title, text in zip(documents.ids, documents.titles, documents.texts, strict=True):
                _row(file, {"_id": name, "title": title, "text": text})
        with open(temporary / "queries.jsonl", "w", encoding="utf-8") as file:
            for name, text in zip(queries.ids, queries.texts, strict=True):
                _row(file, {"_id": name, "text": text})
        if dataset.answers is not None:
            with open(temporary / "answers.jsonl", "w", encoding="utf-8") as file:
                for query in np.unique(dataset.answers.queries).tolist():
                    _row(file, {"_id": queries.ids[query], "answers": dataset.answers.of(query)})
        (temporary / "qrels").mkdir()
        for name, table in {**dataset.judgements, split: merged}.items():
            _write_judgements(temporary / "qrels", name, table, dataset)
        with open(temporary / ANNOTATIONS, "w", encoding="utf-8") as file:
            for query, annotation in annotations.items():
                _row(file, _annotation_row(dataset, query, annotation, candidates[query]))
        counts["negatives"] = _write_negatives(temporary / NEGATIVES, dataset)
        meta |= counts
    return counts


def merge_positives(
    rows: Judgements | None, annotations: Mapping[int, Annotation], agreed: str
) -> tuple[Judgements, dict[str, int]]:
    """Merge the judgements of a split with the positives of the model. Return also the counts of `write_annotated`."""
    table: dict[tuple[int, int], list[int]] = {}
    if rows is not None:
        columns = (rows.queries, rows.documents, rows.scores, rows.sources, rows.ranks)
        for query, document, score, source, rank in zip(*(column.tolist() for column in columns), strict=True):
            table[query, document] = [score, source, rank]
    both = judged_irrelevant = positives = 0
    for query, annotation in annotations.items():
        for rank, document in enumerate(annotation.useful):
            row = table.get((query, document))
            if row is None:
                table[query, document] = [1, _LLM, rank]
            elif row[0] <= 0:
                judged_irrelevant += 1
                continue
            else:
                both += 1
                if agreed == "llm":
                    row[1:] = [_LLM, rank]
            positives += 1
    pairs = sorted(table)
    values = np.array([[*pair, *table[pair]] for pair in pairs], dtype=np.int64).reshape(-1, 5)
    counts = {"positives": positives, "agreed": both, "judged_irrelevant": judged_irrelevant}
    return Judgements(*np.ascontiguousarray(values.T)), counts


def _write_judgements(folder: Path, split: str, rows: Judgements, dataset: RetrievalDataset) -> None:
    """Write judgements as TSV in BEIR layout, or as JSON lines if an id contains tabs or line breaks."""
    header = ["query-id", "corpus-id", "score", "source", "rank"]
    columns = (rows.queries, rows.documents, rows.scores, rows.sources, rows.ranks)
    lines = [
        [dataset.queries.ids[query], dataset.documents.ids[document], score, SOURCES[source], rank]
        for query, document, score, source, rank in zip(*(column.tolist() for column in columns), strict=True)
    ]
    if (lost := dataset.absent.get(split)) is not None:
        for query, document, score in zip(lost.queries.tolist(), lost.documents, lost.scores.tolist(), strict=True):
            lines.append([dataset.queries.ids[query], document, score, SOURCES[0], 0])
    if any(_BREAKS.search(line[0]) or _BREAKS.search(line[1]) for line in lines):
        with open(folder / f"{split}.jsonl", "w", encoding="utf-8") as file:
            for line in lines:
                _row(file, dict(zip(header, line, strict=True)))
        return
    with open(folder / f"{split}.tsv", "w", encoding="utf-8") as file:
        for line in [header, *lines]:
            file.write("\t".join(map(str, line)) + "\n")


def _write_negatives(path: Path, dataset: RetrievalDataset) -> int:
    """Write a table of the hard negatives that have no judgement, if there are any. Return their number."""
    rows = dataset.negatives
    if rows is None:
        return 0
    size = len(dataset.documents)
    judged = [each.queries * size + each.documents for each in dataset.judgements.values()]
    keep = (
        ~np.isin(rows.queries * size + rows.documents, np.concatenate(judged))
        if judged
        else np.ones(len(rows.queries), bool)
    )
    if not keep.any():
        return 0
    columns = (column[keep] for column in (rows.queries, rows.documents, rows.origins, rows.ranks, rows.scores))
    table = NegativesTable.of(dataset, *columns)
    write_negatives(path, table, dataset, {"kind": "negatives"})
    return len(table)


def _annotation_row(
    dataset: RetrievalDataset, query: int, annotation: Annotation, candidates: Sequence[int]
) -> dict[str, Any]:
    ids = dataset.documents.ids
    row: dict[str, Any] = {"query": dataset.queries.ids[query], "candidates": [ids[each] for each in candidates]}
    if annotation.failed:
        return {**row, "failed": annotation.failed}
    relevant, useful = ([ids[each] for each in positions] for positions in (annotation.relevant, annotation.useful))
    return {**row, "relevant": relevant, "answer": annotation.answer, "useful": useful}


def _row(file: TextIO, row: Mapping[str, Any]) -> None:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")
