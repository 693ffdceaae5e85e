"""Documents of a folder, and the passages of one: their size, overlap, boundaries, titles and ids."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from raytriever.core.errors import DataError
from raytriever.core.reading.documents.sections import ParsedDocument, Section, TableRows
from raytriever.data.documents.folder_of_documents import DocumentFolder
from raytriever.data.documents.passage_chunking import Chunker, passage_id


def chunker(tokens: int, overlap: int) -> Chunker:
    """A divider that counts words."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Chunker(tokenizer.to_str(), tokens, overlap)


def document(*texts: str, title: str = "Pump") -> ParsedDocument:
    return ParsedDocument(title, tuple(Section(("Pump", f"H{i}"), f"h{i}", text) for i, text in enumerate(texts)))


def test_windows_cover_the_section_and_repeat_the_overlap() -> None:
    words = [f"w{number}" for number in range(1000)]
    passages = list(chunker(64, 8).passages("a.md", document(" ".join(words))))
    texts = [passage.text.split() for passage in passages]
    assert texts[0] == words[:59]  # 64 less 3 of the title and 2 that are reserved
    for before, after in pairwise(texts):
        assert after[0] in before[-8:]
    assert [text[-1] for text in texts][-1] == words[-1]
    assert {word for text in texts for word in text} == set(words)
    assert max(passage.tokens for passage in passages) == 62


def test_windows_end_with_sentences_and_paragraphs() -> None:
    sentence = "one two three four five six seven eight nine ten. "
    passages = list(chunker(40, 0).passages("a.md", document(sentence * 3 + "\n\n" + sentence * 5)))
    assert [passage.text.count("one") for passage in passages] == [3, 3, 2]
    assert all(passage.text.endswith("ten.") for passage in passages)


def test_sections_are_not_mixed_and_ids_have_path_and_anchor() -> None:
    passages = list(chunker(32, 0).passages("b/a file.md", document("w " * 40, "short")))
    assert [passage.id for passage in passages] == ["b/a%20file.md#h0", "b/a%20file.md#h0:2", "b/a%20file.md#h1"]
    assert {passage.title for passage in passages} == {"Pump > H0", "Pump > H1"}
    assert [passage.heading for passage in passages] == ["H0", "H0", "H1"]


def test_a_document_without_headings_has_the_name_of_its_file() -> None:
    [passage] = chunker(32, 0).passages("b/notes.txt", ParsedDocument("", (Section((), "", "text"),)))
    assert (passage.id, passage.title) == ("b/notes.txt", "notes")


def test_a_long_title_leaves_room_for_the_text() -> None:
    [first, *_] = chunker(40, 0).passages("a.md", document("w " * 100, title="t " * 90))
    assert len(first.title.split()) == 10
    assert len(first.text.split()) == 28


def test_a_section_of_any_length_is_divided() -> None:
    passages = list(chunker(256, 32).passages("a.txt", document("word " * 50_000)))
    assert sum(len(passage.text.split()) for passage in passages) >= 50_000
    assert len({passage.id for passage in passages}) == len(passages)


def test_different_paths_and_anchors_have_different_ids() -> None:
    parts = [("a", "b", 2), ("a", "b:2", 1), ("a#b", "", 2), ("a#b:2", "", 1), ("a%23b", "", 2), ("a b", "", 1)]
    ids = [passage_id(*part) for part in parts]
    assert len(set(ids)) == len(ids)
    assert all(len(name.split()) == 1 for name in ids)


def test_each_piece_of_a_table_has_its_header() -> None:
    rows = [f"row {number} {number * 7}" for number in range(60)]
    before, header = "Prices of all.", "part price"
    text = "\n\n".join([before, header, *rows, "After the table."])
    start = text.index(rows[0])
    table = TableRows(start, text.index(rows[-1]) + len(rows[-1]), header)
    for overlap in (0, 7):
        section = Section((), "t", text, (table,))
        passages = list(chunker(40, overlap).passages("a.md", ParsedDocument("Pump", (section,))))
        assert len(passages) > 3
        assert passages[0].text.startswith(f"{before}\n\n{header}\n\nrow 0 0")
        for passage in passages[1:]:
            assert passage.text.startswith(f"{header}\n\nrow ")
            assert len(passage.text.split()) <= passage.tokens <= 40
        assert {line for passage in passages for line in passage.text.split("\n\n")} == set(text.split("\n\n"))


def test_a_header_takes_a_quarter_of_a_passage_at_most() -> None:
    header, rows = "h " * 100, "\n\n".join(["r " * 20] * 10)
    section = Section((), "t", rows, (TableRows(0, len(rows), header),))
    for passage in chunker(64, 8).passages("a.md", ParsedDocument("Pump", (section,))):
        assert passage.text.count("h ") <= 15
        assert len(passage.text.split()) <= 64


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
        "_site": "belongs to a site generator; rename it, or import it by itself",
        "d.doc": "is a text of a word processor, which cannot be read; save it as .docx",
        "~$d.docx": "is a lock file of Office; close the document",
        "old/c.rst": "is reStructuredText, which cannot be read; convert it to Markdown, for example with pandoc",
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
