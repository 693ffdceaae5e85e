"""Passages of a document: windows of tokens in each section, cut at the end of a paragraph or a sentence.

The title of a passage consists of the document's title and the headings above the passage, to give its context.
Title and text together fit the encoder. A passage that begins within a table repeats the table's header.

The id consists of the path and the section's anchor. For all but the first passage of a section, it ends in a number:
`guide/setup.md#install`, `guide/setup.md#install:2`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from raytriever.core.errors import ConfigError, setting
from raytriever.core.reading.documents.sections import ParsedDocument, Section, TableRows

_ENDS = (re.compile(r"\n\s*\n"), re.compile(r"[.!?][\"'”’)\]]*\s+|[。！？]"), re.compile(r"\s+"))
_BEGINS = _ENDS[1:]
# Maximum characters of a piece of a section: to tokenize a text, about a hundred times its memory is needed.
_MOST_CHARACTERS = 100_000
# Reserved tokens: a passage may have a few more than its window, because its first word lost the space before it.
_RESERVE = 2
_FRACTION_OF_TITLE = 4  # a title has at most a quarter of a passage's tokens
_UNSAFE = re.compile(r"[\s%#:\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Passage:
    """Passage of a section, with the innermost heading, the title, and the number of tokens of title and text."""

    id: str
    anchor: str
    heading: str
    title: str
    text: str
    tokens: int


class Chunker:
    """Tool that divides documents into passages of at most `tokens` tokens, including the title.

    The tokenizer is passed in serialized form. A passage repeats `overlap` tokens of the passage before it. Raise
    `ConfigError` if `overlap` is half or more of the tokens that the title leaves for the text."""

    def __init__(self, tokenizer: str, tokens: int, overlap: int) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_str(tokenizer)
        self.tokens, self.overlap = tokens, overlap
        smallest = self._text_tokens(tokens // _FRACTION_OF_TITLE)
        if 2 * overlap >= smallest:
            what = f"{overlap} is too many: a long title leaves {smallest} tokens for the text of a passage"
            raise ConfigError(what, setting("overlap_tokens"), f"give less than {smallest // 2}")

    def passages(self, path: str, document: ParsedDocument) -> Iterator[Passage]:
        """Yield the passages of a document; `path` is relative to the folder, with `/`."""
        stem = path.rsplit("/", 1)[-1].rsplit(".", 1)[0]
        for section in document.sections:
            title, in_title = self._title(document.title or stem, section)
            heading = section.headings[-1] if section.headings else ""
            texts = (
                text
                for piece, start in _pieces(section.text)
                for text in self._windows(piece, in_title, [table.moved(-start) for table in section.tables])
            )
            for number, (text, tokens) in enumerate(texts, 1):
                name = passage_id(path, section.anchor, number)
                yield Passage(name, section.anchor, heading, title, text, in_title + tokens)

    def _title(self, title: str, section: Section) -> tuple[str, int]:
        words = " > ".join(dict.fromkeys((title, *section.headings)))
        ends = self._offsets(words)
        if len(ends) > (most := self.tokens // _FRACTION_OF_TITLE):
            words = words[: ends[most - 1][1]].rstrip()
        return words, min(len(ends), most)

    def _windows(self, text: str, in_title: int, tables: Sequence[TableRows]) -> Iterator[tuple[str, int]]:
        """Yield windows of a text, each with its number of tokens. `tables` are the ranges of tables in the text."""
        offsets, most = self._offsets(text), self._text_tokens(in_title)
        first, begin = 0, 0
        while first < len(offsets):
            header, in_header = self._header(tables, begin, most)
            size = most - in_header
            if len(offsets) - first <= size:
                last, end = len(offsets), len(text)
            else:
                # Take the last end of a paragraph (else sentence, else word) in the second half of the window.
                end = _end(text, offsets[first + size // 2][0], offsets[first + size][0])
                last = _token_from(offsets, end, first)
            if window := text[begin:end].strip():
                yield header + window, last - first + in_header
            if end == len(text):
                return
            begin = end
            if self.overlap:
                # Within a table, the overlap consists of whole rows.
                patterns = _ENDS[:1] if _table_at(tables, end) else _BEGINS
                begin = _begin(text, offsets[max(first + 1, last - self.overlap)][0], end, patterns)
            first = max(first + 1, _token_from(offsets, begin, first))  # a character's tokens have equal offsets

    def _header(self, tables: Sequence[TableRows], position: int, most: int) -> tuple[str, int]:
        table = _table_at(tables, position)
        if table is None:
            return "", 0
        ends = self._offsets(table.header)
        header = table.header
        if len(ends) > (room := most // _FRACTION_OF_TITLE):
            header = header[: ends[room][0]].rstrip()
        return f"{header}\n\n", min(len(ends), room) + 1

    def _text_tokens(self, in_title: int) -> int:
        return max(2, self.tokens - in_title - _RESERVE)

    def _offsets(self, text: str) -> list[tuple[int, int]]:
        encoding: Any = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.offsets


def passage_id(path: str, anchor: str, number: int = 1) -> str:
    """Return the id of a passage of a section; white space, `%`, `#` and `:` in path and anchor are escaped. Ids have
    no white space, because white space separates the columns of TREC files. Two passages never have the same id."""

    def escaped(text: str) -> str:
        return _UNSAFE.sub(lambda match: quote(match[0], safe=""), text)

    name = escaped(path) + (f"#{escaped(anchor)}" if anchor else "")
    return f"{name}:{number}" if number > 1 else name


def _pieces(text: str) -> Iterator[tuple[str, int]]:
    """Yield pieces of a text, each with the position of its first character. A piece is small enough to tokenize. If
    possible, it ends with a paragraph or a sentence."""
    start = 0
    while len(text) - start > _MOST_CHARACTERS:
        end = _end(text, start + _MOST_CHARACTERS // 2, start + _MOST_CHARACTERS)
        yield text[start:end], start
        start = end
    yield text[start:], start


def _table_at(tables: Sequence[TableRows], position: int) -> TableRows | None:
    return next((table for table in tables if table.start <= position < table.end), None)


def _end(text: str, first: int, last: int) -> int:
    """Return the last end of a paragraph in a range; else of a sentence; else of a word; else the end of the range."""
    for pattern in _ENDS:
        ends = [match.end() for match in pattern.finditer(text, first, last)]
        if ends:
            return ends[-1]
    return last


def _begin(text: str, first: int, last: int, patterns: Sequence[re.Pattern[str]]) -> int:
    """Return where the first match of the first matching pattern ends in a range; else the end of the range."""
    for pattern in patterns:
        match = pattern.search(text, first, last)
        if match is not None and match.end() < last:
            return match.end()
    return last


def _token_from(offsets: list[tuple[int, int]], position: int, first: int) -> int:
    """Return the index of the first token, at least `first`, that begins at or after a position."""
    from bisect import bisect_left

    return bisect_left(offsets, (position, 0), first)
