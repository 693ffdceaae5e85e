"""Where the files of a data set are: a local path, any `pyarrow.fs` URI, a data set of the Hugging Face hub, or a name
of `ir_datasets`.

A `Source` lists; `open_stream` and `open_raw` read, in any process, given only the `where` of a listed file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from raytriever.data.files import HUB, LOCAL, Listed, is_uri, list_remote
from raytriever.errors import DataError
from raytriever.paths import DATASET, expanded
from raytriever.reading.regular import check_regular
from raytriever.storage import disk_errors

IR_DATASETS = "ir_datasets:"


@dataclass(frozen=True)
class SourceFile:
    """One file: `path` relative to the source, with `/`; `where` the whole path or URI, absolute, so that it means the
    same in a worker; `size` in bytes; `modified_ns` since 1970, 0 where the store does not tell."""

    path: str
    where: str
    size: int
    modified_ns: int


@dataclass(frozen=True)
class Source:
    """A data set as files, sorted by path; none for a name of `ir_datasets`, which `where` then holds."""

    name: str
    where: str
    files: tuple[SourceFile, ...]

    @classmethod
    def open(cls, name_or_path: str | Path) -> Source:
        """List what a data set consists of; nothing is read. Files whose name begins with `.` or `_` are passed over.

        Args:
            name_or_path: a file or folder; a `pyarrow.fs` URI (`file://`, `s3://`, `gs://`, ...);
                `hf://datasets/ORG/NAME[@REVISION][/FOLDER]`; or `ir_datasets:NAME`.

        Raises:
            DataError: there is no such path, nothing in it, or no way to reach it.
        """
        name = str(name_or_path)
        if name.startswith(IR_DATASETS):
            return cls(name.rsplit("/", 1)[-1].removeprefix(IR_DATASETS), name, ())
        if is_uri(name):
            where, listed = list_remote(name)
        else:
            path = expanded(unquote(name[len(LOCAL) :]) if name.startswith(LOCAL) else name)
            where, listed = os.path.abspath(path), _list_local(name, path)
        files = sorted((SourceFile(*one) for one in listed if _is_data(one.path)), key=lambda file: file.path)
        if not files:
            raise DataError("no file in it", f"--dataset {name}", "give a folder with data")
        return cls(_last_part(where), where, tuple(files))


def _list_local(name: str, path: Path) -> list[Listed]:
    with disk_errors(path, reading=True):
        if path.exists() and not path.is_dir():
            check_regular(path)
            return [_local(path.name, path)]
    if not path.is_dir():
        raise DATASET.error_of_missing(name, "--dataset")
    with disk_errors(path, reading=True):
        return [_local(file.relative_to(path).as_posix(), file) for file in _files_below(path)]


def _files_below(folder: Path, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """Yield the files of a folder and of those in it, links followed; names that begin with `.` or `_` are left out.

    Raises:
        OSError: a folder cannot be read, or links lead in a circle.
    """
    status = folder.stat()
    own = (status.st_dev, status.st_ino)
    if own in above:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))
    for name in sorted(os.listdir(folder)):
        path = folder / name
        if not _is_data(name):
            continue
        if path.is_dir():
            yield from _files_below(path, above | {own})
        else:
            yield path


def _local(relative: str, path: Path) -> Listed:
    status = path.stat()
    return Listed(relative, os.path.abspath(path), status.st_size, status.st_mtime_ns)


def _is_data(path: str) -> bool:
    return not any(part.startswith((".", "_")) for part in path.split("/"))


def _last_part(where: str) -> str:
    if not is_uri(where):
        return Path(where).name
    name = where.split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    return name.split("@")[0] if where.startswith(HUB) else name
