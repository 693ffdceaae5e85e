"""Sections of Markdown (markdown-it-py), HTML (Beautiful Soup without lxml), reStructuredText (docutils), PDF (pypdf).

The sections of a PDF file are its pages, under the titles of its outline. The anchor of a page is `page=N`, which PDF
viewers open. Pictures are not read: a scanned file has no text.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any, BinaryIO

from raytriever.errors import DataError
from raytriever.reading.documents.sections import Outline, ParsedDocument, squeeze

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?:(?!---|\.\.\.).*\n)*(?:---|\.\.\.)[ \t]*(?:\n|\Z)")
# HTML: elements without text of the document, elements that begin and end a block, and elements of one table cell.
_NO_TEXT = {
    *("head", "script", "style", "noscript", "template", "svg"),
    *("nav", "footer", "aside", "form", "button", "iframe", "object"),
}
_BLOCKS = {
    *("address", "article", "blockquote", "body", "br", "caption", "dd", "details", "div", "dl", "dt", "fieldset"),
    *("figcaption", "figure", "header", "hr", "html", "li", "main", "ol", "p", "pre", "section", "summary"),
    *("table", "tbody", "tfoot", "thead", "tr", "ul"),
}
_HEADING = re.compile(r"h[1-6]")
_ROLE = re.compile(r":[\w:.+-]+:`~?([^`<]*[^`<\s])\s*(?:<[^`>]*>)?`")  # of Sphinx, such as :ref:`title <label>`
_SPACES = re.compile(r"\s+")


def parse_markdown(text: str) -> ParsedDocument:
    """Return the sections of CommonMark with tables; front matter is left out."""
    from markdown_it import MarkdownIt

    outline = Outline()
    tokens = MarkdownIt("commonmark").enable("table").parse(_FRONT_MATTER.sub("", text))
    level, row = 0, None
    for token in tokens:
        if token.type == "heading_open":
            level = int(token.tag[1:])
        elif token.type == "tr_open":
            row = list[str]()
        elif token.type == "tr_close":
            outline.add_block(" | ".join(row or []))
            row = None
        elif token.type == "inline":
            content = _inline_text(token)
            if level:
                outline.add_heading(level, content)
                level = 0
            elif row is not None:
                row.append(content)
            else:
                outline.add_block(content)
        elif token.type in ("fence", "code_block"):
            outline.add_block(token.content)
        elif token.type == "html_block":
            _add_html(outline, token.content)
    return outline.finish()


def _inline_text(token: Any) -> str:
    """Return the text of an inline token: without emphasis, links' addresses and HTML tags."""
    pieces = []
    for child in token.children or ():
        if child.type in ("softbreak", "hardbreak"):
            pieces.append(" ")
        elif child.type == "image":
            pieces.append(_inline_text(child))
        elif child.type in ("text", "code_inline", "text_special"):
            pieces.append(child.content)
    return squeeze("".join(pieces))


def declared_encoding(raw: bytes) -> str | None:
    """Return the encoding that an HTML document declares for itself; None if it declares none."""
    from bs4.dammit import EncodingDetector

    return EncodingDetector.find_declared_encoding(raw[:4096], is_html=True, search_entire_document=True)


def parse_html(text: str) -> ParsedDocument:
    """Return the sections of an HTML document, without its navigation, footer, scripts and forms."""
    outline = Outline()
    _add_html(outline, text)
    return outline.finish()


def _add_html(outline: Outline, text: str) -> None:
    from bs4 import BeautifulSoup

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about texts that look like paths, or like XML
        soup = BeautifulSoup(text, "html.parser")
    if soup.title and soup.title.string:
        outline.title = str(soup.title.string)
    buffer: list[str] = []

    def end_block() -> None:
        outline.add_block("".join(buffer).strip(" |"))
        buffer.clear()

    for node, is_end in _events(soup.find("main") or soup):
        if is_end is None:
            buffer.append(node)
        elif _HEADING.fullmatch(node.name):
            if is_end:
                heading = "".join(buffer)
                buffer.clear()
                outline.add_heading(int(node.name[1]), heading.strip("¶# \n"), _own_anchor(node))
            else:
                end_block()
        elif node.name in _BLOCKS:
            end_block()
        elif node.name in ("td", "th") and is_end:
            buffer.append(" | ")
    end_block()


def _events(root: Any) -> Iterator[tuple[Any, bool | None]]:
    """Yield texts with None, and elements twice: with False at their beginning and with True at their end.

    The walk keeps its own stack: the depth of a document is not limited by Python's recursion.
    """
    from bs4.element import NavigableString, PreformattedString, Tag

    stack = [(root, iter(list(root.children)), False)]
    while stack:
        parent, children, is_code = stack[-1]
        child = next(children, None)
        if child is None:
            stack.pop()
            if stack:
                yield parent, True
        elif isinstance(child, Tag):
            if child.name not in _NO_TEXT:
                yield child, False
                stack.append((child, iter(list(child.children)), is_code or child.name == "pre"))
        elif isinstance(child, NavigableString) and not isinstance(child, PreformattedString):  # such as comments
            yield str(child) if is_code else _SPACES.sub(" ", child), None


def _own_anchor(heading: Any) -> str:
    """Return the id of a heading, of its section (Sphinx), or of an anchor in it; empty if there is none."""
    for element in (heading, heading.find(id=True), heading.find("a", attrs={"name": True})):
        if element is not None and (anchor := element.get("id") or element.get("name")):
            return str(anchor)
    section = heading.parent if heading.parent is not None and heading.parent.name == "section" else None
    return str(section.get("id") or "") if section is not None else ""


def parse_restructured_text(text: str) -> ParsedDocument:
    """Return the sections of reStructuredText. Files are not included, raw blocks and comments are left out."""
    from docutils import nodes
    from docutils.core import publish_doctree

    settings = {
        "file_insertion_enabled": False,
        "raw_enabled": False,
        "report_level": 5,
        "halt_level": 6,
        "_disable_config": True,
        "warning_stream": False,
    }
    outline = Outline()
    tree = publish_doctree(text, settings_overrides=settings)
    left_out = (nodes.comment, nodes.system_message, nodes.substitution_definition, nodes.raw, nodes.docinfo)
    stack = [(child, 1) for child in reversed(tree.children)]
    while stack:
        node, level = stack.pop()
        if isinstance(node, nodes.title) and isinstance(node.parent, nodes.section | nodes.document):
            owner = node.parent
            outline.add_heading(level, node.astext(), owner["ids"][0] if owner["ids"] else "")
        elif isinstance(node, nodes.row):
            outline.add_block(" | ".join(squeeze(entry.astext()) for entry in node.children))
        elif isinstance(node, left_out):
            outline.add_block(_unknown_directive(node) if isinstance(node, nodes.system_message) else "")
        elif isinstance(node, nodes.TextElement):
            text = node.astext()
            outline.add_block(text if isinstance(node, nodes.FixedTextElement) else _ROLE.sub(r"\1", squeeze(text)))
        else:
            below = level + isinstance(node, nodes.section)
            stack += [(child, below) for child in reversed(node.children)]
    return outline.finish()


def _unknown_directive(message: Any) -> str:
    """Return the content of a directive that docutils does not have, such as Sphinx's `versionadded`."""
    from docutils import nodes

    lines = [line for block in message.findall(nodes.literal_block) for line in block.astext().split("\n")]
    return squeeze(" ".join(line for line in lines if not re.match(r"\s*(?:\.\. |:[\w-]+:)", line)))


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
