"""Word and PowerPoint files, written by python-docx and python-pptx."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from typing import Any

TABLE = (("part", "price"), ("seal", "3"), ("hose", "4"))


def word_file() -> bytes:
    """Return a document with headings, a list, a line break, a bookmark, and a table with two paragraphs in a cell."""
    from docx import Document
    from docx.oxml import OxmlElement

    document: Any = Document()
    document.add_heading("Pump manual", 0)
    document.add_paragraph("Before any heading.").add_run().add_break()
    heading = document.add_heading("Installation", 1)
    mark = OxmlElement("w:bookmarkStart")
    mark.set("{http://schemas.openxmlformats.org/wordprocessingml/2006/main}name", "_Toc1")
    heading._p.insert(1, mark)
    document.add_paragraph("Close the valve.", style="List Number")
    document.add_heading("Prices", 2)
    table = document.add_table(len(TABLE), 2)
    fill(table)
    table.cell(1, 0).add_paragraph("ring")
    document.add_paragraph("Without tax.")
    return saved(document)


def fill(table: Any) -> None:
    """Write the cells of `TABLE`."""
    for row, texts in zip(table.rows, TABLE, strict=True):
        for cell, text in zip(row.cells, texts, strict=True):
            cell.text = text


def slide_file(titles: Sequence[str]) -> bytes:
    """Return a presentation: a slide for each title, with a text, a text in a group, a table and notes."""
    from pptx import Presentation

    deck: Any = Presentation()
    for number, title in enumerate(titles, 1):
        slide = deck.slides.add_slide(deck.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = f"Point {number}\nNext point"
        group = slide.shapes.add_group_shape()
        group.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "In a group"
        fill(slide.shapes.add_table(len(TABLE), 2, 0, 0, 9, 9).table)
        slide.notes_slide.notes_text_frame.text = f"Say {number}"
    slides = deck.slides._sldIdLst
    slides.insert(0, slides[-1])  # the order of the slides is not that of their files
    return saved(deck)


def saved(document: Any) -> bytes:
    """Return a document's bytes."""
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def with_part(raw: bytes, path: str, content: bytes | None) -> bytes:
    """Return the archive of a document with another content of a part, or without the part."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            if name != path:
                new.writestr(name, old.read(name))
        if content is not None:
            new.writestr(path, content)
    return stream.getvalue()
