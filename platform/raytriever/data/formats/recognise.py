"""Recognition of the format of a data set, from the names of its files and the fields of their first rows.

1. Names identify a data set of `ir_datasets`, and a folder with a corpus, queries and judgements (BEIR, MIRACL,
   Mr. TyDi).
2. The first rows of any other file are read; CSV and TSV files only if there are no others. All files must have one
   format, and be in one folder except for splits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from raytriever.data.config import SplitConfig
from raytriever.data.formats import beir, tables, trec
from raytriever.data.formats.division import TEST, Division, test_file
from raytriever.data.formats.plan import (
    Kind,
    Part,
    Plan,
    RowParser,
    base_of,
    is_answerable,
    is_readable,
    kind_of,
    names_settings,
    plain_before_packed,
    shown,
    split_if_named,
    stem_of,
)
from raytriever.data.formats.row_formats import (
    PAIRS,
    ROW_FORMATS,
    SENTENCE_TRANSFORMERS,
    anchor_of,
    corpus_row,
    scored_row,
    tevatron_ids_row,
)
from raytriever.data.formats.rows import BYTE_ORDER_MARK, column_names, numbered_rows, object_of, read_elements
from raytriever.data.formats.unread import array_error, collection_error, json_error
from raytriever.data.records import BadRow, Records
from raytriever.data.sources import IR_DATASETS, Source, SourceFile, open_stream, reading
from raytriever.errors import ConfigError, DataError, setting
from raytriever.options import did_you_mean

_TABLE = re.compile(r"\.[ct]sv(?:\.gz)?$", re.IGNORECASE)
_DESCRIPTION = re.compile(r"\.json(?:\.gz)?$", re.IGNORECASE)
_QUESTIONS = ("query", "question")  # whose answers may have votes, which are no grades
_ROWS = 10
_BLOCK = 1 << 16
# Files that are called like judgements, with any ending but that of notes.
_JUDGEMENTS = re.compile(r"(?:^|[/._-])qrels?(?:[/._-](?!.*(?:readme|\.md$))|$)", re.IGNORECASE)


# Formats that the names of the files identify, in the order in which they are tried, each with its check and its plan.
_BY_NAMES = {
    beir.NAME: (beir.is_whole, beir.plan),
    trec.NAME: (trec.is_whole, trec.plan),
}
FORMATS = (*_BY_NAMES, *ROW_FORMATS, "ir_datasets")
_SIGNATURES = "; ".join(
    [
        *(beir.SIGNATURE, trec.SIGNATURE),
        *(format.signature for format in ROW_FORMATS.values()),
        tables.SIGNATURE,
    ]
)


class Peek(NamedTuple):
    """Kind of a file, and the fields of its first row that is an object; empty if none of ten rows is one."""

    kind: Kind
    fields: frozenset[str]


Peeks = list[tuple[SourceFile, Peek]]


def recognise(source: Source, format: str | None = None, columns: str = "", config: SplitConfig | None = None) -> Plan:
    """Return the plan for reading a data set.

    `format` is one of `FORMATS`, or None to recognise it; with a format, files of other formats are skipped. `columns`
    names columns of CSV and TSV files, such as `query=Frage,passage=Antwort`; the others are recognised. `config`
    divides a single file of queries and passages; the source also has its file of test questions.

    Raises:
        DataError: the files have no known format, or several, or are broken; or the format is unknown; or a column
            is missing; or a file cannot be divided.
        ConfigError: `config` has no effect.
    """
    plan = _with_unread(source, _recognise(source, format, columns, config or SplitConfig()))
    if config not in (None, SplitConfig()) and not plan.division:
        flags = [setting(name, value) for name, value in vars(config).items() if value != getattr(SplitConfig(), name)]
        what = "has no effect: its files, or a column, name the splits"
        raise ConfigError(what, ", ".join(flags), "leave it out, or give one CSV, TSV or JSONL file without splits")
    return plan


def _with_unread(source: Source, plan: Plan) -> Plan:
    """Return the plan with a note on files that are called like judgements and are not read."""
    read = {part.where for part in plan.parts}
    unread = [
        file.path
        for file in plain_before_packed(source.files)
        if file.where not in read and _JUDGEMENTS.search(file.path) and not names_settings(file.path)
    ]
    if not unread or plan.format == trec.NAME:  # which reads those of single splits, or of all
        return plan
    what = f"not read: {', '.join(unread[:8])}; judgements are read from qrels/<split>.tsv, such as qrels/test.tsv"
    return replace(plan, note="; ".join(filter(None, [plan.note, what])))


def _recognise(source: Source, format: str | None, columns: str, config: SplitConfig) -> Plan:
    if format is not None and format not in FORMATS:
        raise DataError(f"unknown format {format!r}", None, did_you_mean(format, FORMATS))
    if source.where.startswith(IR_DATASETS):
        return beir.plan_ir(source)
    for name, (is_whole, plan) in _BY_NAMES.items():
        if format == name or (format is None and is_whole(source)):
            return plan(source)
    begun = next((module for module in (trec, beir) if module.is_begun(source)), None)
    peeks = _look_into(source)
    table_files = [file for file in plain_before_packed(source.files) if _TABLE.search(file.path)]
    if table_files and not peeks and not columns and (error := collection_error(source.where, table_files)):
        raise error
    if table_files and not peeks and (columns or begun is None):
        return tables.plan(source, table_files, columns, config)
    if columns:
        raise DataError("has no effect: there is no CSV or TSV file to read", setting("columns"), "leave it out")
    names = (format,) if format else tuple(ROW_FORMATS)
    matching = {name: [one for one in peeks if _format_of(one[1].fields) == name] for name in names}
    candidates = {name: matched for name, matched in matching.items() if matched}
    if begun is not None and format is None and not (_has_queries(candidates) if begun is trec else candidates):
        return begun.plan(source)
    if not candidates:
        if error := json_error(source.files):
            raise error
        what = f"not in the format {format}" if format else "in no known format"
        contents = _describe(peeks) or shown(source)
        raise DataError(f"{what}; it holds {contents}", source.where, f"known formats are {_SIGNATURES}")
    name, matched = next(iter(candidates.items()))
    strange = [] if format else [one for one in peeks if one not in matched]
    if len(candidates) > 1 or strange:
        what = f"not in one format; it holds {_describe(peeks)}"
        raise DataError(what, source.where, "give one of the files, or name the format")
    return _plan(source, name, matched, config)


def _has_queries(candidates: Mapping[str, Peeks]) -> bool:
    return any(
        ROW_FORMATS[name].parser(one.fields) is not corpus_row for name, peeks in candidates.items() for _, one in peeks
    )


def _look_into(source: Source) -> Peeks:
    """Return the files that may hold rows; of the shards of one file only the first is opened."""
    peeked: dict[str, Peek] = {}
    peeks = []
    for file in plain_before_packed(filter(is_readable, source.files)):
        if _TABLE.search(file.path) or names_settings(file.path):
            continue
        group = stem_of(file.path)
        if group not in peeked:
            peeked[group] = peek(file)
        if peeked[group].fields or not _DESCRIPTION.search(file.path):
            peeks.append((file, peeked[group]))  # a .json without rows that are objects is a description
    return peeks


def peek(file: SourceFile) -> Peek:
    """Read the first rows of a file; raises `DataError` if it is empty or broken as a whole."""
    if not file.size:
        raise DataError("no row in it, the file is empty", file.where, "write it again, or remove it")
    kind = kind_of(file.path)
    if kind in ("parquet", "arrow"):
        return Peek(kind, frozenset(column_names(file.where)))
    if kind == "array":
        with reading(file.where, [0]), closing(open_stream(file.where)) as stream:
            begin = stream.read(_BLOCK).removeprefix(BYTE_ORDER_MARK).lstrip()
        if begin.startswith(b"["):
            _, rows = next(read_elements(file.where, _BLOCK))
            return Peek(kind, _fields(rows.split(b"\n")[:_ROWS]))
        kind = "json"  # JSON lines are often published as .json
    numbered = numbered_rows(file.where)
    with closing(numbered):  # type: ignore[type-var]
        first = [row for _, row in islice(numbered, _ROWS)]
    if error := array_error(file.where, first[0] if first else b""):
        raise error
    return Peek(kind, _fields(first))


def _fields(rows: list[bytes]) -> frozenset[str]:
    for row in rows:
        with suppress(BadRow):
            return frozenset(object_of(row))
    return frozenset()


def _format_of(fields: frozenset[str]) -> str | None:
    return next((name for name, format in ROW_FORMATS.items() if format.parser(fields)), None)


def _plan(source: Source, name: str, matched: Peeks, config: SplitConfig) -> Plan:
    texts: list[Part] = []
    judged: list[Part] = []
    folders = set()
    rows_name_splits, divided, note = False, "", ""
    test = test_file(config)
    mains = [one for one in matched if test is None or one[0].where != test.where]
    for file, (kind, fields) in matched:
        named = split_if_named(file.path)
        split = named or "train"
        parse = ROW_FORMATS[name].parser(fields)
        assert parse is not None  # the file matches the format
        if parse is corpus_row:
            texts.append(Part(file.where, kind, parse))
            continue
        by_row = "split" in fields and (name == PAIRS or (name == SENTENCE_TRANSFORMERS and named is None))
        is_test = test is not None and file.where == test.where
        if is_test:
            by_row, split = False, TEST
        anchor = anchor_of(fields) if name == SENTENCE_TRANSFORMERS and kind == "json" else None
        if config != SplitConfig() and anchor and len(mains) == 1 and not (is_test or by_row):
            division, how = Division.of_file(config, file.where, partial(_questions, anchor))
            note, divided, rows_name_splits = f"{file.path}: {how}", repr(division), True
            folders.add(base_of(file.path))
            judged.append(Part(file.where, kind, partial(tables.divided_row, parse, anchor, division)))
            continue
        if (
            isinstance(parse, partial)
            and parse.func is scored_row
            and parse.args[0] in _QUESTIONS
            and parse.args[2] in tables.VOTES
        ):
            note = f"{file.path}: {parse.args[2]!r} is read as the grade of the passage: 0 makes it a negative"
        rows_name_splits |= by_row
        folders.add(base_of(file.path))
        if by_row:
            by_pair = name == PAIRS
            parse = partial(_in_split, parse, split) if by_pair else partial(tables.divided_row, parse, "", None)
        judged.append(Part(file.where, kind, parse, split=None if by_row else split))
    if len(folders) > 1:
        what = f"holds several data sets, in {', '.join(sorted(folder or '.' for folder in folders)[:8])}"
        raise DataError(what, source.where, "give one of these folders")
    if not judged or (not texts and any(part.parse is tevatron_ids_row for part in judged)):
        missing = "corpus of docid, text" if judged else "file of queries"
        raise DataError(f"no {missing} in it; it holds {shown(source)}", source.where, "give a folder with both")
    splits = tuple(dict.fromkeys(part.split for part in judged if part.split))
    return Plan(name, (*texts, *judged), None if rows_name_splits else splits, note=note, division=divided)


def _questions(anchor: str, where: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the rows of a JSONL file: number, query, and whether a document answers it."""
    for number, raw in numbered_rows(where):
        with suppress(BadRow):
            row = object_of(raw)
            if isinstance(row.get(anchor), str):
                yield number, row[anchor], is_answerable(row) is not False


def _in_split(parse: RowParser, split: str, row: Any, records: Records, _: str) -> None:
    parse(row, records, split)


def _describe(peeks: Peeks) -> str:
    """Return each file with its format, or with its fields if the format is unknown; a dozen at most."""
    formats = {}
    for file, (_, fields) in peeks:
        described = f"the fields {', '.join(sorted(fields)[:8])}" if fields else "no objects"
        formats[stem_of(file.path)] = _format_of(fields) or described
    return ", ".join(f"{path} ({described})" for path, described in list(formats.items())[:12])
