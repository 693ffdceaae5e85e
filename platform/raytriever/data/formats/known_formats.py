"""Recognition of the format of a data set, from the names of its files and the fields of their first rows.

1. A data set of `ir_datasets`, and a folder with a corpus, queries and judgements (BEIR, MIRACL, Mr. TyDi), are
   recognized by names.
2. For other data sets, the first rows of each file are read. CSV and TSV files are read only if there are no other
   files. All files must have the same format, and be in one folder or in its subfolders of splits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from raytriever.core.errors import ConfigError, DataError, setting
from raytriever.core.unknown_names import did_you_mean
from raytriever.data.data_settings import SplitConfig
from raytriever.data.data_sources import IR_DATASETS, Source, SourceFile, open_stream, reading
from raytriever.data.formats import (
    beir,
    colbert_and_triples,
    csv_tables,
    file_rows,
    miracl_and_mrtydi,
    question_answering,
    tevatron_dpr_and_pairs,
)
from raytriever.data.formats import plan as plans
from raytriever.data.formats.file_blocks import parse_block, read_blocks
from raytriever.data.formats.tevatron_dpr_and_pairs import PAIRS, SENTENCE_TRANSFORMERS, corpus_row
from raytriever.data.formats.train_dev_test import TEST, TRAIN, Division, divided_row, test_file
from raytriever.data.records_and_bad_rows import NO_ANSWER, BadRow, Records

_TABLE = re.compile(r"\.[ct]sv(?:\.gz)?$", re.IGNORECASE)
_DESCRIPTION = re.compile(r"\.json(?:\.gz)?$", re.IGNORECASE)
_ARRAY = re.compile(rb"\[\s*\{")
_ROWS = 10  # maximum number of first rows in which an object is sought, to recognize the format
_BLOCK = 1 << 16  # number of bytes that are read to get the first rows
# Names of files that seem to hold judgements; notes such as a README do not match.
_JUDGEMENTS = re.compile(r"(?:^|[/._-])qrels?(?:[/._-](?!.*(?:readme|\.md$))|$)", re.IGNORECASE)


class Format(NamedTuple):
    """Format of the rows of a file, or of a whole folder."""

    signature: str  # description of the format's files or fields, for messages
    # Function that returns the parser for rows with the given fields; None if such rows have another format.
    parser: Callable[[frozenset[str]], plans.RowParser | None] = lambda fields: None
    # Function that returns the plan of a folder. A format has either `parser` or `plan`.
    plan: Callable[[Source], plans.Plan] | None = None
    is_whole: Callable[[Source], bool] = lambda source: False
    # Function that returns whether some files of the format exist. If so, and no other format fits, this one is used.
    is_begun: Callable[[Source], bool] = lambda source: False
    rows: plans.RowsOf | None = None  # function that returns the rows of a file that is one JSON object


def rows_with(row: plans.RowParser, *names: str) -> Callable[[frozenset[str]], plans.RowParser | None]:
    """Return the function `parser` of a format whose rows must have all these fields. It returns `row`."""
    return lambda fields: row if fields.issuperset(names) else None


# All formats, in the order in which they are tried. A new format is added only here.
FORMATS = {
    "ir_datasets": Format("", plan=beir.plan_ir, is_whole=lambda source: source.where.startswith(IR_DATASETS)),
    beir.NAME: Format(beir.SIGNATURE, plan=beir.plan_folder, is_whole=beir.is_whole, is_begun=beir.is_begun),
    miracl_and_mrtydi.NAME: Format(
        miracl_and_mrtydi.SIGNATURE,
        plan=miracl_and_mrtydi.plan_folder,
        is_whole=miracl_and_mrtydi.is_whole,
        is_begun=miracl_and_mrtydi.is_begun,
    ),
    colbert_and_triples.NAME: Format(
        colbert_and_triples.SIGNATURE, plan=colbert_and_triples.plan_folder, is_whole=colbert_and_triples.is_whole
    ),
    "tevatron": Format(
        "tevatron: query_id, query, positive_passages, negative_passages; or query_id, query_text, "
        "positive_document_ids, negative_document_ids with a corpus of docid, text",
        tevatron_dpr_and_pairs.tevatron,
    ),
    "dpr": Format(
        "dpr: question, positive_ctxs, negative_ctxs, hard_negative_ctxs",
        rows_with(tevatron_dpr_and_pairs.dpr_row, "question", "positive_ctxs"),
    ),
    "flagembedding": Format(
        "flagembedding: query, pos, neg", rows_with(tevatron_dpr_and_pairs.flag_embedding_row, "query", "pos")
    ),
    "squad": Format(
        "squad: data of paragraphs with context and qas; or question, context, answers",
        rows_with(question_answering.squad_row, "question", "context", "answers"),
        rows=question_answering.squad_rows,
    ),
    "ragas": Format(
        "ragas: user_input (query), reference_contexts",
        rows_with(question_answering.contexts_row, question_answering.CONTEXTS),
        rows=question_answering.contexts_rows,
    ),
    "llamaindex": Format(
        "llamaindex: queries, corpus, relevant_docs",
        rows_with(question_answering.llama_index_row, "_id", "text", "relevant_docs"),
        rows=question_answering.llama_index_rows,
    ),
    "triples": Format(
        f"triples: {colbert_and_triples.TRIPLE} without a header",
        rows_with(colbert_and_triples.triple_columns, colbert_and_triples.TRIPLE),
    ),
    PAIRS: Format(
        "pairs: premise, hypothesis, label",
        rows_with(tevatron_dpr_and_pairs.pair_row, "premise", "hypothesis", "label"),
    ),
    SENTENCE_TRANSFORMERS: Format(
        "sentence-transformers: anchor (query, question), positive (answer), negative, negative_1, ...; or sentence1, "
        "sentence2, score; or query, docs (documents, passages), labels",
        tevatron_dpr_and_pairs.sentence_transformers,
    ),
}


class Peek(NamedTuple):
    """Kind of a file, and the fields of its first row that is an object (empty if none of ten rows is an object). For a
    table, `header` has the columns' names in the data format. `note` says how the file is read, or why it cannot be."""

    kind: plans.Kind
    fields: frozenset[str]
    header: tuple[str, ...] = ()
    note: str = ""


Peeks = list[tuple[SourceFile, Peek]]


def recognize(
    source: Source, format: str | None = None, columns: str = "", config: SplitConfig | None = None
) -> plans.Plan:
    """Return the plan for reading a data set.

    `format` is one of `FORMATS`, or None to recognize it; with a format, files of other formats are skipped. `columns`
    names columns of CSV and TSV files, such as `query=Frage,passage=Antwort`; other columns are recognized. `config`
    divides a single file of queries and passages. `source` includes the file of test questions. Raise `DataError` if
    the files are broken, or have no known format or several; if `format` is unknown, a column is missing, or a file
    cannot be divided. Raise `ConfigError` if `config` has no effect."""
    plan = _with_unread(source, _recognize(source, format, columns, config or SplitConfig()))
    if config not in (None, SplitConfig()) and not plan.division:
        flags = [setting(name, value) for name, value in vars(config).items() if value != getattr(SplitConfig(), name)]
        what = "has no effect: its files, or a column, name the splits"
        raise ConfigError(what, ", ".join(flags), "leave it out, or give one CSV, TSV or JSONL file without splits")
    return plan


def _with_unread(source: Source, plan: plans.Plan) -> plans.Plan:
    """Return the plan with a note on files that are not read although their names suggest judgements."""
    read = {part.where for part in plan.parts}
    unread = [
        file.path
        for file in plans.plain_before_packed(source.files)
        if file.where not in read and _JUDGEMENTS.search(file.path) and not plans.names_settings(file.path)
    ]
    if not unread or plan.format == miracl_and_mrtydi.NAME:  # MIRACL and Mr. TyDi need not read every file
        return plan
    what = f"not read: {', '.join(unread[:8])}; judgements are read from qrels/<split>.tsv, such as qrels/test.tsv"
    return replace(plan, note="; ".join(filter(None, [plan.note, what])))


def _recognize(source: Source, name: str | None, columns: str, config: SplitConfig) -> plans.Plan:
    if name is not None and name not in FORMATS:
        raise DataError(f"unknown format {name!r}", None, did_you_mean(name, list(FORMATS)))
    for known, format in FORMATS.items():
        if format.plan and (known == name or (name is None and format.is_whole(source))):
            return _divided(format.plan(source), config)
    # Choose the last format that fits, because files of an incomplete BEIR folder may also belong to another format.
    begun = next((known for known in reversed(FORMATS) if FORMATS[known].is_begun(source)), None)
    files = plans.plain_before_packed(source.files)
    peeks = _look_into(files)
    table_files = [file for file in files if _TABLE.search(file.path)]
    if table_files and not peeks and (columns or begun is None):
        peeks = [(file, _peek_table(file, columns)) for file in table_files]
    elif columns:
        raise DataError("has no effect: there is no CSV or TSV file to read", setting("columns"), "leave it out")
    matching = {
        known: [peek for peek in peeks if _format_of(peek[1].fields) == known]
        for known in ([name] if name else FORMATS)
    }
    candidates = {known: matched for known, matched in matching.items() if matched}
    parsers = [FORMATS[known].parser(peek.fields) for known, matched in candidates.items() for _, peek in matched]
    is_other = any(parser is not corpus_row for parser in parsers) if begun == miracl_and_mrtydi.NAME else parsers
    if begun is not None and name is None and not is_other:
        return _divided(FORMATS[begun].plan(source), config)  # type: ignore[misc]
    if not candidates:
        for file in files:
            if _DESCRIPTION.search(file.path) and not plans.names_settings(file.path) and (broken := peek(file).note):
                raise DataError(broken, file.where, "write it again, or remove it")
        what = f"is not in the format {name}" if name else "is in no known format"
        signatures = [format.signature for format in FORMATS.values() if format.signature]
        remedy = f"known formats are {'; '.join([*signatures, csv_tables.SIGNATURE])}"
        raise DataError(f"{what}; it contains {_describe(peeks) or plans.shown(source)}", source.where, remedy)
    chosen, matched = next(iter(candidates.items()))
    strange = [] if name else [peek for peek in peeks if peek not in matched]
    if len(candidates) > 1 or strange:
        what = f"has several formats; it contains {_describe(peeks)}"
        raise DataError(what, source.where, f"give one of the files, or {setting('format', 'NAME')}")
    return _divided(_plan(source, chosen, matched, config), config)


def _look_into(files: Iterable[SourceFile]) -> Peeks:
    """Peek into the files that may hold rows, except tables. Of the shards of a file, only the first is opened."""
    peeked: dict[str, Peek] = {}
    peeks = []
    for file in filter(plans.is_readable, files):
        if _TABLE.search(file.path) or plans.names_settings(file.path):
            continue
        group = plans.stem_of(file.path)
        if group not in peeked:
            peeked[group] = peek(file)
        if peeked[group].fields or not _DESCRIPTION.search(file.path):
            peeks.append((file, peeked[group]))  # a .json file without objects is only a description
    return peeks


def peek(file: SourceFile) -> Peek:
    """Read the first rows of a file; raises `DataError` if it is empty or broken as a whole."""
    if not file.size:
        raise DataError("has no rows: the file is empty", file.where, "write it again, or remove it")
    kind = plans.kind_of(file.path)
    if kind in ("parquet", "arrow"):
        return Peek(kind, frozenset(file_rows.column_names(file.where)))
    with reading(file.where, [0]), closing(open_stream(file.where)) as stream:
        begin = stream.read(_BLOCK).removeprefix(file_rows.BYTE_ORDER_MARK).lstrip()
    # The ending is not reliable: JSON lines are often called .json, and an array may be called .jsonl.
    if begin.startswith(b"[") if kind == "array" else _ARRAY.match(begin):
        _, rows = next(file_rows.read_elements(file.where, _BLOCK))
        return Peek("array", _fields(rows.split(b"\n")[:_ROWS]))
    numbered = file_rows.numbered_rows(file.where)
    with closing(numbered):  # type: ignore[type-var]
        first = [row for _, row in islice(numbered, _ROWS)]
    if kind == "array" and (len(first) == 1 or not _fields(first[:1])):
        return _peek_object(file, Peek("json", _fields(first)))
    return Peek("json", _fields(first))


def _peek_object(file: SourceFile, otherwise: Peek) -> Peek:
    """Return the kind and fields of a file that is one JSON object, or `otherwise` if it has no known format."""
    try:
        content = file_rows.whole_object(file.where)
    except BadRow as error:
        return otherwise if otherwise.fields else Peek("json", frozenset(), note=f"is {error}")
    for format in FORMATS.values():
        try:
            rows = (format.rows(content) if format.rows else None) or ()
        except BadRow as error:
            raise DataError(str(error), file.where, f"write it in the format {format.signature}") from error
        for row in rows:
            if isinstance(row, Mapping) and format.parser(frozenset(row)):
                return Peek("object", frozenset(row))
    return otherwise


def _peek_table(file: SourceFile, columns: str) -> Peek:
    if (
        not columns
        and file.path.lower().removesuffix(".gz").endswith(".tsv")
        and colbert_and_triples.has_triples(file.where)
    ):
        note = f"{file.path} is read as {colbert_and_triples.TRIPLE}, because its first row is not a header"
        return Peek("tsv", frozenset((colbert_and_triples.TRIPLE,)), note=note)
    return Peek("table", *csv_tables.peek(file, columns))


def _fields(rows: list[bytes]) -> frozenset[str]:
    for row in rows:
        with suppress(BadRow):
            return frozenset(file_rows.object_of(row))
    return frozenset()


def _format_of(fields: frozenset[str]) -> str | None:
    return next((name for name, format in FORMATS.items() if format.parser(fields)), None)


def _plan(source: Source, name: str, matched: Peeks, config: SplitConfig) -> plans.Plan:
    texts, judged = list[plans.Part](), list[plans.Part]()
    folders, notes = set[str](), list[str]()
    test = test_file(config)
    for file, (kind, fields, header, note) in matched:
        named, is_table = plans.split_if_named(file.path), kind == "table"
        split: str | None = named or ("" if name != PAIRS else TRAIN)
        parse = FORMATS[name].parser(fields)
        assert parse is not None  # because the file matches the format
        if parse is corpus_row:
            texts.append(plans.Part(file.where, kind, parse))
            continue
        is_triple = name == SENTENCE_TRANSFORMERS
        if test is not None and file.where == test.where:
            split = TEST
        elif "split" in fields and (name == PAIRS or is_table or (is_triple and named is None)):
            by_pair = name == PAIRS  # the parser of pairs reads the field `split`
            parse = partial(_in_split, parse, named or TRAIN) if by_pair else partial(csv_tables.split_row, parse)
            split = None
        elif config != SplitConfig():
            split = ""
        if not is_table:
            folders.add(plans.base_of(file.path))
        notes.append(note or tevatron_dpr_and_pairs.grades_note(file.path, parse))
        judged.append(
            plans.Part(file.where, kind, parse, header, split, FORMATS[name].rows if kind == "object" else None)
        )
    if len(folders) > 1:
        what = f"holds several data sets, in {', '.join(sorted(folder or '.' for folder in folders)[:8])}"
        raise DataError(what, source.where, "give one of these folders")
    if not judged or (not texts and any(part.parse is tevatron_dpr_and_pairs.tevatron_ids_row for part in judged)):
        missing = "corpus of docid, text" if judged else "file of queries"
        raise DataError(f"has no {missing}; it contains {plans.shown(source)}", source.where, "give a folder with both")
    return plans.Plan(name, (*texts, *judged), note="; ".join(filter(None, notes)))


def _divided(plan: plans.Plan, config: SplitConfig) -> plans.Plan:
    """Return a plan in which each part has its split. A single file of questions without a split is divided if it is
    CSV or TSV, or if `config` has settings. Several files without splits are `train`."""
    test = test_file(config)
    tested = [part for part in plan.parts if test is not None and part.where == test.where]
    unnamed = [part for part in plan.parts if part.split == ""]
    named = [part for part in plan.parts if part.split and part not in tested]
    note, division = plan.note, None
    if len(unnamed) == 1 and not named and (config != SplitConfig() or unnamed[0].kind in ("table", "tsv")):
        parts = {part.where: part for part in (*unnamed, *tested)}
        division, how = Division.of_file(config, unnamed[0].where, lambda where: _questions(parts[where]))
        note = f"{note}; {how}" if note else f"{unnamed[0].where.rpartition('/')[-1]}: {how}"

    def with_split(part: plans.Part) -> plans.Part:
        if part.split != "":
            return part
        if division is None:
            return replace(part, split=TRAIN)
        return replace(part, parse=partial(divided_row, part.parse, division), split=None)

    divided = repr(division) if division else ""
    return replace(plan, parts=tuple(map(with_split, plan.parts)), note=note, division=divided)


def _questions(part: plans.Part) -> Iterator[tuple[int, str, bool]]:
    """Yield, for each query of a part: its row, its text (or id, without a text), and whether a document answers it."""
    for block in read_blocks(part, 0):
        parsed = parse_block(part, block)
        records = parsed.records
        unanswered = {judgement.query for judgement in records.judgements if judgement.document == NO_ANSWER}
        rows = parsed.rows_of("queries" if records.queries else "judgements").tolist()
        asked = [(query.id, query.text) for query in records.queries] or [
            (judgement.query, judgement.query) for judgement in records.judgements
        ]
        for row, (name, text) in zip(rows, asked, strict=True):
            yield row, text, name not in unanswered


def _in_split(parse: plans.RowParser, split: str, row: Any, records: Records, _: str) -> None:
    parse(row, records, split)


def _describe(peeks: Peeks) -> str:
    formats = {}
    for file, peek in peeks:
        described = f"the fields {', '.join(sorted(peek.fields)[:8])}" if peek.fields else "no objects"
        formats[plans.stem_of(file.path)] = _format_of(peek.fields) or described
    return ", ".join(f"{path} ({described})" for path, described in list(formats.items())[:12])
