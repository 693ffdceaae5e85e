"""Pages of a PDF file as sections (pypdf), under the titles of its outline.

The anchor of a page is `page=N`, which PDF viewers open. Pictures are not read: a scanned file has no text.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from raytriever.errors import DataError
from raytriever.reading.documents.sections import Outline, ParsedDocument, squeeze

_HYPHEN = re.compile(r"(\w)-\n(?=[a-zß-öø-ÿ])")
_MOST_PAGES = 20_000


def parse_pdf(stream: BinaryIO, where: str) -> ParsedDocument:
    """Return the pages with their text. Raise `DataError` if the file is encrypted, has no text, or has too many
    pages."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it reports each oddity of a file that it can read
    reader = PdfReader(stream)
    if reader.is_encrypted:
        remedy = "save a copy without password (`qpdf --decrypt`)"
        try:
            is_open = bool(reader.decrypt(""))
        except DependencyError:  # a cipher that pypdf does not have itself
            is_open = False
        if not is_open:
            raise DataError("is encrypted", where, remedy)
    if len(reader.pages) > _MOST_PAGES:
        raise DataError(f"has {len(reader.pages):,} pages, more than {_MOST_PAGES:,}", where, "split it")
    outline = Outline()
    titles = dict(_titles(reader))
    path: list[tuple[int, str]] = []
    for number, page in enumerate(reader.pages):
        for level, title in titles.get(number, ()):
            path = [(above, text) for above, text in path if above < level] + [(level, title)]
        text = _HYPHEN.sub(r"\1", page.extract_text() or "").strip()
        if text:
            outline.add_page(number + 1, tuple(title for _, title in path), text)
    document = outline.finish()
    if not document.sections:
        raise DataError("has no text: it is scanned, or empty", where, "recognise its text first (`ocrmypdf`)")
    info = reader.metadata
    title = squeeze(str(info.title)) if info is not None and info.title else ""
    return ParsedDocument(title or document.title, document.sections)


def _titles(reader: Any) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """Yield, for each page at which entries of the outline begin, the level and the title of these."""
    pages: dict[int, list[tuple[int, str]]] = {}
    waiting = [(entry, 1) for entry in reversed(reader.outline)]
    while waiting:
        entry, level = waiting.pop()
        if isinstance(entry, list):
            waiting += [(below, level + 1) for below in reversed(entry)]
            continue
        page = reader.get_destination_page_number(entry)
        title = squeeze(str(entry.title or ""))
        if page is not None and page >= 0 and title:
            pages.setdefault(page, []).append((level, title[:200]))
    yield from pages.items()
