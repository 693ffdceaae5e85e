"""Sections of a document: text under a path of headings, with an anchor that is unique in the document."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

_LONGEST_HEADING = 200  # characters


@dataclass(frozen=True)
class Section:
    """Text under a path of headings, the outermost first, with a blank line between paragraphs.

    The anchor is that of the heading, unique in the document; both are empty for text before the first heading.
    """

    headings: tuple[str, ...]
    anchor: str
    text: str


@dataclass(frozen=True)
class ParsedDocument:
    """Title of a document, which may be empty, and its sections that hold text, in order."""

    title: str
    sections: tuple[Section, ...]


@dataclass
class Outline:
    """Collector of headings and blocks in the order of the document."""

    title: str = ""
    _sections: list[Section] = field(default_factory=list)
    _path: list[tuple[int, str]] = field(default_factory=list)
    _anchor: str = ""
    _anchors: Counter[str] = field(default_factory=Counter)
    _blocks: list[str] = field(default_factory=list)

    def add_heading(self, level: int, text: str, anchor: str = "") -> None:
        """Begin a section. Level 1 is the outermost; it ends all sections of the same and of larger levels.

        `anchor` is the document's own; by default one is made of the text.
        """
        text = squeeze(text)[:_LONGEST_HEADING]
        if not text:
            return
        self._end_section()
        self._path = [(above, title) for above, title in self._path if above < level] + [(level, text)]
        self._anchor = self._unique(clean_anchor(anchor) or slug(text))
        self.title = self.title or text

    def add_block(self, text: str) -> None:
        """Add a paragraph, a list item, a row of a table or a block of code; an empty one adds nothing."""
        if text.strip():
            self._blocks.append(text.strip("\n").rstrip())

    def add_page(self, number: int, headings: tuple[str, ...], text: str) -> None:
        """Add a page of a document of pages as a section; `number` counts from 1."""
        self._sections.append(Section(headings, f"page={number}", text))

    def finish(self) -> ParsedDocument:
        """Return the document."""
        self._end_section()
        return ParsedDocument(squeeze(self.title)[:_LONGEST_HEADING], tuple(self._sections))

    def _end_section(self) -> None:
        if self._blocks:
            headings = tuple(title for _, title in self._path)
            self._sections.append(Section(headings, self._anchor, "\n\n".join(self._blocks)))
            self._blocks = []

    def _unique(self, anchor: str) -> str:
        """Return the anchor, with the number that GitHub and Sphinx append where it was used before."""
        number = self._anchors[anchor]
        self._anchors[anchor] += 1
        return self._unique(f"{anchor}-{number}") if number else anchor


def squeeze(text: str) -> str:
    """Return a text on one line, with single spaces."""
    return " ".join(text.split())


def slug(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading: lower case, hyphens for spaces, no punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") or "section"


def clean_anchor(anchor: str) -> str:
    """Return an anchor of a document without white space, `#` and control characters."""
    return re.sub(r"[\s#\x00-\x1f\x7f]+", "-", anchor.strip())[:100]
