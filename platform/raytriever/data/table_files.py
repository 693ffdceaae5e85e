"""Rows in memory as files of a data set, written once to the cache under the digest of their content."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raytriever.errors import DataError
from raytriever.store.cache import hold
from raytriever.store.commit import cache_folder, committed_directory
from raytriever.store.parts import make_once

Row = Mapping[str, Any]
Rows = Callable[[], Iterable[Row]]
SOURCES = "sources"  # of the cache


@dataclass(frozen=True)
class Files:
    """Files of a data set by their names.

    Args:
        rows: Rows of each file.
        titles: Titles of each file in errors.
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

        def write() -> None:
            with committed_directory(folder, {"kind": "source", "name": name}, replace=folder.exists()) as aside:
                for file in self.rows:
                    (aside / file).parent.mkdir(exist_ok=True)
                    with (aside / file).open("wb") as stream:
                        stream.writelines(self._lines(file))

        make_once(folder, write)
        hold(folder.parent, self)
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

        error.args = tuple(map(renamed, error.args))

    def _lines(self, file: str) -> Iterator[bytes]:
        title = self.titles.get(file, file)
        for number, row in enumerate(self.rows[file](), 1):
            try:
                yield json.dumps({key: json_value(value) for key, value in row.items()}).encode() + b"\n"
            except (TypeError, ValueError) as error:
                raise DataError(f"holds {error}", f"{title} row {number}", "give texts and whole numbers") from error


def json_value(value: Any) -> Any:
    """Return a value as JSON holds it; what is missing (NaN, NA) becomes null."""
    if isinstance(value, str | int | None):
        return value
    if hasattr(value, "tolist"):  # numpy
        value = value.tolist()
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {str(key): json_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(one) for one in value]
    if isinstance(value, str | int | None):
        return value
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    raise TypeError(type(value).__name__)
