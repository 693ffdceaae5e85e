"""Plan of how a data set is read: its parts with their row parsers, and what file names say about kind and split."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from raytriever.data.records import Records
from raytriever.data.sources import Source, SourceFile

Kind = Literal["json", "tsv", "array", "parquet", "ir"]
_KINDS: dict[str, Kind] = {
    ".jsonl": "json",
    ".jsonl.gz": "json",
    ".ndjson": "json",
    ".json": "array",
    ".json.gz": "array",
    ".tsv": "tsv",
    ".tsv.gz": "tsv",
    ".parquet": "parquet",
}
_SUFFIX = re.compile(r"\.(?:jsonl|ndjson|json|tsv)(?:\.gz)?$|\.parquet$")
_SHARD = re.compile(r"-\d+-of-\d+$")
_CANONICAL = {"validation": "dev", "valid": "dev", "val": "dev"}
_SPLIT = re.compile(r"(?:^|[-_./])(train|validation|valid|val|dev|test)(?=[-_./]|$)")


_UNTELLING = ("data", "default")
_SETTINGS = ("dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "metadata.json")


class RowParser(Protocol):
    """Adds what a row holds to the records, or raises `BadRow` having added nothing. Can be pickled.

    The row is a mapping of fields, or for the kind `tsv` the list of its columns.
    """

    def __call__(self, row: Any, records: Records) -> None:
        """Add one row."""


@dataclass(frozen=True)
class Part:
    """One file of a data set and how it is read.

    Args:
        where: its path or URI, absolute; a name of `ir_datasets` with what is read of it for the kind `ir`.
        kind: `json`, an object a line; `tsv`, with a header; `array`, one JSON array of objects; `parquet`; `ir`.
        parse: what its rows mean.
        header: the columns of a `tsv`, as the first row must name them.
        split: the split that its judgements belong to; None where it has none, or where its rows name it.
    """

    where: str
    kind: Kind
    parse: RowParser
    header: tuple[str, ...] = ()
    split: str | None = None


@dataclass(frozen=True)
class Plan:
    """How a data set is read.

    Args:
        format: its name.
        parts: its files, those with nothing but texts first.
        splits: those that the parts hold; None where only the rows tell.
    """

    format: str
    parts: tuple[Part, ...]
    splits: tuple[str, ...] | None


def kind_of(path: str) -> Kind:
    """How a file of this name is read; call it for names with a known ending only."""
    return _KINDS[_SUFFIX.search(path)[0]]  # type: ignore[index]


def has_rows(path: str) -> bool:
    """Whether a file of this name may hold rows: `.jsonl`, `.json`, `.tsv`, plain or gzipped, or `.parquet`."""
    return _SUFFIX.search(path) is not None


def stem_of(path: str) -> str:
    """A path without its ending and without the number of its shard."""
    return _SHARD.sub("", _SUFFIX.sub("", path))


def names_settings(path: str) -> bool:
    """Whether a file is one of those that tell about a data set, and holds none of its rows."""
    return path.rsplit("/", 1)[-1] in _SETTINGS


def base_of(path: str) -> str:
    """The folder of a file, without what in it only speaks of splits or says `data` or `default`."""
    folders = path.split("/")[:-1]
    return "/".join(part for part in folders if part not in _UNTELLING and not _SPLIT.fullmatch(part))


def canonical_split(name: str) -> str:
    """The name of a split as it is used here: `validation`, `valid` and `val` are `dev`."""
    return _CANONICAL.get(name, name)


def split_named(path: str) -> str:
    """The split of a file of judgements: its stem; `validation`, `valid` and `val` are `dev`."""
    return canonical_split(stem_of(path).rsplit("/", 1)[-1])


def split_if_named(path: str) -> str | None:
    """The split that a path speaks of (`train.jsonl`, `nq-dev.json`, `test/part-0.parquet`), the last it names."""
    found = _SPLIT.findall(stem_of(path))
    return canonical_split(found[-1]) if found else None


def plain_before_packed(files: Iterable[SourceFile]) -> list[SourceFile]:
    """The files that hold rows; of a file that lies there plain and gzipped, the plain one."""
    readable = [file for file in files if has_rows(file.path)]
    paths = {file.path for file in readable}
    return [file for file in readable if file.path.removesuffix(".gz") not in paths or not file.path.endswith(".gz")]


def shown(source: Source) -> str:
    """What a source holds at its top, a dozen names at most."""
    there = sorted({file.path.split("/")[0] for file in source.files})
    return ", ".join(there[:12]) or "nothing"
