"""Plan for reading a data set: its parts with their row parsers, and the kind and split that a file name implies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from raytriever.data.quarantine import BadRow
from raytriever.data.records import Records
from raytriever.data.sources import Source, SourceFile

Kind = Literal["json", "tsv", "table", "array", "parquet", "arrow", "ir"]
_KINDS: dict[str, Kind] = {
    ".jsonl": "json",
    ".jsonl.gz": "json",
    ".ndjson": "json",
    ".json": "array",
    ".json.gz": "array",
    ".csv": "table",
    ".csv.gz": "table",
    ".tsv": "tsv",
    ".tsv.gz": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_SUFFIX = re.compile(r"\.(?:jsonl|ndjson|json|tsv|csv)(?:\.gz)?$|\.parquet$|(?<=-\d{5}-of-\d{5})\.arrow$")
_SHARD = re.compile(r"-\d+-of-\d+$")
_CANONICAL = {"validation": "dev", "valid": "dev", "val": "dev"}
_SPLIT = re.compile(r"(?:^|[-_./])(train|validation|valid|val|dev|test)(?=[-_./]|$)")
_UNTELLING = ("data", "default")
_NAME_OF_SPLIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SETTINGS = ("dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "metadata.json")


# Adds a row to the records, or raises `BadRow` and adds nothing. The row is a mapping of fields, or for the kind `tsv`
# the list of its columns. A parser is a dataclass, which can be pickled and whose text form has its settings.
RowParser = Callable[[Any, Records], None]


@dataclass(frozen=True)
class JudgedRow:
    """Base of row parsers whose judgements are of one split."""

    split: str

    def __call__(self, row: Any, records: Records) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Part:
    """One file of a data set and its parser.

    Args:
        where: absolute path or URI; for the kind `ir`, a name of `ir_datasets` and `#docs`, `#queries` or `#qrels`.
        kind: `json`, one object in each line; `tsv`, columns separated by tabs; `table`, a CSV or TSV file; `array`, a
            JSON array of objects; `parquet`; `arrow`, of `datasets`; `ir`.
        parse: parser of its rows.
        header: columns that the first row of a `tsv` must name, if it has a header; or the name of each column of a
            `table` in its format.
        split: split of its judgements; None if it has none, or if its rows name the split.
    """

    where: str
    kind: Kind
    parse: RowParser
    header: tuple[str, ...] = ()
    split: str | None = None


@dataclass(frozen=True)
class Plan:
    """Format, parts and splits of a data set.

    Args:
        format: name of the format.
        parts: files of the data set, files with only texts first.
        splits: splits of the parts; None if only the rows name them.
        note: how the files are read, where that was guessed.
        has_queries: whether it must hold a query; a corpus alone can be encoded and searched.
    """

    format: str
    parts: tuple[Part, ...]
    splits: tuple[str, ...] | None
    has_queries: bool = True
    note: str = ""


def kind_of(path: str) -> Kind:
    """Return the kind of a file, whose name has a known ending."""
    return _KINDS[_SUFFIX.search(path)[0]]  # type: ignore[index]


def stem_of(path: str) -> str:
    """Return a path without its ending and without the number of its shard."""
    return _SHARD.sub("", _SUFFIX.sub("", path))


def names_settings(path: str) -> bool:
    """Return True if a file describes a data set and holds none of its rows."""
    return path.rsplit("/", 1)[-1] in _SETTINGS


def base_of(path: str) -> str:
    """Return the folder of a file, without names of splits, `data` and `default`."""
    folders = path.split("/")[:-1]
    return "/".join(part for part in folders if part not in _UNTELLING and not _SPLIT.fullmatch(part))


def canonical_split(name: str) -> str:
    """Return the name of a split as it is used here: `validation`, `valid` and `val` are `dev`."""
    return _CANONICAL.get(name, name)


def split_if_named(path: str) -> str | None:
    """Return the last split that a path names (`train.jsonl`, `nq-dev.json`, `test/part-0.parquet`)."""
    splits = _SPLIT.findall(stem_of(path))
    return canonical_split(splits[-1]) if splits else None


def split_of_row(row: Mapping[str, Any]) -> str:
    """Return the split that a row names; a path is refused, because the split names a file of the prepared data."""
    name = row.get("split")
    if not isinstance(name, str) or not _NAME_OF_SPLIT.fullmatch(name):
        raise BadRow(f"split {str(name)[:20]!r} is no name; use letters, digits, '_', '.' and '-'")
    return canonical_split(name)


def plain_before_packed(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Return the files that hold rows; of a file that lies there plain and gzipped, the plain one."""
    readable = [file for file in files if _SUFFIX.search(file.path)]
    paths = {file.path for file in readable}
    return [file for file in readable if file.path.removesuffix(".gz") not in paths or not file.path.endswith(".gz")]


def shown(source: Source) -> str:
    """Return the names at the top of a source, a dozen at most."""
    names = sorted({file.path.split("/")[0] for file in source.files})
    return ", ".join(names[:12]) or "nothing"
