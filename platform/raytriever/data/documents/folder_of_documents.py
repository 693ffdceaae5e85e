"""Documents of a folder or URI: the readable files, and the skipped names, each with the reason.

Hidden names, and folders of site generators, are skipped. A symbolic link is followed only if its
target is in the folder, because an archive from somebody else must not turn private files into passages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from raytriever.core.errors import DataError
from raytriever.core.paths import DOCUMENTS, expanded
from raytriever.core.reading.documents.read_document import OTHER_KINDS, SAVED_AS, ending_of
from raytriever.core.store.object_stores import LOCAL, is_uri
from raytriever.data.data_sources import SourceFile, list_remote, local_file

# Output, templates and data of Jekyll, Sphinx and Hugo. Other folders with `_`, such as `_posts`, hold documents.
_OF_GENERATORS = {
    *("_site", "_build", "_static", "_templates", "_layouts", "_includes", "_sass", "_data", "_assets", "_sources")
}


@dataclass
class DocumentFolder:
    """Files of a folder, sorted by path, and `left_out`, the skipped names, each with the reason. `where` is the
    absolute path or URI of the folder."""

    where: str
    files: list[SourceFile] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str) -> DocumentFolder:
        """List a folder, or a URI of `pyarrow.fs` or of the Hugging Face hub. Raise `DataError` if it does not
        exist, cannot be reached, or has no file."""
        if is_uri(name):
            where, listed = list_remote(name)
            found = cls(where)
            for file in listed:
                if left_out := next(_left_out_parents(file.path), None):
                    found.left_out[left_out[0]] = left_out[1]
                else:
                    found._add(file)
        else:
            folder = Path(expanded(unquote(name[len(LOCAL) :]) if name.startswith(LOCAL) else name))
            found = cls(os.path.abspath(folder))
            if folder.is_dir():
                found._walk(folder, "", (os.path.realpath(folder),))
            elif folder.exists():
                found._add(local_file(folder.name, folder))
            else:
                raise DOCUMENTS.error_of_missing(name)
        if not found.files and not found.left_out:
            raise DataError("has no files", name, "give a folder with documents")
        found.files.sort(key=lambda file: file.path)
        return found

    def _walk(self, folder: Path, below: str, above: tuple[str, ...]) -> None:
        """Add the files of a folder. `above` has the real paths of the folders that contain it, and its own."""
        for name in sorted(os.listdir(folder)):
            path, relative = folder / name, below + name
            real = os.path.realpath(path)
            if reason := _reason_of_name(name):
                self.left_out[relative] = reason
            elif path.is_symlink() and not Path(real).is_relative_to(above[0]):
                self.left_out[relative] = "is a link to a path outside the folder; copy the file into the folder"
            elif not os.path.lexists(real):
                self.left_out[relative] = "is a link to a path that does not exist; remove it"
            elif path.is_dir():
                if real in above:
                    self.left_out[relative] = "is a link to a folder that contains it; remove it"
                else:
                    self._walk(path, f"{relative}/", (*above, real))
            else:
                self._add(local_file(relative, path))

    def _add(self, file: SourceFile) -> None:
        if kind := OTHER_KINDS.get(ending_of(file.path)):
            saved = SAVED_AS.get(ending_of(file.path))
            remedy = f"save it as {saved}" if saved else "convert it to Markdown, for example with pandoc"
            self.left_out[file.path] = f"is {kind}, which cannot be read; {remedy}"
        self.files.append(file)


def _left_out_parents(path: str) -> Iterator[tuple[str, str]]:
    parts = path.split("/")
    for number, name in enumerate(parts, 1):
        if reason := _reason_of_name(name):
            yield "/".join(parts[:number]), reason


def _reason_of_name(name: str) -> str:
    if name.startswith("."):
        return "is hidden; rename it, or import it by itself"
    if name.startswith("~$"):
        return "is a lock file of Office; close the document"
    return "belongs to a site generator; rename it, or import it by itself" if name in _OF_GENERATORS else ""
