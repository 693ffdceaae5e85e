"""Reader of one file of a folder of documents. The ending of its name decides how it is read."""

from __future__ import annotations

import codecs
import importlib.util
import re
from collections.abc import Collection
from typing import BinaryIO

from raytriever.core.errors import ConfigError, DataError
from raytriever.core.reading.documents.markdown_html_pdf import declared_encoding, parse_html, parse_markdown, parse_pdf
from raytriever.core.reading.documents.sections import Outline, ParsedDocument
from raytriever.core.reading.documents.word_and_powerpoint import check_office, parse_slides, parse_word

MARKDOWN, MDX, HTML, TEXT, PDF, WORD, SLIDES = "Markdown", "MDX", "HTML", "text", "PDF", "Word", "PowerPoint"
KINDS = {
    **dict.fromkeys((".md", ".markdown", ".mkd", ".mkdn", ".mdown", ".qmd", ".rmd"), MARKDOWN),
    ".mdx": MDX,
    **dict.fromkeys((".html", ".htm", ".xhtml"), HTML),
    **dict.fromkeys((".txt", ".text"), TEXT),
}
KINDS |= {".pdf": PDF, ".docx": WORD, ".pptx": SLIDES}
# Kinds of documents that cannot be read, by ending. The import reports each such file with its kind.
OTHER_KINDS = {
    **dict.fromkeys((".rst", ".rest"), "reStructuredText"),
    **dict.fromkeys((".adoc", ".asciidoc"), "AsciiDoc"),
    **dict.fromkeys((".doc", ".odt", ".rtf"), "a text of a word processor"),
    **dict.fromkeys((".epub", ".mobi"), "an e-book"),
    **dict.fromkeys((".ppt", ".odp"), "a presentation"),
}
OTHER_KINDS |= {".ipynb": "a notebook", ".org": "Org", ".tex": "LaTeX", ".textile": "Textile", ".wiki": "MediaWiki"}
# For endings that cannot be read: the ending of a readable format to which the file's program can convert the file.
SAVED_AS = {**dict.fromkeys((".doc", ".odt", ".rtf"), ".docx"), **dict.fromkeys((".ppt", ".odp"), ".pptx")}
# Modules that read each kind of file. Markdown needs `bs4` too, because it may contain HTML.
_MODULES = {**dict.fromkeys((MARKDOWN, MDX), ("markdown_it", "bs4")), HTML: ("bs4",), PDF: ("pypdf",)}
_MODULES[WORD] = ("mammoth", "bs4")
# Maximum bytes of a file. Parsing needs several times the memory of the text. PDF and Office files hold pictures too.
_MOST_BYTES = dict.fromkeys((PDF, WORD, SLIDES), 1_000_000_000)
_MOST_BYTES_OF_TEXT = 64_000_000
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_ENDING = re.compile(r"\.[^./]+$")


def kind_of_document(path: str) -> str | None:
    """Return the kind of a file by the ending of its name; None if no reader reads it."""
    return KINDS.get(ending_of(path))


def ending_of(path: str) -> str:
    """Return the ending of a file's name in lower case, such as `.md`; empty if it has none."""
    ending = _ENDING.search(path.lower())
    return ending[0] if ending else ""


def require_parsers(kinds: Collection[str]) -> None:
    """Raise `ConfigError` if a package that is needed to read one of the kinds is not installed."""
    modules = {kind: _MODULES.get(kind, ()) for kind in sorted(kinds)}
    missing = [kind for kind, needed in modules.items() if not all(map(importlib.util.find_spec, needed))]
    if missing:
        what = f"the packages that read {', '.join(missing)} are not installed"
        raise ConfigError(what, None, "pip install 'raytriever[documents]'")


def most_bytes(kind: str) -> int:
    """Return the maximum size in bytes for files of a kind; larger files are not read."""
    return _MOST_BYTES.get(kind, _MOST_BYTES_OF_TEXT)


def read_document(stream: BinaryIO, where: str, kind: str) -> ParsedDocument:
    """Return the sections of a document of a kind in `KINDS`. The caller must have checked its size.
    Raise `DataError` if it has no text, is encrypted or broken, or has bytes that are invalid in its encoding."""
    try:
        if kind == PDF:
            return parse_pdf(stream, where)
        if kind in (WORD, SLIDES):
            check_office(stream, where)
            document = parse_word(stream) if kind == WORD else parse_slides(stream)
        else:
            document = _parse_text(stream.read(), where, kind)
    except (DataError, MemoryError):
        raise
    except RecursionError:
        raise DataError("is nested too deeply", where, "simplify it, or leave it out") from None
    except Exception as error:  # each parser raises errors of its own kinds, so no list would be complete
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise DataError(f"is broken ({reason})", where, "open it in another program, and save it again") from error
    if not document.sections:
        raise DataError("has no text", where, "remove it")
    return document


def _parse_text(raw: bytes, where: str, kind: str) -> ParsedDocument:
    if not raw:
        raise DataError("is empty", where, "remove it")
    text = _decoded(raw, where, kind).replace("\r\n", "\n").replace("\0", "")
    if kind in (MARKDOWN, MDX):
        return parse_markdown(text, kind == MDX)
    if kind == HTML:
        return parse_html(text)
    outline = Outline()
    for block in re.split(r"\n[ \t]*\n", text):
        outline.add_block(block)
    return outline.finish()


def _decoded(raw: bytes, where: str, kind: str) -> str:
    """Decode bytes by their byte order mark, else by the encoding that HTML declares, else as UTF-8. Never guess."""
    encoding = next((name for mark, name in _MARKS.items() if raw.startswith(mark)), None)
    if encoding is None and kind == HTML:
        encoding = declared_encoding(raw)
    try:
        return raw.decode(encoding or "utf-8")
    except LookupError:
        raise DataError(f"declares the unknown encoding {encoding!r}", where, "save it as UTF-8") from None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        byte = f"byte 0x{raw[error.start]:02x} in line {line} is not {(encoding or 'utf-8').upper()}"
        raise DataError(byte, where, "save it as UTF-8") from error
