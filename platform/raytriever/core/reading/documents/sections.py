"""Sections of a document: text under a path of headings, with an anchor that is unique in the document."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from raytriever.core.reading.characters import plain_characters

_LONGEST_HEADING = 200  # characters
_SEPARATOR = "\n\n"


@dataclass(frozen=True)
class TableRows:
    """Consecutive rows of a table: their range of characters in a section's text, and the table's header row."""

    start: int
    end: int
    header: str

    def moved(self, characters: int) -> TableRows:
        """Return the rows with `start` and `end` moved by a number of characters."""
        return TableRows(self.start + characters, self.end + characters, self.header)


@dataclass(frozen=True)
class Section:
    """Text under a path of headings, the outermost first. The anchor is that of the last heading, unique in the
    document. For text before the first heading, `headings` and `anchor` are empty. Blank lines separate paragraphs."""

    headings: tuple[str, ...]
    anchor: str
    text: str
    tables: tuple[TableRows, ...] = ()


@dataclass(frozen=True)
class ParsedDocument:
    """Title of a document, which may be empty, and the sections that have text, in order."""

    title: str
    sections: tuple[Section, ...]


@dataclass
class Outline:
    """Collector of headings and blocks in the order of the document. It normalizes their characters."""

    title: str = ""
    blocks: list[str] = field(default_factory=list)  # texts of the current section's blocks
    _sections: list[Section] = field(default_factory=list)
    _path: list[tuple[int, str]] = field(default_factory=list)
    _anchor: str = ""
    _anchors: Counter[str] = field(default_factory=Counter)
    _header: list[str] = field(default_factory=list)
    _in_body: bool = False
    _headers: dict[int, str] = field(default_factory=dict)  # table header of each block that is a table row, by index

    def add_heading(self, level: int, text: str, anchor: str = "") -> None:
        """Begin a section. Level 1 is the outermost. The heading ends all sections of the same and of larger levels.
        `anchor` is the heading's own anchor in the document; by default it is made from the text."""
        text = squeeze(plain_characters(text))[:_LONGEST_HEADING]
        if not text:
            return
        self._end_section()
        self._path = [(above, title) for above, title in self._path if above < level] + [(level, text)]
        own = re.sub(r"[\s#\x00-\x1f\x7f]+", "-", anchor.strip())[:100]
        self._anchor = self._unique(own or slug(text))
        self.title = self.title or text

    def add_block(self, text: str) -> None:
        """Add a paragraph, a list item or a block of code. An empty text adds nothing."""
        text = plain_characters(text)
        if text.strip():
            self.blocks.append(text.strip("\n").rstrip())

    def add_row(self, text: str, is_header: bool) -> None:
        """Add a row of a table. After the first row that is not a header row, `is_header` is ignored."""
        before = len(self.blocks)
        self.add_block(text)
        if is_header and not self._in_body:
            self._header += self.blocks[before:]
        elif len(self.blocks) > before:
            self._in_body = True
            self._headers[before] = _SEPARATOR.join(self._header)

    def end_table(self) -> None:
        """End a table: the next row begins another table."""
        self._header, self._in_body = [], False

    def add_page(self, number: int, headings: tuple[str, ...], text: str) -> None:
        """Add a page as a section; `number` counts from 1."""
        headings = tuple(plain_characters(heading) for heading in headings)
        self._sections.append(Section(headings, f"page={number}", plain_characters(text)))

    def finish(self) -> ParsedDocument:
        """Return the document."""
        self._end_section()
        return ParsedDocument(squeeze(plain_characters(self.title))[:_LONGEST_HEADING], tuple(self._sections))

    def _end_section(self) -> None:
        if self.blocks:
            headings = tuple(title for _, title in self._path)
            text = _SEPARATOR.join(self.blocks)
            self._sections.append(Section(headings, self._anchor, text, tuple(self._tables())))
            self.blocks, self._headers = [], {}

    def _tables(self) -> Iterator[TableRows]:
        start = 0
        rows: TableRows | None = None
        for number, block in enumerate(self.blocks):
            header, end = self._headers.get(number, ""), start + len(block)
            if rows is not None and rows.header != header:
                yield rows
                rows = None
            if header:
                rows = TableRows(rows.start if rows else start, end, header)
            start = end + len(_SEPARATOR)
        if rows is not None:
            yield rows

    def _unique(self, anchor: str) -> str:
        """Return an anchor that is unique: if it was used before, a number is appended, as GitHub and Sphinx do."""
        number = self._anchors[anchor]
        self._anchors[anchor] += 1
        return self._unique(f"{anchor}-{number}") if number else anchor


def squeeze(text: str) -> str:
    """Return a text on one line, with single spaces."""
    return " ".join(text.split())


def slug(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading: lower case, hyphens for spaces, no punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") or "section"
