"""Plan for reading a data set: its parts, each with a row parser; the kind and the split that a file's name implies;
and checks of the fields of a row.

A check raises a `BadRow` that names the field and its value. `QueryGroup` adds the query and the passages of a row,
because most formats store them together."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from raytriever.data.data_sources import Source, SourceFile
from raytriever.data.records_and_bad_rows import (
    NO_ANSWER,
    ORIGINS,
    RELEVANT_FROM,
    SOURCES,
    BadRow,
    Document,
    Judgement,
    Negative,
    Query,
    Records,
    content_id,
)

Kind = Literal["json", "tsv", "table", "array", "object", "parquet", "arrow", "ir"]
_KINDS: dict[str, Kind] = {".jsonl": "json", ".jsonl.gz": "json", ".ndjson": "json", ".json": "array"}
_KINDS |= {".json.gz": "array", ".csv": "table", ".csv.gz": "table", ".tsv": "tsv", ".tsv.gz": "tsv"}
_KINDS |= {".parquet": "parquet", ".arrow": "arrow"}
_SUFFIX = re.compile(
    r"\.(?:jsonl|ndjson|json|tsv|csv)(?:\.gz)?$|\.parquet$|(?<=-\d{5}-of-\d{5})\.arrow$", re.IGNORECASE
)
_SHARD = re.compile(r"-\d+-of-\d+$")
_CANONICAL = {"validation": "dev", "valid": "dev", "val": "dev"}
_SPLIT = re.compile(r"(?:^|[-_./])(train|validation|valid|val|dev|test)(?=[-_./]|$)")
_UNTELLING = ("data", "default")
_NAME_OF_SPLIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
ANSWERABLE = "answerable"
TEXT_WORDS = 4  # a cell of at least this many words is a text, not the name of a column
_YES_OR_NO = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_SETTINGS = ("dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "metadata.json")


# `parse(row, records, split)` adds a row to the records, with its judgements in a split. It raises `BadRow` for a bad
# row; the caller then removes what was added. The row is a mapping of fields, or a list of columns for the kind `tsv`.
# A parser is a top-level function of a module, or a `partial` of one, so that it can be pickled.
RowParser = Callable[[Any, Records, str], None]
# `rows(content)` returns the rows of a file that is one JSON object, or None if the object has another format. It
# raises `BadRow` if the object cannot be read.
RowsOf = Callable[[Mapping[str, Any]], Iterable[Any] | None]


@dataclass(frozen=True)
class Part:
    """One file of a data set and its parser."""

    where: str  # absolute path or URI; for the kind `ir`, a name of `ir_datasets` with `#docs`, `#queries` or `#qrels`
    # `json`, one object in each line; `tsv`, columns separated by tabs; `table`, a CSV or TSV file; `array`, a JSON
    # array of objects; `object`, one JSON object; `parquet`; `arrow`, of `datasets`; `ir`.
    kind: Kind
    parse: RowParser
    # For a `tsv` with a header, the column names that the first row must have. For a `table`, the name of each
    # column in the data format.
    header: tuple[str, ...] = ()
    # Split of the judgements; "" if unknown. None if there are no judgements, or if the rows name the split.
    split: str | None = None
    rows: RowsOf | None = None  # function that returns the rows of an `object`

    @classmethod
    def of(cls, file: SourceFile, parse: RowParser, split: str | None = None) -> Part:
        """Return the part for a file, whose name must have a known ending."""
        return cls(file.where, kind_of(file.path), parse, split=split)


@dataclass(frozen=True)
class Plan:
    """Format and parts of a data set."""

    format: str
    parts: tuple[Part, ...]  # files of the data set, files with only texts first
    has_queries: bool = True  # True if the data set must have a query; False if a corpus is enough
    note: str = ""  # message that says how the files are read, if the format was guessed
    division: str = ""  # bounds by which a single file is divided into splits; empty if files or rows name the splits


def kind_of(path: str) -> Kind:
    """Return the kind of a file, whose name must have a known ending."""
    return _KINDS[_SUFFIX.search(path)[0].lower()]  # type: ignore[index]


def stem_of(path: str) -> str:
    """Return a path without its ending and without the number of its shard."""
    return _SHARD.sub("", _SUFFIX.sub("", path))


def names_settings(path: str) -> bool:
    """Return True if a file describes a data set and holds none of its rows."""
    return path.rsplit("/", 1)[-1] in _SETTINGS


def base_of(path: str) -> str:
    """Return the folder of a file, without path components that are `data`, `default` or the name of a split."""
    folders = path.split("/")[:-1]
    return "/".join(part for part in folders if part not in _UNTELLING and not _SPLIT.fullmatch(part))


def canonical_split(name: str) -> str:
    """Return the standard name of a split: `dev` for `validation`, `valid` or `val`, else the name itself."""
    return _CANONICAL.get(name, name)


def split_if_named(path: str) -> str | None:
    """Return the last split that a path names (`train.jsonl`, `nq-dev.json`, `test/part-0.parquet`)."""
    splits = _SPLIT.findall(stem_of(path))
    return canonical_split(splits[-1]) if splits else None


def split_of_row(row: Mapping[str, Any]) -> str:
    """Return the split that a row names. A path is refused, because the split becomes the name of a file."""
    name = row.get("split")
    if not isinstance(name, str) or not _NAME_OF_SPLIT.fullmatch(name):
        raise BadRow(f"split {str(name)[:20]!r} is not a name; use letters, digits, '_', '.' and '-'")
    return canonical_split(name)


def has_file(source: Source, pattern: re.Pattern[str]) -> bool:
    """Return True if the path of a file of the source matches a pattern."""
    return any(pattern.fullmatch(file.path) for file in source.files)


def files_of(source: Source, pattern: re.Pattern[str]) -> list[SourceFile]:
    """Return the files of the source whose path matches a pattern (see `plain_before_packed`)."""
    return [file for file in plain_before_packed(source.files) if pattern.fullmatch(file.path)]


def is_readable(file: SourceFile) -> bool:
    """Return True if the name of a file has a known ending."""
    return _SUFFIX.search(file.path) is not None


def plain_before_packed(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Return the files, but skip a gzipped file if the same file also exists uncompressed."""
    given = list(files)
    paths = {file.path for file in given}
    return [file for file in given if file.path.removesuffix(".gz") not in paths or not file.path.endswith(".gz")]


def shown(source: Source) -> str:
    """Return the names at the top level of a source, at most twelve."""
    names = sorted({file.path.split("/")[0] for file in source.files})
    return ", ".join(names[:12]) or "nothing"


T = TypeVar("T")


def string_field(row: Mapping[str, Any], name: str) -> str:
    """Return a field that must hold a text that is not blank."""
    try:
        value = row[name]
    except KeyError:
        raise BadRow(f'no field "{name}"; the fields are {", ".join(row) or "none"}') from None
    return text_value(value, name)


def text_value(value: Any, name: str) -> str:
    """Return a value that must be a text that is not blank."""
    if not isinstance(value, str):
        raise BadRow(f'"{name}" is {type(value).__name__}, not a string')
    if not value or value.isspace():
        raise BadRow(f'empty "{name}"')
    return encodable(value, name)


def id_field(row: Mapping[str, Any], name: str) -> str:
    """Return a field that must hold an id. A whole number is converted to text, because some programs write numbers."""
    value = row.get(name)
    return str(value) if type(value) is int else string_field(row, name)


def id_value(value: Any, name: str) -> str:
    """Return a value that must be an id, a text or a whole number."""
    return str(value) if type(value) is int else text_value(value, name)


def optional_text(row: Mapping[str, Any], name: str) -> str:
    """Return a text field. If it is missing, null or empty, return the empty text."""
    value = row.get(name) or ""
    if not isinstance(value, str):
        raise BadRow(f'"{name}" is {type(value).__name__}, not a string')
    return encodable(value, name)


def passage_of(row: Mapping[str, Any], text: str = "text") -> tuple[str, str]:
    """Return the title and the text of a passage. One of them may be blank; the field of the text must exist."""
    title, body = optional_text(row, "title"), optional_text(row, text)
    if text not in row or not (title.strip() or body.strip()):
        string_field(row, text)  # raises the error
    return title, body


def encodable(value: str, name: str) -> str:
    """Return a text unchanged. Raise `BadRow` for half of a surrogate pair, which JSON can write but UTF-8 cannot."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadRow(f'"{name}" holds half of a surrogate pair') from error
    return value


def answers_in(row: Mapping[str, Any]) -> list[str]:
    """Return the field `answers`, a text or a list of texts. Any other value is ignored: in formats that
    do not define the field, it may have another meaning."""
    value = row.get("answers")
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [encodable(text, "answers") for text in texts if isinstance(text, str) and text.strip()]


def is_answerable(row: Mapping[str, Any]) -> bool | None:
    """Return the field `answerable` (yes or no, true or false, 1 or 0); None if it is missing or empty."""
    value = row.get(ANSWERABLE)
    text = "" if value is None else str(int(value) if value in (0.0, 1.0) else value).strip().casefold()
    if text and text not in _YES_OR_NO:
        raise BadRow(f'"{ANSWERABLE}" is {str(value)[:20]!r}, neither yes nor no')
    return _YES_OR_NO.get(text)


def list_field(row: Mapping[str, Any], name: str) -> list[Any]:
    """Return a field that must hold a list. Return an empty list if it is missing or null."""
    value = row.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRow(f'"{name}" is {type(value).__name__}, not a list')
    return value


def list_of(row: Mapping[str, Any], name: str, check: Callable[[Any, str], T]) -> list[T]:
    """Return a list field after a check of each value. Return an empty list if the field is missing or null."""
    return [check(value, f"{name}[{index}]") for index, value in enumerate(list_field(row, name))]


def texts_field(row: Mapping[str, Any], name: str) -> list[str]:
    """Return the texts of a field that must hold a text, or a list of at least one text."""
    if not isinstance(row.get(name), list):
        return [string_field(row, name)]
    return list_of(row, name, text_value) or [text_value("", name)]


def object_value(value: Any, name: str) -> Mapping[str, Any]:
    """Return a value that must be an object."""
    if not isinstance(value, Mapping):
        raise BadRow(f'"{name}" is {type(value).__name__}, not an object')
    return value


def score_list(row: Mapping[str, Any], name: str, count: int, of: str) -> list[float]:
    """Return `count` scores, one for each value of the field `of`. If there are no scores, all are NaN."""
    values = list_field(row, name)
    if not values:
        return [math.nan] * count
    if len(values) != count:
        raise BadRow(f'"{name}" has {len(values)} scores for {count} values in "{of}"')
    return list_of(row, name, score_value)


def score_value(value: Any, name: str) -> float:
    """Return a score that must be a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRow(f'"{name}" is {type(value).__name__}, not a number')
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadRow(f'"{name}" is {str(value)[:20]}, not a finite number')
    return number


def optional_score(row: Mapping[str, Any], name: str) -> float:
    """Return a score; NaN if it is missing or null."""
    value = row.get(name)
    return math.nan if value is None else score_value(value, name)


class QueryGroup:
    """Query of a row. It adds the query, and its passages, judgements, negatives and answers, to the records.

    Args:
        name: id of the query; None to make an id from its content.
        prompt: prompt of this query, which replaces the prompt of the data set; "" for none.
        answers: texts that identify passages with the answer.
    """

    def __init__(
        self,
        records: Records,
        split: str,
        text: str,
        name: str | None = None,
        prompt: str = "",
        answers: Sequence[str] = (),
    ) -> None:
        self._records, self._split = records, split
        self._query = name if name is not None else content_id(text)
        self._judged: set[str] = set()
        self._ranks: Counter[str] = Counter()
        records.queries.append(Query(self._query, text, prompt))
        records.answers += [(self._query, answer) for answer in answers]

    def document(self, title: str, text: str, name: str | None = None) -> str:
        """Add a passage and return its id. If `name` is None, the id is made from the content."""
        name = content_id(title, text) if name is None else name
        self._records.documents.append(Document(name, title, text))
        return name

    def judged(self, document: str, score: float = 1, source: str = SOURCES[0]) -> None:
        """Add a judgement of a passage, unless it has one. The order of the calls gives the ranks; see `Judgement`."""
        if source not in SOURCES:
            raise BadRow(f"source {str(source)[:20]!r} is not one of {', '.join(SOURCES)}")
        if document not in self._judged:
            self._judged.add(document)
            rank = self._next_rank("") if score >= RELEVANT_FROM else 0
            self._records.judgements.append(Judgement(self._split, self._query, document, score, source, rank))

    def no_answer(self) -> None:
        """Record that no document answers the query."""
        self._records.judgements.append(Judgement(self._split, self._query, NO_ANSWER, 1))

    def negative(self, document: str, origin: str, score: float = math.nan) -> None:
        """Add a hard negative. The order of the calls gives the ranks of negatives of the same origin."""
        if origin not in ORIGINS:
            raise BadRow(f"origin {str(origin)[:20]!r} is not one of {', '.join(ORIGINS)}")
        self._records.negatives.append(Negative(self._query, document, origin, self._next_rank(origin), score))

    def _next_rank(self, among: str) -> int:
        self._ranks[among] += 1
        return self._ranks[among] - 1
