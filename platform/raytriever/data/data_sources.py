"""Sources of data files: local path, `pyarrow.fs` URI, data set of the Hugging Face hub, or name of `ir_datasets`.

`Source.open` lists the files. `open_stream` and `open_raw` read one file in any process, given only its `where`.
Files of the hub are read with `huggingface_hub`, which obeys `HF_ENDPOINT`, `HF_TOKEN` and its other variables.
`Files` are rows in memory. They are written to the cache, under the digest of their content, if they are not there."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote, unquote

from raytriever.core.errors import DataError, UserError, disk_errors, setting
from raytriever.core.masking import refuse_secrets
from raytriever.core.paths import DATASET, expanded
from raytriever.core.reading.regular_files import check_regular, open_regular
from raytriever.core.store.cache import cache_folder, hold
from raytriever.core.store.commit import committed_directory
from raytriever.core.store.object_stores import LOCAL, PatientFile, is_uri, open_file_system
from raytriever.core.store.remote_folders import SCHEMES
from raytriever.core.store.unfinished_pieces import make_once

_PATTERN = re.compile(r"hf://datasets/(?P<name>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?(?P<folder>/.*)?")


def pinned(uri: str) -> str:
    """Return a URI whose revision is a commit, so that every worker and every later run reads the same bytes. Raise
    `DataError` if the URI is malformed, if the hub cannot be reached, or if it has no such data set or revision."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    where = setting("dataset", uri)
    match = _PATTERN.fullmatch(uri.rstrip("/"))
    if match is None:
        raise DataError("is not an address on the hub", where, "write hf://datasets/ORG/NAME[@REVISION]")
    try:
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
        commit = api.dataset_info(match["name"], revision=match["revision"], timeout=30).sha
    except HfHubHTTPError as error:
        message = " ".join(str(error).split())[:300]
        what = f"the hub refused the request ({message})"
        raise DataError(what, where, "check the name, the revision and HF_TOKEN") from error
    except Exception as error:  # the hub's client uses one of several HTTP libraries, and each raises errors of its own
        what = f"the hub cannot be reached ({_one_line(error)})"
        raise DataError(what, where, "check the network, or give the path of a local copy") from error
    return f"hf://datasets/{match['name']}@{commit}{match['folder'] or ''}"


HUB = "hf://"
IR_DATASETS = "ir_datasets:"


@dataclass(frozen=True)
class SourceFile:
    """File of a source.

    `path` is relative to the source, with `/`. `where` is the absolute path or URI, so that it is valid in workers too.
    `size` is in bytes. `modified_ns` is in nanoseconds since 1970; it is 0 if the store does not report the time."""

    path: str
    where: str
    size: int
    modified_ns: int


def open_raw(where: str) -> Any:
    """Return the raw bytes of a file, as a `pyarrow.NativeFile` that can seek; raises `DataError`. If a store does
    not answer a read, the read is retried, and raises `StorageError` after minutes."""
    from pyarrow import PythonFile
    from pyarrow.fs import LocalFileSystem

    with reading(where):
        if is_uri(where):
            file_system, path = _file_system(where)
            if where.partition("://")[0] not in SCHEMES:
                return file_system.open_input_file(path)
            return PythonFile(PatientFile(file_system, path, where.partition("?")[0]), mode="r")
        check_regular(where.removeprefix(LOCAL))
        return LocalFileSystem().open_input_file(where.removeprefix(LOCAL))


def open_stream(where: str) -> BinaryIO:
    """Return a stream of a file's bytes, decompressed if its name ends in `.gz`. Reads of a compressed stream raise the
    errors of `gzip`; `reading` converts them to a `UserError`."""
    packed = (where.split("?")[0] if is_uri(where) else where).lower().endswith(".gz")
    if is_uri(where):
        # `gzip` and line readers need an object of the module `io`, not a pyarrow file.
        raw = io.BufferedReader(open_raw(where), 1 << 20)
        return cast(BinaryIO, gzip.open(raw) if packed else raw)
    with reading(where):
        path = where.removeprefix(LOCAL)
        check_regular(path)
        return cast(BinaryIO, gzip.open(path) if packed else open_regular(path))


@contextmanager
def reading(where: str, row: list[int] | None = None) -> Iterator[None]:
    """Convert errors that occur while a file is read to a `UserError`: errors of store libraries, of a broken gzip
    file, and of the disk. `row[0]` is the number of the last row that was read."""
    try:
        with disk_errors(where):
            yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise DataError("no such file", where, "check its spelling, and that it was not removed") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        what = f"the gzip file is broken after row {row[0] if row else 0} ({error})"
        raise DataError(what, where, "copy or compress it again") from error
    except Exception as error:
        if not is_uri(where):
            raise
        what = f"cannot be {f'read after row {row[0]}' if row else 'reached'} ({_one_line(error)})"
        raise DataError(what, where, "check the address, the network and your credentials") from error


def list_remote(uri: str) -> tuple[str, list[SourceFile]]:
    """Return the URI, pinned to a commit if it is on the hub, and its files: all files of a folder, or one file.
    Raise `DataError` if the store is unknown or unreachable, or if the URI does not exist."""
    from pyarrow.fs import FileSelector, FileType

    if uri.startswith(HUB):
        uri = pinned(uri)
    root, _, query = uri.partition("?")
    root, query = root.rstrip("/"), f"?{query}" if query else ""
    with reading(uri):
        file_system, path = _file_system(uri)
        target = file_system.get_file_info(path)
        infos = [target] if target.type == FileType.File else []
        if target.type == FileType.Directory:
            infos = file_system.get_file_info(FileSelector(path, recursive=True))
    if target.type == FileType.NotFound:
        raise DataError("no such file or folder", setting("dataset", uri), "check its spelling and your permissions")
    listed = []
    for info in infos:
        if info.type == FileType.File:
            below = info.path[len(path) :].strip("/")
            escaped = below if uri.startswith(HUB) else quote(below)
            where = f"{root}/{escaped}" if below else root
            size, modified = int(info.size or 0), int(info.mtime_ns or 0)
            listed.append(SourceFile(below or info.base_name, where + query, size, modified))
    return root + query, listed


def _file_system(uri: str) -> tuple[Any, str]:
    refuse_secrets(uri, "dataset")
    if not uri.startswith(HUB):
        return open_file_system(uri)
    from huggingface_hub import HfFileSystem
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    hub = PyFileSystem(FSSpecHandler(HfFileSystem(endpoint=os.environ.get("HF_ENDPOINT"))))
    return hub, uri.removeprefix(HUB).rstrip("/")


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


@dataclass(frozen=True)
class Source:
    """Files of a data set, sorted by path. A data set of `ir_datasets` has no files; `where` is then its name."""

    name: str
    where: str
    files: tuple[SourceFile, ...]

    @classmethod
    def open(cls, name_or_path: str | Path) -> Source:
        """List the files of a data set without reading them. Names that begin with `.` or `_` are skipped.

        `name_or_path` is a file or folder; a `pyarrow.fs` URI (`file://`, `s3://`, `gs://`, ...);
        `hf://datasets/ORG/NAME[@REVISION][/FOLDER]`; or `ir_datasets:NAME`. Raise `DataError` if the path does not
        exist, has no files, or cannot be reached."""
        name = str(name_or_path)
        if name.startswith(IR_DATASETS):
            return cls(name.rsplit("/", 1)[-1].removeprefix(IR_DATASETS), name, ())
        if is_uri(name):
            where, listed = list_remote(name)
        else:
            path = expanded(unquote(name[len(LOCAL) :]) if name.startswith(LOCAL) else name)
            where, listed = os.path.abspath(path), _list_local(name, path)
        files = sorted((file for file in listed if _is_data(file.path)), key=lambda file: file.path)
        if not files:
            raise DataError("has no files", setting("dataset", name), "give a folder with data")
        last = Path(where).name if not is_uri(where) else where.split("?")[0].rstrip("/").rsplit("/", 1)[-1]
        return cls(last.split("@")[0] if where.startswith(HUB) else last, where, tuple(files))


def _list_local(name: str, path: Path) -> list[SourceFile]:
    if path.exists() and not path.is_dir():
        check_regular(path)
        return [local_file(path.name, path)]
    if not path.is_dir():
        raise DATASET.error_of_missing(name, "dataset")
    return [local_file(file.relative_to(path).as_posix(), file) for file in _files_below(path)]


def _files_below(folder: Path, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """Yield all files below a folder. Links are followed, and names that begin with `.` or `_` are left out. Raise
    `OSError` if a folder cannot be read, or if links form a loop."""
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


def local_file(relative: str, path: Path) -> SourceFile:
    """Return the `SourceFile` of a path on this disk. `relative` is its path in the source."""
    status = path.stat()
    return SourceFile(relative, os.path.abspath(path), status.st_size, status.st_mtime_ns)


def _is_data(path: str) -> bool:
    return not any(part.startswith((".", "_")) for part in path.split("/"))


Row = Mapping[str, Any]
Rows = Callable[[], Iterable[Row]]
SOURCES = "sources"  # collection of the cache


@dataclass(frozen=True)
class Files:
    """Tables of a data set in memory, by file name: each has the name that the user knows, and the rows. For each
    column name in the files, `columns` has the name that the user knows."""

    tables: Mapping[str, tuple[str, Rows]]
    columns: Mapping[str, str] = field(default_factory=dict)

    def write(self, name: str) -> Path:
        """Write the files to the cache atomically, unless they exist there. Return their folder, `sources/DIGEST/NAME`;
        DIGEST is the digest of their content."""
        digest = hashlib.sha256()
        for file in self.tables:
            digest.update(json.dumps(file).encode())
            for line in self._lines(file):
                digest.update(line)
        folder = cache_folder() / SOURCES / digest.hexdigest()[:32] / name

        def write() -> None:
            with committed_directory(folder, {"kind": "source", "name": name}, replace=folder.exists()) as aside:
                for file in self.tables:
                    (aside / file).parent.mkdir(exist_ok=True)
                    with (aside / file).open("wb") as stream:
                        stream.writelines(self._lines(file))

        make_once(folder, write)
        hold(folder.parent, self)
        return folder

    def name_tables(self, error: DataError, folder: Path) -> None:
        """Change an error about a file in the folder: name the user's table from which the file was written."""

        def renamed(text: str | None) -> str | None:
            if text is None:
                return None
            for file in sorted(self.tables, key=len, reverse=True):
                text = text.replace(f"{folder}/{file}", self.tables[file][0])
            for name, column in self.columns.items():
                text = text.replace(f'"{name}"', f'"{column}"')
            return text.replace(str(folder), "the data")

        error.args = tuple(map(renamed, error.args))

    def _lines(self, file: str) -> Iterator[bytes]:
        title, rows = self.tables[file]
        for number, row in enumerate(rows(), 1):
            try:
                yield json.dumps({key: json_value(value) for key, value in row.items()}).encode() + b"\n"
            except (TypeError, ValueError) as error:
                raise DataError(f"holds {error}", f"{title} row {number}", "convert it to a text or number") from error


def json_value(value: Any) -> Any:
    """Convert a value to a type of JSON. Missing values (NaN, NA) become null."""
    if hasattr(value, "tolist"):  # an array or a number of NumPy
        value = value.tolist()
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, str | int | None):
        return value
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    raise TypeError(f"a value of type {type(value).__name__}")
