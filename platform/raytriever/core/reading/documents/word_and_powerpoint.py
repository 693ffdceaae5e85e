"""Sections of Word (mammoth) and PowerPoint files.

A slide is a section under its title with the anchor `slide=N`; its notes are part of its text. Pictures, charts,
formulas and linked files are not read. python-pptx is not used: it would load all media of a presentation into memory.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections.abc import Iterator
from typing import BinaryIO
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from raytriever.core.errors import DataError
from raytriever.core.reading.documents.markdown_html_pdf import parse_html
from raytriever.core.reading.documents.sections import Outline, ParsedDocument, squeeze

_OLE = bytes.fromhex("d0cf11e0a1b11ae1")  # first bytes of encrypted files, and of files of Office 2003 or earlier
_STYLES = "p[style-name='Title'] => h1:fresh\np[style-name^='toc '] => !\np[style-name='TOC Heading'] => !"
_LINKS = re.compile(r'<a id="[^"]*"></a>|<a href="#(?:foot|end)note-ref-[^"]*">↑</a>')
_FIRST_ROW = re.compile(r"<table><tr>.*?</tr>(?=<tr>)", re.DOTALL)
_CELL = re.compile(r"(?<=<)td\b|(?<=</)td\b")
_TITLES = ("title", "ctrTitle")
_NO_TEXT = ("sldNum", "dt", "ftr", "hdr")  # placeholders that repeat on every slide: number, date, footer, header


def check_office(stream: BinaryIO, where: str) -> None:
    """Raise `DataError` unless a file is a ZIP archive of Office; other files are encrypted, old or damaged."""
    begin = stream.read(len(_OLE))
    if begin == _OLE:
        ending = where.rpartition(".")[2]
        what = "is encrypted, or a file of Office 2003 or earlier"
        raise DataError(what, where, f"save a copy as .{ending.lower()} without a password")
    if not zipfile.is_zipfile(stream):
        raise DataError("is damaged", where, "open it in its program, and save it again")
    stream.seek(0)


def parse_word(stream: BinaryIO) -> ParsedDocument:
    """Return the sections of a Word file, without its table of contents; the first row of a table is its header."""
    import mammoth

    html = mammoth.convert_to_html(
        io.BytesIO(stream.read()),  # mammoth uses the name of a stream as a path; a BytesIO has no name
        style_map=_STYLES,
        include_embedded_style_map=False,
        convert_image=lambda _: [],
    ).value
    return parse_html(_FIRST_ROW.sub(lambda row: _CELL.sub("th", row[0]), _LINKS.sub("", html)))


def parse_slides(stream: BinaryIO) -> ParsedDocument:
    """Return the slides of a PowerPoint file in their order."""
    outline = Outline()
    with zipfile.ZipFile(stream) as archive:
        for number, slide in enumerate(_slides(archive), 1):
            parts = _related(archive, slide)
            shapes = [(_placeholder(shape), shape) for shape in _shapes(_xml(archive, slide))]
            title = squeeze(" ".join(text for kind, shape in shapes if kind in _TITLES for text in _texts(shape)))
            before = outline.title
            outline.add_heading(1, title or f"Slide {number}", f"slide={number}")
            outline.title = before or title
            for kind, shape in shapes:
                if kind not in (*_TITLES, *_NO_TEXT):
                    _add_shape(outline, shape, archive, parts)
            notes = [path for kind, path in parts.values() if kind == "notesSlide"]
            for shape in (shape for path in notes for shape in _shapes(_xml(archive, path))):
                if _placeholder(shape) == "body":
                    _add_shape(outline, shape, archive, parts)
            if not outline.blocks:
                outline.add_block(title)
    return outline.finish()


def _add_shape(outline: Outline, shape: Element, archive: zipfile.ZipFile, parts: dict[str, tuple[str, str]]) -> None:
    for table in shape.iterfind(".//{*}tbl"):
        properties = table.find("{*}tblPr")
        has_header = properties is not None and properties.get("firstRow") in ("1", "true")
        for number, row in enumerate(table.iterfind("{*}tr")):
            cells = [squeeze(" ".join(_texts(cell))) for cell in row.iterfind("{*}tc")]
            outline.add_row(" | ".join(cells) if any(cells) else "", has_header and number == 0)
        outline.end_table()
        return
    diagram = shape.find(".//{*}relIds")  # SmartArt, whose texts are in another file of the archive
    if diagram is not None:
        ids = {name.rpartition("}")[2]: value for name, value in diagram.items()}
        shape = _xml(archive, parts[ids["dm"]][1])
    for text in _texts(shape):
        outline.add_block(text)


def _slides(archive: zipfile.ZipFile) -> Iterator[str]:
    presentation = next(path for kind, path in _related(archive, "").values() if kind == "officeDocument")
    parts = _related(archive, presentation)
    for slide in _xml(archive, presentation).iterfind("{*}sldIdLst/{*}sldId"):
        yield next(parts[value][1] for name, value in slide.items() if name.endswith("}id"))


def _related(archive: zipfile.ZipFile, part: str) -> dict[str, tuple[str, str]]:
    """Return, by id, the kind and the path of each file of the archive to which `part` refers. Skip web links."""
    folder, name = posixpath.split(part)
    path = posixpath.join(folder, "_rels", f"{name}.rels")
    return {
        element.get("Id", ""): (
            element.get("Type", "").rpartition("/")[2],
            posixpath.normpath(posixpath.join("/", folder, element.get("Target", ""))).lstrip("/"),
        )
        for element in (list(_xml(archive, path)) if path in archive.NameToInfo else [])
        if element.get("TargetMode") != "External"
    }


def _xml(archive: zipfile.ZipFile, path: str) -> Element:
    with archive.open(path) as stream:
        return ElementTree.parse(stream).getroot()


def _shapes(element: Element) -> Iterator[Element]:
    """Yield the shapes of a slide, including those in groups. Fallback shapes for older programs are left out."""
    for child in element:
        name = child.tag.rpartition("}")[2]
        if name in ("sp", "graphicFrame"):
            yield child
        elif name != "Fallback":
            yield from _shapes(child)


def _placeholder(shape: Element) -> str:
    placeholder = shape.find("{*}nvSpPr/{*}nvPr/{*}ph")
    return "" if placeholder is None else placeholder.get("type", "body")


def _texts(shape: Element) -> Iterator[str]:
    """Yield the text of each paragraph of a shape, unless it is empty."""
    for paragraph in shape.iterfind(".//{*}p"):
        nodes = ((node.tag.rpartition("}")[2], node.text or "") for node in paragraph.iter())
        text = "".join(text if name == "t" else " " for name, text in nodes if name in ("t", "br", "tab"))
        if text.strip():
            yield text
