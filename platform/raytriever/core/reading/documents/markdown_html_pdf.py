"""Sections of Markdown (markdown-it-py), HTML (Beautiful Soup without lxml) and PDF (pypdf).

The sections of a PDF file are its pages, under the titles of its outline. The anchor of a page is `page=N`, so PDF
viewers open a link at that page. Pictures are not read: a scanned file has no text.

Front matter is a block of settings for a site generator before the text of a page: YAML between `---`, TOML between
`+++`, a JSON object, lines `#+TITLE: ...` of Org, lines `Title: ...` of MultiMarkdown. Only the title is used."""

from __future__ import annotations

import json
import logging
import re
import tomllib
import warnings
from collections.abc import Iterator
from typing import Any, BinaryIO

from raytriever.core.errors import DataError
from raytriever.core.reading.documents.sections import Outline, ParsedDocument, squeeze

# HTML elements: those whose text is not content, elements that begin and end a block, and elements inside a table cell.
_NO_TEXT = {
    *("head", "script", "style", "noscript", "template", "svg"),
    *("nav", "footer", "aside", "form", "button", "iframe", "object"),
}
_BLOCKS = {
    *("address", "article", "blockquote", "body", "br", "caption", "dd", "details", "div", "dl", "dt", "fieldset"),
    *("figcaption", "figure", "header", "hr", "html", "li", "main", "ol", "p", "pre", "section", "summary", "ul"),
}
_ROWS = {"table", "tbody", "tfoot", "thead", "tr"}
_HEADING = re.compile(r"h[1-6]")
_SPACES = re.compile(r"\s+")
_NOT_SHOWN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
# In MDX: lines that import or export modules, and comments.
_MODULE = re.compile(r"(?:import|export)\s")
_COMMENT = re.compile(r"\{/\*.*?\*/\}")


def parse_markdown(text: str, is_mdx: bool = False) -> ParsedDocument:
    """Return the sections of CommonMark with tables, or of MDX. Only the title of front matter is used."""
    from markdown_it import MarkdownIt

    title, text = split_front_matter(text)
    outline = Outline(title)
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    level, row, is_header = 0, None, False
    for token in tokens:
        if token.type == "heading_open":
            level = int(token.tag[1:])
        elif token.type == "tr_open":
            row = list[str]()
        elif token.type == "tr_close":
            outline.add_row(" | ".join(row or []), is_header)
            row = None
        elif token.type in ("thead_open", "thead_close"):
            is_header = token.type == "thead_open"
        elif token.type == "table_close":
            outline.end_table()
        elif token.type == "inline":
            content = _inline_text(token)
            if is_mdx:
                content = "" if _MODULE.match(content) else _COMMENT.sub("", content)
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
    title, text = split_front_matter(text)
    outline = Outline(title)
    _add_html(outline, text)
    return outline.finish()


def _add_html(outline: Outline, text: str) -> None:
    from bs4 import BeautifulSoup

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bs4 warns about texts that look like paths, or like XML
        soup = BeautifulSoup(text, "html.parser")
    if soup.title and soup.title.string:
        outline.title = outline.title or str(soup.title.string)
    buffer: list[str] = []
    cells: set[str] = set()  # names of the elements of this row's cells

    def end_block() -> None:
        text = "".join(buffer).strip(" |")
        if cells:
            outline.add_row(squeeze(text), cells == {"th"})
        else:
            outline.add_block(text)
        buffer.clear()
        cells.clear()

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
        elif node.name in _BLOCKS and cells:  # paragraphs in a cell begin no block of their own: the row is one block
            buffer.append(" ")
        elif node.name in _BLOCKS or node.name in _ROWS:
            end_block()
            if node.name == "table":
                outline.end_table()
        elif node.name in ("td", "th") and not is_end:  # a page may leave out the end tag of a cell
            buffer.append(" | ")
            cells.add(node.name)
    end_block()


def _events(root: Any) -> Iterator[tuple[Any, bool | None]]:
    """Yield each text with None, and each element twice: with False at its beginning and with True at its end. The
    walk has its own stack, so Python's recursion limit does not limit the depth of a document."""
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
            if child.name not in _NO_TEXT and not _is_hidden(child):
                yield child, False
                stack.append((child, iter(list(child.children)), is_code or child.name == "pre"))
        elif isinstance(child, NavigableString) and not isinstance(child, PreformattedString):  # not a comment
            yield str(child) if is_code else _SPACES.sub(" ", child), None


def _is_hidden(element: Any) -> bool:
    """Return whether a browser hides an element. A hidden tab panel counts as shown, because a click shows it."""
    if element.get("aria-hidden") == "true" or _NOT_SHOWN.search(str(element.get("style", ""))):
        return True
    return element.has_attr("hidden") and element["hidden"] != "until-found" and element.get("role") != "tabpanel"


def _own_anchor(heading: Any) -> str:
    """Return the id of a heading, of an element in the heading, or of its section (Sphinx); empty if none has one."""
    from bs4.element import Tag

    for element in (heading, *heading.children):
        if isinstance(element, Tag) and (anchor := element.get("id") or (element.name == "a" and element.get("name"))):
            return str(anchor)
    section = heading.parent if heading.parent is not None and heading.parent.name == "section" else None
    return str(section.get("id") or "") if section is not None else ""


# Codes of ligatures in LaTeX's fonts (OT1, T1), for PDF files that do not map codes to characters.
_TEX = {0x0B: "ff", 0x0C: "fi", 0x0E: "ffi", 0x0F: "ffl", 0x1B: "ff", 0x1C: "fi", 0x1D: "fl", 0x1E: "ffi", 0x1F: "ffl"}
_HYPHEN = re.compile(r"(\w)-\n(?=[a-zß-öø-ÿ])")
_MOST_PAGES = 20_000


def parse_pdf(stream: BinaryIO, where: str) -> ParsedDocument:
    """Return the pages of a PDF file with their text. Raise `DataError` if the file is encrypted, has no text, or has
    too many pages."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it logs each defect, even of a file that it can read
    reader = PdfReader(stream)
    if reader.is_encrypted:
        remedy = "save a copy without a password (`qpdf --decrypt`)"
        try:
            is_open = bool(reader.decrypt(""))
        except DependencyError:  # a cipher for which pypdf needs another package
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
        text = _HYPHEN.sub(r"\1", (page.extract_text() or "").translate(_TEX)).strip()
        if text:
            outline.add_page(number + 1, tuple(title for _, title in path), text)
    document = outline.finish()
    if not document.sections:
        raise DataError("has no text: it is scanned, or empty", where, "recognize its text first (`ocrmypdf`)")
    info = reader.metadata
    title = squeeze(str(info.title)) if info is not None and info.title else ""
    return ParsedDocument(title or document.title, document.sections)


def _titles(reader: Any) -> Iterator[tuple[int, list[tuple[int, str]]]]:
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


_YAML = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_TOML = re.compile(r"\A\+\+\+[ \t]*\n(.*?)^\+\+\+[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_ORG = re.compile(r"\A((?:#\+\w+:.*(?:\n|\Z))+)")
_KEYS = re.compile(r"\A((?:[A-Za-z][\w -]*:.*\n(?:[ \t]+\S.*\n)*)+)(?:[ \t]*\n|\Z)")
# Keys that only front matter has. At the beginning of a page, a line with another key, such as `Note: ...`, is text.
_OF_PAGES = {
    *("title", "subtitle", "author", "authors", "date", "modified", "created", "updated", "slug", "category", "status"),
    *("categories", "tags", "keywords", "template", "layout", "css", "language", "lang", "permalink"),
}
# The line after the first `---`, if YAML follows. Otherwise both `---` are horizontal rules.
_SETTING = re.compile(r"(?:[ \t]*(?:#.*)?\n)*[\"']?[\w$@.-][\w $@./-]*[\"']?[ \t]*:(?:[ \t\n]|\Z)")
_YAML_TITLE = re.compile(r"^([\"']?)title\1[ \t]*:.*(?:\n(?:[ \t]+.*|(?=\n)))*", re.IGNORECASE | re.MULTILINE)
_TITLE_LINE = re.compile(r"^(?:#\+)?title[ \t]*[:=](.*(?:\n[ \t]+\S.*)*)", re.IGNORECASE | re.MULTILINE)


def split_front_matter(text: str) -> tuple[str, str]:
    """Return the title that the front matter of a page names (empty if none), and the page without front matter."""
    if match := _YAML.match(text):
        is_settings = _SETTING.match(match[1]) or not match[1].strip()
        return (_yaml_title(match[1]), text[match.end() :]) if is_settings else ("", text)
    if match := _TOML.match(text):
        return _toml_title(match[1]), text[match.end() :]
    if match := _ORG.match(text):
        return _title_line(match[1]), text[match.end() :]
    if match := _KEYS.match(text):
        keys = {line.partition(":")[0].strip().lower() for line in match[1].splitlines() if not line[0].isspace()}
        if "title" in keys or keys <= _OF_PAGES:
            return _title_line(match[1]), text[match.end() :]
    return _split_json(text)


def _yaml_title(block: str) -> str:
    """Return the value of the key `title`. The other keys are not parsed, because they may hold templates."""
    import yaml

    match = _YAML_TITLE.search(block)
    if match is None:
        return ""
    try:
        (value,) = yaml.safe_load(match[0]).values()
    except (yaml.YAMLError, ValueError, AttributeError):  # such as `title: Pumps: an introduction`, which is not YAML
        return _title_line(match[0])
    return _text(value)


def _toml_title(block: str) -> str:
    try:
        return _text(tomllib.loads(block).get("title"))
    except ValueError:
        return _title_line(block)


def _title_line(block: str) -> str:
    match = _TITLE_LINE.search(block)
    return " ".join(match[1].split()).strip("\"'") if match else ""


def _split_json(text: str) -> tuple[str, str]:
    if not re.match(r"\{[ \t]*\n", text):
        return "", text
    try:
        settings, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return "", text
    rest = text[end:]
    if not isinstance(settings, dict) or not re.match(r"[ \t]*\n\s*\S", rest):
        return "", text
    return _text(settings.get("title")), rest


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else ""
