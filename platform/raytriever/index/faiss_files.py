"""FAISS's indexes as files. FAISS trusts what it reads, so a file is read only from a folder whose digests were held
against its manifest (`storage.read_manifest`)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from raytriever.errors import StorageError
from raytriever.storage import disk_errors

FILE = "index.faiss"
# The stubs that come with it know a part of it.
faiss: Any = import_module("faiss")


def write_faiss(index: Any, folder: Path) -> None:
    """Write an index into a folder.

    Raises:
        StorageError: it cannot be written.
    """
    with disk_errors(folder):
        try:
            faiss.write_index(index, str(folder / FILE))
        except RuntimeError as error:
            raise StorageError("FAISS cannot write its index", str(folder), "is the disk full?") from error


def read_faiss(folder: Path, shape: tuple[int, ...]) -> Any:
    """Read an index whose digest was checked, over embeddings of this shape.

    Raises:
        StorageError: this FAISS cannot read it, or it is of other embeddings.
    """
    try:
        index = faiss.read_index(str(folder / FILE))
    except RuntimeError as error:
        raise StorageError("this FAISS cannot read the index", str(folder), "build it again") from error
    if (index.ntotal, index.d) != shape:
        reason = f"holds {index.ntotal:,} vectors of width {index.d}, expected {shape[0]:,} of width {shape[1]}"
        raise StorageError(reason, str(folder / FILE), "build the index again")
    return index
