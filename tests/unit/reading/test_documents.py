"""Documents become sections: titles, headings, anchors and text of Markdown, HTML, reStructuredText, text and PDF."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from pdf import write_pdf

from raytriever.errors import ConfigError, DataError
from raytriever.reading.documents import read
from raytriever.reading.documents.read import kind_of_document, read_document, require_parsers
from raytriever.reading.documents.sections import ParsedDocument

MARKDOWN = """---
title: not this
---
Before *any* heading.

# The [pump](http://a.b)

One `line`
and another.

## Install

1. First
2. Second

| part | price |
|------|-------|
| seal | 3 |

## Install

<div>of <b>HTML</b></div>

```python
print( 1 )
```
### Empty
"""
HTML = """<html><head><title>My page</title><script>x()</script></head><body><nav>menu</nav>
<h1 id="top">Top</h1><p>One
line.<br>Two</p><!-- no --><ul><li>a<li>b</ul><table><tr><td>1</td><td>2</td></tr></table>
<section id="more"><h2>Second &amp; more</h2><pre>a
  b</pre>tail</section></body></html>"""
RST = """Title
=====

See :ref:`the page <label>`.

.. note:: noted

.. versionadded:: 1.2
   It is new.

.. include:: /etc/passwd

Sub section
-----------

* one

.. code-block:: python

   x  = 1
"""


def sections(name: str, raw: bytes | str) -> list[tuple[tuple[str, ...], str, str]]:
    return [(one.headings, one.anchor, one.text) for one in parsed(name, raw).sections]


def parsed(name: str, raw: bytes | str) -> ParsedDocument:
    raw = raw.encode() if isinstance(raw, str) else raw
    return read_document(io.BytesIO(raw), name, kind_of_document(name) or "")


def test_markdown() -> None:
    assert parsed("a.md", MARKDOWN).title == "The pump"
    assert sections("a.md", MARKDOWN) == [
        ((), "", "Before any heading."),
        (("The pump",), "the-pump", "One line and another."),
        (("The pump", "Install"), "install", "First\n\nSecond\n\npart | price\n\nseal | 3"),
        (("The pump", "Install"), "install-1", "of HTML\n\nprint( 1 )"),
    ]


def test_html() -> None:
    assert parsed("a.HTM", HTML).title == "My page"
    assert sections("a.html", HTML) == [
        (("Top",), "top", "One line.\n\nTwo\n\na\n\nb\n\n1 | 2"),
        (("Top", "Second & more"), "more", "a\n  b\n\ntail"),
    ]


def test_html_has_the_encoding_that_it_declares() -> None:
    [(_, _, text)] = sections("a.html", '<meta charset="iso-8859-1"><p>Müller'.encode("latin-1"))
    assert text == "Müller"


def test_restructured_text_includes_no_file() -> None:
    assert sections("a.rst", RST) == [
        (("Title",), "title", "See the page.\n\nnoted\n\nIt is new."),
        (("Title", "Sub section"), "sub-section", "one\n\nx  = 1"),
    ]


def test_text_has_paragraphs_and_byte_order_marks() -> None:
    assert sections("a.txt", "one\r\n\r\ntwo\r\nlines") == [((), "", "one\n\ntwo\nlines")]
    assert sections("a.txt", "Grüße".encode("utf-16")) == [((), "", "Grüße")]


def test_pdf_pages_are_sections_under_the_outline(tmp_path: Path) -> None:
    pages = ["The manu-\nal.", "", "Valves leak."]
    write_pdf(tmp_path / "a.pdf", pages, "Pump", [("Intro", 0), ("Valves", 2)], password="")
    document = parsed("a.pdf", (tmp_path / "a.pdf").read_bytes())
    assert document.title == "Pump"
    assert [(one.headings, one.anchor, one.text) for one in document.sections] == [
        (("Intro",), "page=1", "The manual."),
        (("Valves",), "page=3", "Valves leak."),
    ]


@pytest.mark.parametrize(
    ("name", "raw", "reason"),
    [
        ("a.md", b"", "a.md: is empty; remove it"),
        ("a.md", b"# Only a heading", "a.md: has no text; remove it"),
        ("a.txt", "x\nGrüße".encode("latin-1"), "a.txt: byte 0xfc in line 2 is not UTF-8; save it as UTF-8"),
        ("a.html", b"<meta charset=klingon>x", "a.html: declares the unknown encoding 'klingon'; save it as UTF-8"),
        ("a.pdf", b"%PDF-1.4\nx", "a.pdf: is broken (PdfStreamError: "),
    ],
    ids=["empty", "no text", "bytes", "encoding", "broken"],
)
def test_a_document_that_cannot_be_read_is_one_line(name: str, raw: bytes | str, reason: str) -> None:
    with pytest.raises(DataError) as error:
        parsed(name, raw)
    assert str(error.value).startswith(reason)


@pytest.mark.parametrize(
    ("pages", "password", "reason"),
    [
        (["hidden"], "secret", "a.pdf: is encrypted; save a copy without password (`qpdf --decrypt`)"),
        (["", ""], None, "a.pdf: has no text: it is scanned, or empty; recognise its text first (`ocrmypdf`)"),
    ],
)
def test_encrypted_and_scanned_pdf(tmp_path: Path, pages: list[str], password: str | None, reason: str) -> None:
    write_pdf(tmp_path / "a.pdf", pages, password=password)
    with pytest.raises(DataError) as error:
        parsed("a.pdf", (tmp_path / "a.pdf").read_bytes())
    assert str(error.value) == reason


def test_text_that_is_too_deep_for_its_parser() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    try:
        with pytest.raises(DataError, match=r"^a\.rst: is nested too deeply; simplify it"):
            parsed("a.rst", "\n".join(" " * depth + "* x" for depth in range(300)))
    finally:
        sys.setrecursionlimit(limit)


def test_html_of_any_depth_is_read() -> None:
    assert sections("a.html", "<div>" * 3000 + "deep") == [((), "", "deep")]


def test_parsers_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_is_missing", lambda module: module == "pypdf")
    require_parsers({"text", "Markdown"})
    with pytest.raises(ConfigError, match=r"reading PDF needs further packages; pip install 'raytriever\[documents\]'"):
        require_parsers({"PDF", "text"})
