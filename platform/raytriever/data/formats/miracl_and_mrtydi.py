"""Parser of topics next to a corpus of JSON lines: MIRACL (Zhang et al. 2023, arXiv:2210.09984) and Mr. TyDi (Zhang et
al. 2021, arXiv:2108.08787).

1. Topics, `topics/topics.miracl-v1.0-sw-dev.tsv` or `topic.dev.tsv`: id and text of a query, without a header.
2. Judgements, `qrels/qrels.miracl-v1.0-sw-dev.tsv` or `qrels.dev.txt`: query id, `Q0`, document id and grade.
3. Corpus, `docs-0.jsonl.gz` of `{"docid", "title", "text"}`, or `collection/docs.jsonl.gz` of `{"id", "contents"}`,
   where a blank line ends the title.

The file name ends in the split. Files of all splits together, such as `topic.tsv`, are read if there are no others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from raytriever.core.errors import DataError
from raytriever.data.data_sources import Source, SourceFile
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.formats import plan
from raytriever.data.formats.beir import qrels_columns
from raytriever.data.formats.file_rows import numbered_rows
from raytriever.data.records_and_bad_rows import BadRow, Document, Query, Records

NAME = "trec"
SIGNATURE = "trec: topics (topic.dev.tsv), judgements (qrels.dev.txt) and docs.jsonl.gz, as of MIRACL and Mr. TyDi"
_SPLIT = r"(?:[-.](?P<split>train|dev|test(?:-[ab])?))?"
_TOPICS = re.compile(rf"(?:.*/)?topics?(?P<set>[.-][^/]+?)??{_SPLIT}\.tsv(?:\.gz)?")
_QRELS = re.compile(rf"(?:.*/)?qrels(?P<set>[.-][^/]+?)??{_SPLIT}\.(?:tsv|txt)(?:\.gz)?")
_CORPUS = re.compile(r"(?:.*/)?(?:docs(?:-\d+)?|corpus)\.jsonl(?:\.gz)?")


def is_whole(source: Source) -> bool:
    """Return True if the source has topics, judgements and a corpus."""
    return all(plan.has_file(source, pattern) for pattern in (_TOPICS, _QRELS, _CORPUS))


def is_begun(source: Source) -> bool:
    """Return True if the source has topics, and judgements or a corpus."""
    return plan.has_file(source, _TOPICS) and (plan.has_file(source, _QRELS) or plan.has_file(source, _CORPUS))


def plan_folder(source: Source) -> plan.Plan:
    """Return the plan of a folder with topics. Raise `DataError` if it has no corpus, no judgements, or several data
    sets."""
    topics, qrels = _by_split(source, _TOPICS), _by_split(source, _QRELS)
    if not qrels:
        what = f"no judgements in it; it holds {plan.shown(source)}"
        raise DataError(what, source.where, "add qrels/qrels.NAME-dev.tsv or qrels.dev.txt")
    corpus = _corpus(source)
    parts = [plan.Part(file.where, "tsv", topic_columns) for file, _ in topics]
    parts += [plan.Part(file.where, "tsv", qrels_columns, split=split) for file, split in qrels]
    return plan.Plan(NAME, (*corpus, *parts))


def _corpus(source: Source) -> list[plan.Part]:
    files = plan.files_of(source, _CORPUS)
    if not files:
        what = f"no corpus in it; it holds {plan.shown(source)}"
        raise DataError(what, source.where, "add docs-0.jsonl.gz or corpus.jsonl (docid, title, text)")
    return [plan.Part.of(file, pyserini_row) for file in files]


def _by_split(source: Source, pattern: re.Pattern[str]) -> list[tuple[SourceFile, str]]:
    """Return the files that name a split, with it; if there are none, return the others as `train`."""
    matches = [(file, match) for file in plan.files_of(source, pattern) if (match := pattern.fullmatch(file.path))]
    names = sorted({_set_of(match) for _, match in matches})
    if len(names) > 1:
        what = f"holds several data sets: {', '.join(names[:8])}"
        raise DataError(what, source.where, "give a folder with one of them")
    named = [(file, match["split"]) for file, match in matches if match["split"]]
    return named or [(file, "train") for file, _ in matches]


def _set_of(match: re.Match[str]) -> str:
    """Return the data set of a file: its folder and its name without the kind and the split."""
    folders = [part for part in match[0].split("/")[:-1] if part not in ("topics", "qrels")]
    return "/".join([*folders, (match["set"] or "").strip(".-")]).rstrip("/")


def topic_columns(row: Sequence[str], records: Records, _: str) -> None:
    """Id and text of a query."""
    if len(row) < 2:
        raise BadRow("one column, not id and text separated by a tab")
    texts = {"id": row[0].strip(), "text": " ".join(row[1:])}
    records.queries.append(Query(plan.id_field(texts, "id"), plan.string_field(texts, "text")))


def pyserini_row(row: Mapping[str, Any], records: Records, _: str) -> None:
    """Row `{"docid", "title", "text"}`, or `{"id", "contents"}` with the title before a blank line."""
    name = plan.id_field(row, next((key for key in ("docid", "_id", "id") if key in row), "docid"))
    if "contents" not in row:
        records.documents.append(Document(name, *plan.passage_of(row)))
        return
    title, _, text = plan.string_field(row, "contents").partition("\n\n")
    if not text.strip() or "\n" in title.strip():
        title, text = "", row["contents"]
    records.documents.append(Document(name, plan.encodable(title.strip(), "title"), text.strip()))


_FORM = "a line is `query Q0 document rank score tag`"


def read_run(
    where: str, dataset: RetrievalDataset, queries: Sequence[int], depth: int
) -> Int64[ndarray, "queries depth"]:
    """Return the `depth` best documents of each query in a path or URI; see `read_scored_run`."""
    documents = read_scored_run(where, dataset, queries)[1][:, :depth]
    return np.pad(documents, ((0, 0), (0, depth - documents.shape[1])), constant_values=-1)


def read_scored_run(
    where: str, dataset: RetrievalDataset, queries: Sequence[int]
) -> tuple[Float64[ndarray, "queries ranked"], Int64[ndarray, "queries ranked"]]:
    """Return scores and documents of each query from a path or URI, -inf and -1 in empty slots. Other queries are
    skipped.

    As in trec_eval, scores order the documents and written ranks are ignored. Of equal scores, the larger document id
    comes first. Percent-encoded ids are decoded, because white space must be encoded.

    Raises:
        DataError: the file cannot be read, a line has another form, a document is unknown, or the file ranks none of
            the queries.
    """
    row_of = {dataset.queries.ids[query]: row for row, query in enumerate(queries)}
    documents = {name: position for position, name in enumerate(dataset.documents.ids)}
    rankings: list[list[tuple[float, str, int]]] = [[] for _ in queries]
    for line, query, document, score in run_lines(where):
        row = row_of.get(query, row_of.get(unquote(query)))
        if row is None:
            continue
        position = documents.get(document, documents.get(unquote(document)))
        if position is None:
            raise DataError(f"unknown document id {document[:60]!r}", line, f"is it a run over {dataset.name}?")
        rankings[row].append((score, dataset.documents.ids[position], position))
    if not any(rankings):
        raise DataError(f"ranks none of the {len(queries):,} queries", where, f"is it a run over {dataset.name}?")
    best = []
    for ranked in rankings:
        scores: dict[int, float] = {}  # a repeated document keeps its highest score
        for score, _, position in sorted(ranked, reverse=True):
            scores.setdefault(position, score)
        best.append(scores)
    table = np.full((len(queries), max(map(len, best))), -1, dtype=np.int64)
    values = np.full(table.shape, -np.inf)
    for row, scores in enumerate(best):
        table[row, : len(scores)], values[row, : len(scores)] = list(scores), list(scores.values())
    return values, table


def run_lines(where: str) -> Iterator[tuple[str, str, str, float]]:
    """Yield, for each line of a run that is not blank, its place, query, document and score. Raise `DataError` if the
    file cannot be read, or if a line has another form."""
    for number, line in numbered_rows(where):
        place = f"{where}:{number}"
        try:
            query, _, document, _, score, _ = line.decode().split()
            value = float(score)
        except ValueError as error:  # UnicodeDecodeError is one
            raise DataError("is no line of a run", place, _FORM) from error
        if not math.isfinite(value):
            raise DataError(f"score {score!r} is no finite number", place, _FORM)
        yield place, query, document, value
