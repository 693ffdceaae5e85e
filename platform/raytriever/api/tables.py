"""Tables in memory as files of a data set: one JSON object a row, written once to the cache.

A table's rows keep their order and number, so that an error or a quarantined row of the file is the row of the table.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raytriever.cache import hold, keep_within_bound
from raytriever.errors import ConfigError, DataError, StorageError
from raytriever.options import did_you_mean
from raytriever.paths import FILE
from raytriever.storage import cache_folder, committed_directory, disk_errors, one_writer, read_manifest
from raytriever.terminal import warn

Row = Mapping[str, Any]
Rows = Callable[[], Iterable[Row]]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
SOURCES = "sources"  # of the cache
_NEGATIVE = re.compile(r"negative(_\d+)?")
_HELD_OUT = 0.1  # share of the queries in dev and in test, where no column names splits


@dataclass(frozen=True)
class Table:
    """Rows with named columns.

    Args:
        title: of the table in errors, such as `documents`.
        columns: their names.
        rows: returns the rows from the first, each time it is called.
    """

    title: str
    columns: tuple[str, ...]
    rows: Rows

    def require(self, *columns: str, remedy: str = "rename the columns") -> None:
        """Raise `DataError` naming the columns that are missing, those that exist, and similar ones."""
        missing = [name for name in columns if name not in self.columns]
        if not missing:
            return
        similar = [hint for name in missing if (hint := did_you_mean(name, self.columns)).startswith("did")]
        raise DataError(
            f"the column{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))} "
            f"{'is' if len(missing) == 1 else 'are'} missing; it has {', '.join(map(repr, self.columns)) or 'none'}",
            self.title,
            " ".join([*similar, remedy.capitalize() if similar else remedy]),
        )


@dataclass(frozen=True)
class Files:
    """Files of a data set by their names.

    Args:
        rows: of each file.
        titles: of each file in errors.
        columns: a name in the files, and the user's name of the same column.
    """

    rows: Mapping[str, Rows]
    titles: Mapping[str, str]
    columns: Mapping[str, str] = field(default_factory=dict)

    def write(self, name: str) -> Path:
        """Write the files to the cache, whole, unless they are there.

        Returns:
            The folder, `sources/DIGEST/NAME`; the digest is that of the content.
        """
        digest = hashlib.sha256()
        for file in self.rows:
            digest.update(json.dumps(file).encode())
            for line in self._lines(file):
                digest.update(line)
        folder = cache_folder() / SOURCES / digest.hexdigest()[:32] / name
        if _is_whole(folder):
            hold(folder.parent, self)
            return folder
        with one_writer(folder, wait=True, report=warn):
            if not _is_whole(folder):
                meta = {"kind": "source", "name": name}
                with committed_directory(folder, meta, replace=folder.exists()) as aside:
                    for file in self.rows:
                        (aside / file).parent.mkdir(exist_ok=True)
                        with (aside / file).open("wb") as stream:
                            stream.writelines(self._lines(file))
                keep_within_bound(folder.parent)
        return folder

    def name_tables(self, error: DataError, folder: Path) -> None:
        """Rewrite an error about a file of the folder as one about the table that it was made of."""

        def renamed(text: str | None) -> str | None:
            if text is None:
                return None
            for file, title in sorted(self.titles.items(), key=lambda item: -len(item[0])):
                text = text.replace(f"{folder}/{file}", title)
            for own, column in self.columns.items():
                text = text.replace(f'"{own}"', f'"{column}"')
            return text.replace(str(folder), "the data")

        parts = [renamed(text) for text in (error.what, error.where, error.remedy)]
        error.what, error.where, error.remedy = parts[0] or "", parts[1], parts[2]
        error.args = tuple(parts)

    def _lines(self, file: str) -> Iterator[bytes]:
        title = self.titles.get(file, file)
        for number, row in enumerate(self.rows[file](), 1):
            try:
                yield json.dumps({key: _plain(value) for key, value in row.items()}).encode() + b"\n"
            except (TypeError, ValueError) as error:
                raise DataError(f"holds {error}", f"{title} row {number}", "give texts and whole numbers") from error


def text_files(documents: Any, queries: Any, judgements: Any) -> Files:
    """Return the files of dictionaries; see `Dataset.from_dict`."""
    for title, value in (("documents", documents), ("queries", queries), ("judgements", judgements)):
        if not isinstance(value, Mapping):
            raise DataError(f"is {type(value).__name__}, not a dictionary", title, f"give {_FORMS[title]}")
    for split, by_query in judgements.items():
        if not isinstance(by_query, Mapping) or not all(isinstance(one, Mapping) for one in by_query.values()):
            raise DataError(f"{split!r} holds no dictionaries", "judgements", f"give {_FORMS['judgements']}")

    def document_rows() -> Iterator[Row]:
        for name, value in documents.items():
            yield {"_id": name, **value} if isinstance(value, Mapping) else {"_id": name, "text": value}

    def judgement_rows(split: str) -> Rows:
        return lambda: (
            {"query-id": query, "corpus-id": document, "score": grade}
            for query, grades in judgements[split].items()
            for document, grade in grades.items()
        )

    rows: dict[str, Rows] = {
        "corpus.jsonl": document_rows,
        "queries.jsonl": lambda: ({"_id": name, "text": text} for name, text in queries.items()),
    }
    titles = {"corpus.jsonl": "documents", "queries.jsonl": "queries"}
    for split in judgements:
        file = _judgement_file(split)
        rows[file], titles[file] = judgement_rows(split), f"judgements of {split}"
    return Files(rows, titles, {"_id": "id"})


def pair_files(table: Table, query: str, passage: str, split: str | None) -> Files:
    """Return the files of a table of pairs; see `Dataset.from_pandas`."""
    explicit = [split] if split else []
    table.require(query, passage, *explicit, remedy="rename the columns, or name yours with query= and passage=")
    if next(iter(table.rows()), None) is None:
        raise DataError("has no row", table.title, "give at least three pairs")
    split = split or ("split" if "split" in table.columns else None)
    negatives = [name for name in table.columns if _NEGATIVE.fullmatch(name)]
    assigned = (lambda row: row[split]) if split else _division(table, query)
    names = sorted({_split_name(assigned(row), split or "split") for row in table.rows()})

    def rows_of(name: str) -> Rows:
        def rows() -> Iterator[Row]:
            for row in table.rows():
                if assigned(row) == name:
                    yield {"anchor": row[query], "positive": row[passage], **{each: row[each] for each in negatives}}

        return rows

    rows = {f"{name}.jsonl": rows_of(name) for name in names}
    titles = {f"{name}.jsonl": f"{table.title} of split {name}" for name in names}
    return Files(rows, titles, {"anchor": query, "positive": passage})


def judged_tables(documents: Table, queries: Table, judgements: Table, split: str | None) -> Files:
    """Return the files of three tables; see `Dataset.from_pandas`."""
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

    rows: dict[str, Rows] = {
        "corpus.jsonl": lambda: (
            {"_id": row["id"], **{name: row[name] for name in titled}, "text": row["text"]} for row in documents.rows()
        ),
        "queries.jsonl": lambda: ({"_id": row["id"], "text": row["text"]} for row in queries.rows()),
    }
    titles = {"corpus.jsonl": documents.title, "queries.jsonl": queries.title}
    names = sorted({_split_name(row[split], split) for row in judgements.rows()}) if split else ["test"]
    for name in names:
        file = _judgement_file(name)
        rows[file], titles[file] = judgement_rows(name), f"{judgements.title} of split {name}"
    return Files(rows, titles, {"_id": "id", "query-id": "query_id", "corpus-id": "document_id"})


def hub_tables(splits: Any) -> Files:
    """Return the files of a `datasets.DatasetDict`; see `Dataset.from_huggingface`."""
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            "needs the package `datasets`", "from_huggingface", "install it: pip install datasets"
        ) from error
    if not isinstance(splits, datasets.DatasetDict):
        remedy = "give a DatasetDict, such as datasets.DatasetDict({'train': rows}) or rows.train_test_split(0.1)"
        raise DataError(f"is {type(splits).__name__}, not a DatasetDict", "splits", remedy)
    is_judged = {"corpus", "queries"} <= splits.keys()
    rows: dict[str, Rows] = {}
    titles: dict[str, str] = {}
    for name, part in splits.items():
        plain = f"{_split_name(name, 'splits')}.jsonl"
        file = plain if not is_judged or name in ("corpus", "queries") else _judgement_file(name)
        rows[file], titles[file] = part.__iter__, f"split {name!r}"
    return Files(rows, titles)


def frame_table(title: str, frame: Any) -> Table:
    """Return the table of a pandas frame."""
    require_pandas("from_pandas")
    import pandas

    if not isinstance(frame, pandas.DataFrame):
        raise DataError(f"is {type(frame).__name__}, not a pandas DataFrame", title, "give a DataFrame")
    names = tuple(map(str, frame.columns))

    def rows() -> Iterator[Row]:
        for values in frame.itertuples(index=False, name=None):
            yield dict(zip(names, values, strict=True))

    return Table(title, names, rows)


def csv_table(title: str, path: str | os.PathLike[str]) -> Table:
    """Return the table of a CSV file; whole numbers in `score` are numbers, every other field is text."""
    file = Path(path).expanduser()
    replace(FILE, error=DataError).check(str(file), title)

    def rows() -> Iterator[Row]:
        with disk_errors(file, reading=True), file.open(encoding="utf-8-sig", newline="") as stream:
            try:
                for row in csv.DictReader(stream):
                    yield {name: value for name, value in row.items() if name is not None}
            except (UnicodeDecodeError, csv.Error) as error:
                raise DataError(f"is no CSV file in UTF-8 ({error})", str(file), "save it again as UTF-8") from error

    with disk_errors(file, reading=True), file.open(encoding="utf-8-sig", newline="", errors="replace") as stream:
        header = next(csv.reader(stream), [])
    return Table(f"{title} ({file})" if title != "pairs" else str(file), tuple(header), rows)


def require_pandas(name: str) -> None:
    """Raise `ConfigError` for a function, by its name, where pandas is not installed."""
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise ConfigError("needs the package `pandas`", name, "install it: pip install pandas") from error


_FORMS = {
    "documents": "{id: text} or {id: {'title': ..., 'text': ...}}",
    "queries": "{id: text}",
    "judgements": "{split: {query id: {document id: grade}}}",
}


def _is_whole(folder: Path) -> bool:
    try:
        read_manifest(folder, verify=False)
    except StorageError:
        return False
    return True


def _judgement_file(split: Any) -> str:
    return f"qrels/{_split_name(split, 'judgements')}.jsonl"


def _split_name(value: Any, where: str) -> str:
    """Return the name of a split; it becomes the name of a file."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise DataError(f"{str(value)[:40]!r} is no name of a split", where, "use names such as train, dev and test")
    return value


def _division(table: Table, query: str) -> Callable[[Row], str]:
    """Return a function that assigns the row of a query to train, dev or test by the digest of the query's text."""
    texts = {row[query] for row in table.rows() if isinstance(row[query], str)}
    ordered = sorted(texts, key=lambda text: hashlib.sha256(text.encode(errors="replace")).digest())
    if len(ordered) < 3:
        raise DataError(
            f"has {len(ordered)} different queries, too few to divide into train, dev and test",
            table.title,
            "give at least 3, or a column `split`",
        )
    size = max(1, int(len(ordered) * _HELD_OUT))
    split_of = dict.fromkeys(ordered[:size], "test") | dict.fromkeys(ordered[size : 2 * size], "dev")
    return lambda row: split_of.get(row[query], "train") if isinstance(row[query], str) else "train"


def _grade(value: Any) -> Any:
    """Return a grade as a whole number where it is one, such as `1.0` or the text `1`."""
    if isinstance(value, str) and (number := re.fullmatch(r"(-?\d{1,9})(\.0*)?", value.strip())):
        return int(number[1])
    plain = _plain(value)
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it; what is missing (NaN, NA) becomes null."""
    if isinstance(value, str | int | None):
        return value
    if hasattr(value, "tolist"):  # numpy
        value = value.tolist()
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, str | int | None):
        return value
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    raise TypeError(type(value).__name__)
