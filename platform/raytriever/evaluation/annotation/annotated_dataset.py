"""Annotations as a data set in BEIR layout (docs/reference/formats.md), which every job can read.

The corpus, the queries, their answers, the judgements of all splits and the queries without an answer are copied from
the data set. The annotated split also has the positives of the model with source `llm` and their ranks. A pair that
both people and the model judged relevant has one row, with the source that `agreed` names. A pair that people judged 0
stays 0. `annotations.jsonl` contains the answers of the model for each query, and no job reads it. Hard negatives of
the data set that have no judgement are written as a table in `negatives/`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raytriever.core.store.commit import committed_directory
from raytriever.data.dataset import AbsentDocuments, Judgements, RetrievalDataset
from raytriever.data.formats.beir import QRELS_HEADER, UNANSWERABLE, UNANSWERABLE_HEADER
from raytriever.data.hard_negatives import NegativesTable, write_negatives
from raytriever.data.records_and_bad_rows import SOURCES
from raytriever.evaluation.annotation.annotator import Annotation

_HUMAN, _LLM = (SOURCES.index(name) for name in ("human", "llm"))
JUDGEMENT_COLUMNS = ("source", "rank")
ANNOTATIONS, NEGATIVES = "annotations.jsonl", "negatives"
# Tabs and line breaks break a column. So does white space at an end of the text, because programs may strip it.
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
    """Write the data set to the new directory `path`, with all its splits and the annotated split, which may be new.

    The keys of annotations and candidates are positions of queries. `agreed` is `human` or `llm`. Return four counts,
    and add them to `meta`: positives of the model, those that people also judged relevant, those left out
    because people judged them 0, and copied hard negatives."""
    rows = dataset.judgements.get(split)
    merged, counts = merge_positives(rows, annotations, agreed)
    with committed_directory(path, meta) as temporary:
        documents, queries = dataset.documents, dataset.queries
        passages = zip(documents.ids, documents.titles, documents.texts, strict=True)
        lines = {
            name: judgement_lines(dataset, table, dataset.absent.get(name))
            for name, table in {**dataset.judgements, split: merged}.items()
        }
        write_beir(
            temporary,
            ({"_id": name, "title": title, "text": text} for name, title, text in passages),
            ({"_id": name, "text": text} for name, text in zip(queries.ids, queries.texts, strict=True)),
            {name: rows for name, rows in lines.items() if rows or name not in dataset.unanswerable},
            JUDGEMENT_COLUMNS,
            {name: [queries.ids[query] for query in rows.tolist()] for name, rows in dataset.unanswerable.items()},
        )
        if (answers := dataset.answers) is not None:
            answered = np.unique(answers.queries).tolist()
            rows_of_answers = ({"_id": queries.ids[query], "answers": answers.of(query)} for query in answered)
            _write_rows(temporary / "answers.jsonl", rows_of_answers)
        replies = (
            _annotation_row(dataset, query, annotation, candidates[query]) for query, annotation in annotations.items()
        )
        _write_rows(temporary / ANNOTATIONS, replies)
        counts["negatives"] = _write_negatives(temporary / NEGATIVES, dataset)
        meta |= counts
    return counts


def merge_positives(
    rows: Judgements | None, annotations: Mapping[int, Annotation], agreed: str
) -> tuple[Judgements, dict[str, int]]:
    """Merge the judgements of a split with the positives of the model. Also return the counts of `write_annotated`."""
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


def write_beir(
    folder: Path,
    documents: Iterable[Mapping[str, str]],
    queries: Iterable[Mapping[str, str]],
    judgements: Mapping[str, Sequence[Sequence[object]]],
    columns: Sequence[str] = (),
    unanswerable: Mapping[str, Iterable[str]] | None = None,
) -> None:
    """Write a data set in BEIR layout.

    For each split, `columns` has additional columns of the judgements; `unanswerable` has queries without an answer."""
    _write_rows(folder / "corpus.jsonl", documents)
    _write_rows(folder / "queries.jsonl", queries)
    (folder / "qrels").mkdir()
    for split, lines in judgements.items():
        _write_table(folder / "qrels", split, [*QRELS_HEADER, *columns], lines)
    if unanswerable:
        (folder / UNANSWERABLE).mkdir()
    for split, names in (unanswerable or {}).items():
        _write_table(folder / UNANSWERABLE, split, UNANSWERABLE_HEADER, [[name] for name in names])


def judgement_lines(dataset: RetrievalDataset, rows: Judgements, lost: AbsentDocuments | None) -> list[list[object]]:
    """Return judgements as rows with `JUDGEMENT_COLUMNS`; those of documents that the corpus lacks come last."""
    columns = (rows.queries, rows.documents, rows.scores, rows.sources, rows.ranks)
    lines: list[list[object]] = [
        [dataset.queries.ids[query], dataset.documents.ids[document], score, SOURCES[source], rank]
        for query, document, score, source, rank in zip(*(column.tolist() for column in columns), strict=True)
    ]
    if lost is not None:
        for query, name, score in zip(lost.queries.tolist(), lost.documents, lost.scores.tolist(), strict=True):
            lines.append([dataset.queries.ids[query], name, score, SOURCES[0], 0])
    return lines


def _write_table(folder: Path, split: str, header: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    if any(isinstance(value, str) and _BREAKS.search(value) for line in lines for value in line):
        _write_rows(folder / f"{split}.jsonl", (dict(zip(header, line, strict=True)) for line in lines))
        return
    with open(folder / f"{split}.tsv", "w", encoding="utf-8") as file:
        for line in [header, *lines]:
            file.write("\t".join(map(str, line)) + "\n")


def _write_negatives(path: Path, dataset: RetrievalDataset) -> int:
    rows = dataset.negatives
    if rows is None:
        return 0
    size = len(dataset.documents)
    judged = [
        np.zeros(0, np.int64),
        *(judgements.queries * size + judgements.documents for judgements in dataset.judgements.values()),
    ]
    keep = ~np.isin(rows.queries * size + rows.documents, np.concatenate(judged))
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
    row: dict[str, Any] = {
        "query": dataset.queries.ids[query],
        "candidates": [ids[candidate] for candidate in candidates],
    }
    if annotation.failed:
        return {**row, "failed": annotation.failed}
    relevant, useful = (
        [ids[position] for position in positions] for positions in (annotation.relevant, annotation.useful)
    )
    return {**row, "relevant": relevant, "answer": annotation.answer, "useful": useful}


def _write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
