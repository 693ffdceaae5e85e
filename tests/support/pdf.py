"""PDF files of a few pages, written by pypdf."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject


def write_pdf(
    file: Path,
    pages: Sequence[str],
    title: str = "",
    outline: Sequence[tuple[str, int]] = (),
    password: str | None = None,
) -> None:
    """Write pages of lines in Helvetica; an empty page has no text, like a scanned one.

    Args:
        file: the path.
        pages: text of each page.
        title: in the metadata.
        outline: entries of the outline, each with the index of its page.
        password: encrypts the file.
    """
    writer: Any = PdfWriter()
    for text in pages:
        page = writer.add_blank_page(612, 792)
        if text:
            page[NameObject("/Resources")] = _resources()
            lines = " T* ".join(f"({line}) Tj" for line in text.split("\n"))
            contents = DecodedStreamObject()
            contents.set_data(f"BT /F1 12 Tf 14 TL 72 720 Td {lines} ET".encode())
            page[NameObject("/Contents")] = writer._add_object(contents)
    for name, page_index in outline:
        writer.add_outline_item(title=name, page_number=page_index)
    if title:
        writer.add_metadata({"/Title": title})
    if password is not None:
        writer.encrypt(password, algorithm="RC4-128")
    writer.write(file)


def write_endless_pdf(file: Path) -> None:
    """Write a file of 100 kB whose 500 pages share a stream of blanks. Reading a page takes a second."""
    writer: Any = PdfWriter()
    contents = DecodedStreamObject()
    contents.set_data(b"BT /F1 12 Tf ( ) Tj ET " * 20_000)
    stream = writer._add_object(contents.flate_encode())
    for _ in range(500):
        page = writer.add_blank_page(612, 792)
        page[NameObject("/Resources")] = _resources()
        page[NameObject("/Contents")] = stream
    writer.write(file)


def _resources() -> Any:
    names = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    font = DictionaryObject({NameObject(key): NameObject(value) for key, value in names.items()})
    return DictionaryObject({NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})})
