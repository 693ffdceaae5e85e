"""A prepared data set in an object store, fetched to this node's cache on first use.

Training reads documents by position in no order; so every node keeps a whole copy beside its processes rather than
asking the store for each. Every file is held to the manifest's size and digest while it is copied, and goes nowhere but
below the cache, whatever the manifest calls it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from raytriever.data.content import check_directory
from raytriever.data.files import is_uri, open_raw
from raytriever.data.prepared import DatasetMeta
from raytriever.errors import DataError, StorageError
from raytriever.reading.structured import MOST_JSON_BYTES, conform, parse_json
from raytriever.storage import MANIFEST, Manifest, cache_folder, committed_directory, disk_errors, one_writer
from raytriever.terminal import warn

_BLOCK = 1 << 22
_REMEDY = "copy the prepared data set there again"


def fetched(uri: str) -> Path | None:
    """Where the prepared data set of a URI stands on this node; None if the URI holds no prepared one.

    Raises:
        DataError: the store cannot be read.
        StorageError: a file is not what the manifest says, or cannot be written.
    """
    if not is_uri(uri):
        return None
    try:
        with open_raw(_below(uri, MANIFEST)) as stream:
            written = stream.read(MOST_JSON_BYTES)
        manifest = parse_json(written, _below(uri, MANIFEST), Manifest, _REMEDY)
    except (DataError, StorageError):
        return None
    if manifest["meta"].get("kind") != "dataset":
        return None
    meta = conform(manifest["meta"], _below(uri, MANIFEST), DatasetMeta, _REMEDY)
    files = {name: (entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()}
    for name in (*files, meta["name"]):
        _check_name(name, uri)
    place = cache_folder() / "datasets" / f"{meta['name']}-{hashlib.sha256(written).hexdigest()[:16]}"
    if _is_whole(place):
        return place
    with one_writer(place, wait=True, report=warn):
        if not _is_whole(place):  # another command has not fetched it meanwhile
            if place.exists():
                warn(f"{place}: is torn or has no manifest; fetching it again")
            with committed_directory(place, meta, replace=place.exists()) as aside:
                for name, (size, digest) in files.items():
                    _copy(_below(uri, name), aside / name, size, digest)
    return place


def _is_whole(place: Path) -> bool:
    try:
        check_directory(place)
    except StorageError:
        return False
    return True


def _check_name(name: str, uri: str) -> None:
    """Refuse what would lead out of the folder in which it is to stand."""
    parts = name.split("/")
    if not name or "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise StorageError(
            f"names a file {name!r}, which is none below it", _below(uri, MANIFEST), "copy it there again"
        )


def _copy(where: str, file: Path, size: int, digest: str) -> None:
    state, left = hashlib.sha256(), size
    with disk_errors(file), open_raw(where) as source:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as target:
            while left >= 0 and (block := source.read(_BLOCK)):
                left -= len(block)
                state.update(block)
                target.write(block)
    if left or state.hexdigest() != digest:
        raise StorageError("is not what the manifest says it is", where, "copy the prepared data set there again")


def _below(uri: str, name: str) -> str:
    """A file under a URI that may carry a query."""
    root, _, query = uri.partition("?")
    return f"{root.rstrip('/')}/{name}" + (f"?{query}" if query else "")
