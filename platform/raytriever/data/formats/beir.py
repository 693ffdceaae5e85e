"""Parser of the BEIR layout: corpus, queries, and judgements by split (Thakur et al. 2021, arXiv:2104.08663).

docs/reference/formats.md describes three forms of the files: written by hand, on the hub, and saved by `datasets`.
A pair with grade 0 is also a hard negative of origin `gold`.

Data sets of `ir_datasets` (MacAvaney et al. 2021, arXiv:2103.02280) are read by their names there, such as
`ir_datasets:beir/scifact`. Judgements are read from this name and from each split directly below it, such as
`beir/scifact/train`. If a name contains no split, its judgements are `test`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from raytriever.core.errors import DataError, setting
from raytriever.core.unknown_names import did_you_mean
from raytriever.data.data_sources import IR_DATASETS, Source, SourceFile
from raytriever.data.formats import plan
from raytriever.data.formats.csv_and_tsv import TableFile
from raytriever.data.formats.file_rows import first_row, pieces_of, wrong_header
from raytriever.data.records_and_bad_rows import (
    NO_ANSWER,
    SOURCES,
    BadRow,
    Document,
    Judgement,
    Negative,
    Query,
    Records,
)

NAME = "beir"
SIGNATURE = "beir: corpus.jsonl, queries.jsonl and qrels/<split>.tsv"
QRELS_HEADER = ["query-id", "corpus-id", "score"]
UNANSWERABLE, UNANSWERABLE_HEADER = "unanswerable", ["query-id"]
_OPTIONAL = ("source", "rank")
_HEADERS = [(*QRELS_HEADER, *more) for more in ((), _OPTIONAL, _OPTIONAL[:1], _OPTIONAL[1:])]
_INTEGER = re.compile(r"-?[0-9]{1,9}")
_TREC = re.compile(r"\s*\S+\s+\S+\s+\S+\s+-?[0-9]{1,9}\s*")
_TEXTS = r"(?:{0}\.jsonl(?:\.gz)?|{0}/[^/]+\.(?:jsonl(?:\.gz)?|parquet|arrow)|(?:data/)?{0}(?:-\d+-of-\d+)?\.parquet)"
_CORPUS, _QUERIES = (re.compile(_TEXTS.format(stem)) for stem in ("corpus", "queries"))
_ANSWERS = re.compile(r"answers\.jsonl(?:\.gz)?")
_QRELS = re.compile(
    r"qrels/(?!readme)[^/]+\.(?:tsv|txt|csv|jsonl)(?:\.gz)?|(?:qrels|default|data)/[^/]+\.parquet", re.IGNORECASE
)
_UNANSWERABLE = re.compile(rf"{UNANSWERABLE}/[^/]+\.(?:(?:tsv|jsonl)(?:\.gz)?|parquet)")
_SAVED = re.compile(r"(?!(?:corpus|queries)/)([^/]+)/data-\d{5}-of-\d{5}\.arrow")  # file of a saved `DatasetDict`


def is_whole(source: Source) -> bool:
    """Return True if the source has all three: corpus, queries and judgements."""
    return all(plan.has_file(source, pattern) for pattern in (_CORPUS, _QUERIES)) and any(map(_is_judged, source.files))


def is_begun(source: Source) -> bool:
    """Return True if the source has at least one of corpus, queries and judgements."""
    return any(plan.has_file(source, pattern) for pattern in (_CORPUS, _QUERIES, _QRELS))


def plan_folder(source: Source) -> plan.Plan:
    """Return the plan of a BEIR folder. It may have only a corpus. Raise `DataError` if there is no corpus, or if there
    are judgements without queries."""
    documents = _texts(source, "corpus", _CORPUS)
    judged = plan.plain_before_packed(file for file in source.files if _is_judged(file))
    has_queries = bool(judged) or plan.has_file(source, _QUERIES)
    queries = _texts(source, "queries", _QUERIES) if has_queries else []
    used = {file.path for file in (*documents, *queries)}
    parts = [plan.Part.of(file, document_row) for file in documents] + [
        plan.Part.of(file, query_row) for file in queries
    ]
    parts += [plan.Part.of(file, answers_row) for file in plan.files_of(source, _ANSWERS)]
    qrels = [_judged_part(file) for file in judged if file.path not in used]
    return plan.Plan(NAME, (*parts, *qrels), has_queries)


def _texts(source: Source, stem: str, pattern: re.Pattern[str]) -> list[SourceFile]:
    files = plan.files_of(source, pattern)
    if not files:
        remedy = "give a folder in BEIR layout (corpus.jsonl, queries.jsonl, qrels/<split>.tsv)"
        what = f"has no {stem}.jsonl or {stem}.jsonl.gz; it contains {plan.shown(source)}"
        raise DataError(what, source.where, remedy)
    return files


def _is_judged(file: SourceFile) -> bool:
    return any(pattern.fullmatch(file.path) for pattern in (_QRELS, _SAVED, _UNANSWERABLE))


def _judged_part(file: SourceFile) -> plan.Part:
    path = re.sub(r"\.txt(?=(?:\.gz)?$)", ".tsv", file.path, flags=re.IGNORECASE)
    kind, saved = plan.kind_of(path), _SAVED.fullmatch(path)
    split = plan.canonical_split(saved[1] if saved else plan.stem_of(path).rsplit("/", 1)[-1])
    has_no_answers = _UNANSWERABLE.fullmatch(path)
    if kind == "table":
        columns = TableFile.open(file.where).columns
        if set(QRELS_HEADER) - set(columns):
            raise wrong_header(file.where, repr(",".join(columns))[:80], QRELS_HEADER, ",")
        return plan.Part(file.where, kind, judgement_row, columns, split)
    if kind != "tsv":
        return plan.Part.of(file, unanswerable_row if has_no_answers else judgement_row, split)
    if has_no_answers:
        return plan.Part(file.where, kind, unanswerable_columns, tuple(UNANSWERABLE_HEADER), split)
    first = first_row(file.where).decode(errors="replace")
    if _TREC.fullmatch(first):
        return plan.Part(file.where, kind, qrels_columns, split=split)
    header = tuple(first.split("\t"))
    header = header if header in _HEADERS else _HEADERS[0]  # errors then give this header as expected
    return plan.Part(file.where, kind, partial(judgement_columns, header), header, split)


def document_row(row: Mapping[str, Any], records: Records, _: str) -> None:
    """Parse a row `{"_id", "title", "text"}` (or `id`). Title or text may be empty; the title may be missing."""
    name = _id_of(row)
    records.documents.append(Document(name, *plan.passage_of(row)))


def query_row(row: Mapping[str, Any], records: Records, _: str) -> None:
    """Parse a row `{"_id", "text"}`; `_id` may be called `id`, and `answers` is optional."""
    name, answers = _id_of(row), plan.answers_in(row)
    records.queries.append(Query(name, plan.string_field(row, "text")))
    records.answers += [(name, answer) for answer in answers]


def _id_of(row: Mapping[str, Any]) -> str:
    return plan.id_field(row, "_id" if "_id" in row or "id" not in row else "id")


def answers_row(row: Mapping[str, Any], records: Records, _: str) -> None:
    """Parse a row `{"_id", "answers"}`: answers of a query that is in another file."""
    name, answers = plan.id_field(row, "_id"), plan.answers_in(row)
    records.answers += [(name, answer) for answer in answers]


def judgement_columns(header: Sequence[str], row: Sequence[str], records: Records, split: str) -> None:
    """Parse the columns of a tab-separated row, in the order of the header; see `judgement_row`."""
    if len(row) != len(header):
        raise BadRow(f"{len(row)} columns, not {len(header)} separated by tabs")
    fields: dict[str, Any] = dict(zip(header, row, strict=True))
    if _INTEGER.fullmatch(fields["score"]):
        fields["score"] = int(fields["score"])
    judgement_row(fields, records, split)


def judgement_row(row: Mapping[str, Any], records: Records, split: str) -> None:
    """Parse a row `{"query-id", "corpus-id", "score"}`; `source` and `rank` are optional."""
    query, document = plan.id_field(row, "query-id"), plan.id_field(row, "corpus-id")
    if "score" not in row:
        raise BadRow(f'no field "score"; the fields are {", ".join(row)}')
    score = row["score"]
    if isinstance(score, float) and score.is_integer():
        score = int(score)  # some Parquet files on the hub store whole numbers as floats
    if type(score) is not int or not _INTEGER.fullmatch(str(score)):
        raise BadRow(f"score {str(score)[:20]!r} is not an integer")
    more = {name: str(row[name]) for name in _OPTIONAL if row.get(name) is not None}
    add_judged(records, split, query, document, score, **_optional(more))


def qrels_columns(row: Sequence[str], records: Records, split: str) -> None:
    """Parse a row of TREC qrels: query id, an ignored word, document id and grade, separated by white space."""
    columns = " ".join(row).split()
    if len(columns) != 4:
        raise BadRow(f"{len(columns)} columns, not 4: query id, Q0, document id, grade")
    query, _, document, grade = columns
    if not _INTEGER.fullmatch(grade):
        raise BadRow(f"grade {grade[:20]!r} is not an integer")
    add_judged(records, split, query, document, int(grade))


def unanswerable_columns(row: Sequence[str], records: Records, split: str) -> None:
    """Parse a row of one column: the id of a query that no document answers."""
    if len(row) != 1:
        raise BadRow(f"{len(row)} columns, not 1")
    unanswerable_row({"query-id": row[0]}, records, split)


def unanswerable_row(row: Mapping[str, Any], records: Records, split: str) -> None:
    """Parse a row `{"query-id"}` of a query that no document answers."""
    records.judgements.append(Judgement(split, plan.id_field(row, "query-id"), NO_ANSWER, 1))


def add_judged(
    records: Records, split: str, query: str, document: str, score: int, source: str = SOURCES[0], rank: int = 0
) -> None:
    """Add a judged pair. A pair with grade 0 is also added as a hard negative."""
    records.judgements.append(Judgement(split, query, document, score, source, rank))
    if score == 0:
        records.negatives.append(Negative(query, document, "gold"))


def _optional(more: Mapping[str, str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if "source" in more:
        if more["source"] not in SOURCES:
            raise BadRow(f"source {more['source'][:20]!r} is not one of {', '.join(SOURCES)}")
        fields["source"] = more["source"]
    if "rank" in more:
        if not _INTEGER.fullmatch(more["rank"]) or int(more["rank"]) < 0:
            raise BadRow(f"rank {more['rank'][:20]!r} is not a whole number of at least 0")
        fields["rank"] = int(more["rank"])
    return fields


_IR_DOCS, _IR_QUERIES, _IR_QRELS = "docs", "queries", "qrels"


def plan_ir(source: Source) -> plan.Plan:
    """Return the plan for a name of `ir_datasets`. Raise `DataError` if the package is missing, if it does not know the
    name, or if that data set has no texts or no judgements."""
    name = source.where.removeprefix(IR_DATASETS)
    registry = _package().registry
    _load(name)
    below = [other for other in registry if other.startswith(name + "/") and "/" not in other[len(name) + 1 :]]
    judged = [name, *sorted(other for other in below if plan.split_if_named(other[len(name) :]))]
    judged = [other for other in judged if _load(other).has_qrels()]
    query_parts = [name] if _load(name).has_queries() else judged
    if not _load(name).has_docs() or not query_parts or not judged:
        lacks = "documents" if not _load(name).has_docs() else "judgements of a split"
        remedy = f"choose a name below it: {', '.join(below[:8])}" if below else "choose another name"
        raise DataError(f"has no {lacks}", source.where, remedy)
    parts = [
        _ir_part(name, _IR_DOCS, document_row),
        *(_ir_part(other, _IR_QUERIES, query_row) for other in query_parts),
    ]
    parts += [_ir_part(other, _IR_QRELS, judgement_row, plan.split_if_named(other) or "test") for other in judged]
    return plan.Plan("ir_datasets", tuple(parts))


def _ir_part(name: str, what: str, parse: plan.RowParser, split: str | None = None) -> plan.Part:
    return plan.Part(f"{IR_DATASETS}{name}#{what}", "ir", parse, split=split)


def read_ir_rows(where: str, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of JSON lines (see `pieces_of`). Raise `DataError` if `ir_datasets` is missing, or if it cannot read
    or download the data."""
    return pieces_of(enumerate(_json_lines(where), 1), size, where, "choose another name")


def _json_lines(where: str) -> Iterator[bytes]:
    name, _, what = where.removeprefix(IR_DATASETS).partition("#")
    records, row_of = _ROWS[what]
    count = 0
    try:
        for record in getattr(_load(name), records)():
            yield json.dumps(row_of(record), ensure_ascii=False).encode(errors="surrogatepass")
            count += 1
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        message = " ".join(str(error).split())[:200]
        what = f"cannot be read after row {count} ({type(error).__name__}: {message})"
        raise DataError(what, where, "check the network, or put the files under IR_DATASETS_HOME") from error


def _document(record: Any) -> dict[str, Any]:
    if hasattr(record, "text"):
        return {"_id": record.doc_id, "title": getattr(record, "title", ""), "text": record.text}
    return {"_id": record.doc_id, "text": record.default_text()}


_ROWS: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    _IR_DOCS: ("docs_iter", _document),
    _IR_QUERIES: ("queries_iter", lambda record: {"_id": record.query_id, "text": record.default_text()}),
    _IR_QRELS: (
        "qrels_iter",
        lambda record: {"query-id": record.query_id, "corpus-id": record.doc_id, "score": record.relevance},
    ),
}


def _package() -> Any:
    try:
        import ir_datasets
    except ImportError as error:
        what = "the package ir_datasets is not installed"
        raise DataError(what, setting("dataset", f"{IR_DATASETS}..."), "pip install 'raytriever[sources]'") from error
    return ir_datasets


def _load(name: str) -> Any:
    package = _package()
    try:
        return package.load(name)
    except KeyError as error:
        hint = did_you_mean(name, list(package.registry))
        remedy = hint if hint.startswith("did") else "see ir-datasets.com for the names"
        raise DataError("ir_datasets has no such name", setting("dataset", f"{IR_DATASETS}{name}"), remedy) from error
