"""Documents of a folder: what is read, and the names of what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytriever.core.errors import DataError
from raytriever.data.documents.folder_of_documents import DocumentFolder


def listed(folder: Path | str) -> tuple[list[str], dict[str, str]]:
    found = DocumentFolder.of(str(folder))
    return [file.path for file in found.files], found.left_out


def test_documents_of_site_generators_are_read_and_others_are_named(tmp_path: Path) -> None:
    names = ["_posts/2024-01-01-a.markdown", "_index.md", "_site/a.html", ".git/x.md", "b.mdx", "old/c.rst", "d.doc"]
    for name in [*names, ".hidden.md", "~$d.docx"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    reasons = {
        ".git": "is hidden; rename it, or import it by itself",
        ".hidden.md": "is hidden; rename it, or import it by itself",
        "_site": "is a site generator's; rename it, or import it by itself",
        "d.doc": "is a word processor's, which is not read; save it as .docx",
        "~$d.docx": "is a lock file of Office; close the document",
        "old/c.rst": "is reStructuredText, which is not read; convert it to Markdown, for example with pandoc",
    }
    files = ["_index.md", "_posts/2024-01-01-a.markdown", "b.mdx", "d.doc", "old/c.rst"]
    assert listed(tmp_path) == (files, reasons)
    assert listed(f"file://{tmp_path}") == (files, reasons)


def test_a_link_is_followed_within_the_folder_only(tmp_path: Path) -> None:
    folder, private = tmp_path / "docs", tmp_path / "private"
    for path in (folder / "guide", private):
        path.mkdir(parents=True)
        (path / "a.md").write_text("text")
    (folder / "key.txt").symlink_to(private / "a.md")
    (folder / "all").symlink_to(private)
    (folder / "again.md").symlink_to("guide/a.md")
    (folder / "latest").symlink_to("guide")
    (folder / "guide/circle").symlink_to("../guide")
    (folder / "lost.md").symlink_to("nothing.md")
    (folder / "through.md").symlink_to("all/a.md")
    (tmp_path / "linked").symlink_to("docs")
    out = "is a link to a path outside the folder; copy the file into the folder"
    circle = "is a link to a folder that contains it; remove it"
    reasons = {
        "all": out,
        "key.txt": out,
        "through.md": out,
        "guide/circle": circle,
        "latest/circle": circle,
        "lost.md": "is a link to a path that does not exist; remove it",
    }
    assert listed(folder) == (["again.md", "guide/a.md", "latest/a.md"], reasons)
    assert listed(tmp_path / "linked") == listed(folder)


def test_one_file_and_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no files; give a folder with documents"):
        listed(tmp_path)
    (tmp_path / "a.md").touch()
    assert listed(tmp_path / "a.md") == (["a.md"], {})
