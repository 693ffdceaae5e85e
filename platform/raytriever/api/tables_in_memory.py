"""Conversion of tables in memory to files of a data set in the cache, with one JSON object per row.

Rows keep their order and number. So errors and the list of bad rows give row numbers of the user's table."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from raytriever.core.errors import ConfigError, DataError, setting
from raytriever.core.paths import FILE
from raytriever.core.store.object_stores import is_uri
from raytriever.core.terminal import warn
from raytriever.core.unknown_names import did_you_mean
from raytriever.data.data_sources import Files, Row, Rows, json_value
from raytriever.data.formats.beir import UNANSWERABLE
from raytriever.data.formats.csv_and_tsv import TableFile
from raytriever.data.formats.csv_tables import PASSAGE, QUERY, choose_columns, column_names, value_of, votes_note
from raytriever.data.formats.plan import ANSWERABLE, is_answerable
from raytriever.data.formats.train_dev_test import Division, Fractions
from raytriever.data.records_and_bad_rows import BadRow

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Table:
    """Rows with named columns, and the title of the table in errors, such as `documents`. Each call of `rows`
    returns a new iterator over the rows, from the first row."""

    title: str
    columns: tuple[str, ...]
    rows: Rows

    def require(self, *columns: str, remedy: str = "rename the columns") -> None:
        """Raise `DataError` if a column is missing. The error lists the missing, the existing and similar columns."""
        missing = [name for name in columns if name not in self.columns]
        if not missing:
            return
        similar = [hint for name in missing if (hint := did_you_mean(name, self.columns)).startswith("did")]
        raise DataError(
            f"the column{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))} "
            f"{'are' if missing[1:] else 'is'} missing; the table has {', '.join(map(repr, self.columns)) or 'none'}",
            self.title,
            " ".join([*similar, remedy.capitalize() if similar else remedy]),
        )


def text_files(documents: Any, queries: Any, judgements: Any, unanswerable: Any) -> Files:
    """Return the files for dictionaries; see `Dataset.from_dict`."""
    for title, value in (("documents", documents), ("queries", queries), ("judgements", judgements)):
        if not isinstance(value, Mapping):
            raise DataError(f"has the type {type(value).__name__}", title, f"give a dictionary {_REMEDIES[title]}")
    for split, by_query in judgements.items():
        if not isinstance(by_query, Mapping) or not all(isinstance(group, Mapping) for group in by_query.values()):
            raise DataError(
                f"split {split!r} has no dictionary of dictionaries", "judgements", f"give {_REMEDIES['judgements']}"
            )
    if not isinstance(unanswerable, Mapping) or any(
        isinstance(names, str) or not isinstance(names, Iterable) for names in unanswerable.values()
    ):
        raise DataError("is not a dictionary of lists of ids", "unanswerable", f"give {_REMEDIES['unanswerable']}")

    def document_rows() -> Iterator[Row]:
        for name, value in documents.items():
            yield {"_id": name, **value} if isinstance(value, Mapping) else {"_id": name, "text": value}

    def judgement_rows(split: str) -> Rows:
        return lambda: (
            {"query-id": query, "corpus-id": document, "score": grade}
            for query, grades in judgements[split].items()
            for document, grade in grades.items()
        )

    tables: dict[str, tuple[str, Rows]] = {
        "corpus.jsonl": ("documents", document_rows),
        "queries.jsonl": ("queries", lambda: ({"_id": name, "text": text} for name, text in queries.items())),
    }
    for split in judgements:
        if judgements[split] or split not in unanswerable:
            tables[_judgement_file(split)] = f"judgements of {split}", judgement_rows(split)
    for split, names in unanswerable.items():
        file = f"{UNANSWERABLE}/{_split_name(split, 'unanswerable')}.jsonl"
        tables[file] = f"unanswerable of {split}", _unanswerable_rows(list(names))
    return Files(tables, {"_id": "id"})


def _unanswerable_rows(names: Sequence[Any]) -> Rows:
    return lambda: ({"query-id": name} for name in names)


def refuse_fractions(fractions: Fractions, decider: str) -> None:
    """Raise `ConfigError` if a fraction was passed: it has no effect, because `decider` decides the splits."""
    for name, fraction in (("test_fraction", fractions.test), ("dev_fraction", fractions.dev)):
        if fraction is not None:
            raise ConfigError(f"has no effect: {decider} decides the splits", setting(name, fraction), "leave it out")


def pair_files(table: Table, query: str, passage: str, split: str | None, fractions: Fractions) -> Files:
    """Return the files for a table of pairs; see `Dataset.from_pandas`."""
    explicit = [split] if split else []
    query, passage = _recognized(table, query, passage)
    table.require(query, passage, *explicit, remedy="rename the columns, or name yours with query= and passage=")
    first = next(iter(table.rows()), None)
    if first is None:
        raise DataError("the table has no rows", table.title, "give at least three pairs")
    values = [json_value(first[column]) for column in table.columns]
    names = column_names(table.columns, values, {"query": query, "passage": passage})
    if votes := votes_note(table.columns, names, "rename it to 'label'"):
        warn(table.title + votes)
    read = {column: name for column, name in zip(table.columns, names, strict=True) if name}
    split = split or next((column for column, name in read.items() if name == "split"), None)
    fields = {column: name for column, name in read.items() if name != "split"}
    if split:
        refuse_fractions(fractions, f"the column {split!r}")
    assigned = (lambda row: row[split]) if split else _division(table, query, fractions)
    splits = sorted({_split_name(assigned(row), split or "split") for row in table.rows()})

    def rows_of(name: str) -> Rows:
        def rows() -> Iterator[Row]:
            for number, row in enumerate(table.rows(), 1):
                if assigned(row) == name:
                    try:
                        yield {name: value_of(name, row[column]) for column, name in fields.items()}
                    except BadRow as reason:
                        where = f"{table.title} row {number}"
                        raise DataError(str(reason), where, "correct it, or leave the row out") from reason

        return rows

    tables = {f"{name}.jsonl": (f"{table.title} of split {name}", rows_of(name)) for name in splits}
    return Files(tables, {"anchor": query, "positive": passage})


def _recognized(table: Table, query: str, passage: str) -> tuple[str, str]:
    """Return the columns of queries and passages. If a default column is missing, a known similar column is used."""
    named = {role: column for role, column in (("query", query), ("passage", passage)) if column != role}
    with suppress(DataError):  # `require` then says which columns are missing
        chosen = choose_columns(table.title, table.columns, (QUERY, PASSAGE), named, "")
        if (chosen["query"], chosen["passage"]) != (query, passage):
            warn(f"{table.title}: columns {chosen['query']!r} (queries) and {chosen['passage']!r} (passages) are used")
        return chosen["query"], chosen["passage"]
    return query, passage


def judged_tables(documents: Table, queries: Table, judgements: Table, split: str | None) -> Files:
    """Return the files for three tables; see `Dataset.from_pandas`."""
    documents.require("id", "text")
    queries.require("id", "text")
    judgements.require("query_id", "document_id", "score", *([split] if split else []))
    split = split or ("split" if "split" in judgements.columns else None)
    titled = ["title"] if "title" in documents.columns else []

    def judgement_rows(name: str) -> Rows:
        def rows() -> Iterator[Row]:
            for row in judgements.rows():
                if split is None or row[split] == name:
                    yield {"query-id": row["query_id"], "corpus-id": row["document_id"], "score": _grade(row["score"])}

        return rows

    def document_rows() -> Iterator[Row]:
        for row in documents.rows():
            yield {"_id": row["id"], **{name: row[name] for name in titled}, "text": row["text"]}

    tables: dict[str, tuple[str, Rows]] = {
        "corpus.jsonl": (documents.title, document_rows),
        "queries.jsonl": (queries.title, lambda: ({"_id": row["id"], "text": row["text"]} for row in queries.rows())),
    }
    names = sorted({_split_name(row[split], split) for row in judgements.rows()}) if split else ["test"]
    for name in names:
        tables[_judgement_file(name)] = f"{judgements.title} of split {name}", judgement_rows(name)
    for name, ids in _unanswerable_ids(queries).items():
        tables[f"{UNANSWERABLE}/{name}.jsonl"] = f"{queries.title} of split {name}", _unanswerable_rows(ids)
    return Files(tables, {"_id": "id", "query-id": "query_id", "corpus-id": "document_id"})


def _unanswerable_ids(queries: Table) -> dict[str, list[Any]]:
    """Return, by split, the ids of queries that no document answers. If there is no column `split`, use `test`."""
    ids: dict[str, list[Any]] = {}
    for row in queries.rows() if ANSWERABLE in queries.columns else ():
        value = json_value(row[ANSWERABLE])
        try:
            answerable = is_answerable({ANSWERABLE: value})
        except BadRow as reason:
            raise DataError(str(reason), f"{queries.title}, id {row['id']!r}", "write yes or no") from reason
        if answerable is False:
            ids.setdefault(_split_name(row.get("split", "test"), "split"), []).append(row["id"])
    return ids


def hub_tables(splits: Any) -> Files:
    """Return the files for a `datasets.Dataset` or `DatasetDict`; see `Dataset.from_huggingface`."""
    require_package("datasets", "from_huggingface")
    import datasets

    if isinstance(splits, datasets.Dataset):
        splits = splits.with_format(None)  # yield Python values, whatever format the user has set
        return pair_files(
            Table("splits", tuple(splits.column_names), splits.__iter__), "query", "passage", None, Fractions()
        )
    if not isinstance(splits, datasets.DatasetDict):
        remedy = "give a Dataset or a DatasetDict"
        raise DataError(f"has the type {type(splits).__name__}", "splits", remedy)
    splits = splits.with_format(None)
    is_judged = {"corpus", "queries"} <= splits.keys()
    tables: dict[str, tuple[str, Rows]] = {}
    for name, part in splits.items():
        plain = f"{_split_name(name, 'splits')}.jsonl"
        file = plain if not is_judged or name in ("corpus", "queries") else _judgement_file(name)
        tables[file] = f"split {name!r}", part.__iter__
    return Files(tables)


def frame_table(title: str, frame: Any) -> Table:
    """Return the table of a pandas frame."""
    require_package("pandas", "from_pandas")
    import pandas

    if not isinstance(frame, pandas.DataFrame):
        raise DataError(f"has the type {type(frame).__name__}", title, "give a pandas DataFrame")
    names = tuple(map(str, frame.columns))

    def rows() -> Iterator[Row]:
        for values in frame.itertuples(index=False, name=None):
            yield dict(zip(names, values, strict=True))

    return Table(title, names, rows)


def csv_table(path: str | os.PathLike[str]) -> Table:
    """Return the table of a CSV or TSV file. In a row with too many or too few fields, every value becomes None."""
    file = os.fspath(path) if is_uri(os.fspath(path)) else str(Path(path).expanduser())
    if not re.search(r"\.[ct]sv(\.gz)?$", file, re.IGNORECASE):
        raise DataError("is not a CSV or TSV file, so it has no columns to name", file, "leave out the column names")
    if not is_uri(file):
        FILE.check(file, "dataset")
    table = TableFile.open(file)

    def rows() -> Iterator[Row]:
        for _, fields in table.rows():
            values = [None] * len(table.columns) if isinstance(fields, str) else fields
            yield dict(zip(table.columns, values, strict=True))

    return Table(file, table.columns, rows)


def require_package(package: str, function: str) -> None:
    """Raise `ConfigError` if the package that `function` needs is not installed."""
    try:
        import_module(package)
    except ImportError as error:
        raise ConfigError(f"needs the package `{package}`", function, f"install it: pip install {package}") from error


_REMEDIES = {
    "documents": "{id: text} or {id: {'title': ..., 'text': ...}}",
    "queries": "{id: text}",
    "judgements": "{split: {query id: {document id: grade}}}",
    "unanswerable": "{split: [query id]}",
}


def _judgement_file(split: Any) -> str:
    return f"qrels/{_split_name(split, 'judgements')}.jsonl"


def _split_name(value: Any, where: str) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        what = f"{str(value)[:40]!r} is not a valid split name"
        raise DataError(what, where, "use names such as train, dev and test")
    return value


def _division(table: Table, query: str, fractions: Fractions) -> Callable[[Row], str]:
    """Return a function that assigns the row of a query to train, dev or test by the digest of the query's text."""

    def has_answer(row: Row) -> bool:
        with suppress(BadRow):
            return is_answerable({ANSWERABLE: json_value(row.get(ANSWERABLE))}) is not False
        return True

    rows = ((row[query], has_answer(row)) for row in table.rows() if isinstance(row[query], str))
    division = Division.of(rows, table.title, fractions)
    return lambda row: division.split_of(row[query], has_answer(row)) if isinstance(row[query], str) else "train"


def _grade(value: Any) -> Any:
    """Return a whole number, such as `1.0` or the text `1`, as an integer; return any other grade unchanged."""
    if isinstance(value, str) and (number := re.fullmatch(r"(-?\d{1,9})(\.0*)?", value.strip())):
        return int(number[1])
    plain = json_value(value)
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain
