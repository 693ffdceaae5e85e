"""Documents become sections: titles, headings, anchors and text of Markdown, HTML, text, PDF, Word and PowerPoint."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from office import slide_file, with_part, word_file
from pdf import write_pdf

from raytriever.core.errors import ConfigError, DataError
from raytriever.core.reading.documents import read_document as read
from raytriever.core.reading.documents.read_document import kind_of_document, read_document, require_parsers
from raytriever.core.reading.documents.sections import ParsedDocument

MARKDOWN = """---
layout: page
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


def sections(name: str, raw: bytes | str) -> list[tuple[tuple[str, ...], str, str]]:
    return [(section.headings, section.anchor, section.text) for section in parsed(name, raw).sections]


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


@pytest.mark.parametrize(
    ("front", "title"),
    [
        ("---\ntitle: Pumps\ntags: [a]\n---\n", "Pumps"),
        ("---\nlayout: x\ntitle: 'It''s: here' # yes\n...\n", "It's: here"),
        ("---\ntitle: Pumps: a guide\nx: {{ y }}\n---\n", "Pumps: a guide"),
        ("---\ntitle: >\n  Long\n  title\n---\n", "Long title"),
        ("---\ndraft: true\n---\n", "Heading"),
        ('+++\ntitle = "A \\"B\\""\n[params]\nx = 1\n+++\n', 'A "B"'),
        ('{\n  "title": "Pumps",\n  "tags": []\n}\n', "Pumps"),
        ("#+TITLE: Pumps\n#+DATE: 2024\n", "Pumps"),
        ("Title: Pumps\n  and valves\nAuthor: me\nMy key: x\n", "Pumps and valves"),
        ("Date: 2024\nTags: a\n", "Heading"),
    ],
)
def test_front_matter_is_no_text_and_names_the_title(front: str, title: str) -> None:
    for name, page in (
        ("a.md", "# Heading\n\ntext"),
        ("a.mdx", "# Heading\n\ntext"),
        ("a.html", "<h1>Heading</h1>text"),
    ):
        assert parsed(name, f"{front}\n{page}").title == title
        assert sections(name, f"{front}\n{page}") == [(("Heading",), "heading", "text")]


@pytest.mark.parametrize(
    "text",
    ["---\n\nFirst\n\n---\n\nsecond", "Note: this is text\n\nmore", '{\n"title": "all"\n}\n', "---\ntitle: no end"],
)
def test_text_that_is_no_front_matter_stays(text: str) -> None:
    words = " ".join(section.text for section in parsed("a.md", text).sections)
    assert set(re.findall(r"\w+", text)) == set(re.findall(r"\w+", words))


def test_mdx_has_no_modules_and_no_comments() -> None:
    page = "import X from './x'\n\nexport const a = 1\n\n# Use\n\nText{/* note */}.\n\n```js\nimport y\n```\n\n"
    page += "<X>\n\nIn X\n\n</X>"
    assert sections("a.mdx", page) == [(("Use",), "use", "Text.\n\nimport y\n\nIn X")]


def test_html_that_a_browser_does_not_show_is_no_text() -> None:
    page = """<p>seen<b hidden>a</b><i aria-hidden="true">b</i><span style="color:red; DISPLAY : none">c</span>
    <span style="visibility:hidden">d</span><template>e</template><script>f</script><style>g</style><nav>h</nav>
    <div role="tabpanel" hidden>second tab</div><div hidden="until-found">found</div><p aria-hidden="false">end"""
    assert sections("a.html", page) == [((), "", "seen\n\nsecond tab\n\nfound\n\nend")]
    assert sections("a.md", "seen\n\n<div hidden>a</div>") == [((), "", "seen")]


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("a.md", "| part | price |\n|---|---|\n| seal | 3 |\n| hose | 4 |\n"),
        ("a.html", "<table><tr><th>part<th>price<tr><td>seal<td>3<tr><th>hose<td>4</table>"),
        ("a.html", "<table><tr><th><p>part<th><p>price</p><tr><td><p>seal</p><td><br>3<tr><td>hose<td><p>4</table>"),
    ],
)
def test_rows_of_a_table_know_their_header(name: str, table: str) -> None:
    document = parsed(name, f"Prices\n\n{table}\n\n<p>end</p>\n\n<table><tr><td>no<td>header</table>")
    [section] = document.sections
    [rows] = section.tables
    assert rows.header == "part | price"
    assert section.text[rows.start : rows.end] == "seal | 3\n\nhose | 4"


def test_characters_that_look_alike_are_the_same() -> None:
    raw = "# Cafe\u0301\n\no\ufb03ce \ufb01ne co\u00adoper&shy;ate zero\u200bwidth na\u0308mlich \ufeffx"
    assert sections("a.md", raw) == [(("Café",), "café", "office fine cooperate zerowidth nämlich x")]
    assert sections("a.html", "<p>o&#xfb03;ce&#8203;s") == [((), "", "offices")]
    # Persian, Hindi, Khmer and emoji need their joiners.
    kept = "می\u200cخواهم क्\u200dष ភាសា\u200bខ្មែរ \U0001f469\u200d\U0001f4bb"
    assert sections("a.txt", kept) == [((), "", kept)]


def test_text_has_paragraphs_and_byte_order_marks() -> None:
    assert sections("a.txt", "one\r\n\r\ntwo\r\nlines") == [((), "", "one\n\ntwo\nlines")]
    assert sections("a.txt", "Grüße".encode("utf-16")) == [((), "", "Grüße")]


def test_pdf_pages_are_sections_under_the_outline(tmp_path: Path) -> None:
    pages = ["The manu-\nal.", "", "Valves leak."]
    write_pdf(tmp_path / "a.pdf", pages, "Pump", [("Intro", 0), ("Valves", 2)], password="")
    document = parsed("a.pdf", (tmp_path / "a.pdf").read_bytes())
    assert document.title == "Pump"
    assert [(section.headings, section.anchor, section.text) for section in document.sections] == [
        (("Intro",), "page=1", "The manual."),
        (("Valves",), "page=3", "Valves leak."),
    ]


@pytest.mark.parametrize(
    ("pages", "password", "reason"),
    [
        (["hidden"], "secret", "a.pdf: is encrypted; save a copy without a password (`qpdf --decrypt`)"),
        (["", ""], None, "a.pdf: has no text: it is scanned, or empty; recognize its text first (`ocrmypdf`)"),
    ],
)
def test_encrypted_and_scanned_pdf(tmp_path: Path, pages: list[str], password: str | None, reason: str) -> None:
    write_pdf(tmp_path / "a.pdf", pages, password=password)
    with pytest.raises(DataError) as error:
        parsed("a.pdf", (tmp_path / "a.pdf").read_bytes())
    assert str(error.value) == reason


def test_ligatures_of_latex_are_letters(tmp_path: Path) -> None:
    write_pdf(tmp_path / "a.pdf", ["An o\x0ece \x0cnds e\x1bort.", "di\x0berent \x1dow"])
    assert [text for *_, text in sections("a.pdf", (tmp_path / "a.pdf").read_bytes())] == [
        "An office finds effort.",
        "different flow",
    ]


def test_html_of_any_depth_is_read() -> None:
    assert sections("a.html", "<div>" * 3000 + "deep") == [((), "", "deep")]
    assert sections("a.html", "<h1>" * 8000 + "<p>deep") == [((), "", "deep")]


def test_parsers_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(read._MODULES, read.PDF, ("no_such_module",))
    require_parsers({"text", "Markdown"})
    with pytest.raises(ConfigError, match=r"packages that read PDF are not installed; pip install"):
        require_parsers({"PDF", "text"})


BOMB = b"<!DOCTYPE a [<!ENTITY a0 'aaaaaaaaaa'>%s]><a>&a8;</a>" % b"".join(
    b"<!ENTITY a%d '%s'>" % (n, b"&a%d;" % (n - 1) * 10) for n in range(1, 9)
)
LINKED = b"<!DOCTYPE a [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><a>&a;</a>"


def reason(name: str, raw: bytes) -> str:
    with pytest.raises(DataError) as error:
        parsed(name, raw)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_headings_of_word_are_sections_and_tables_keep_their_header() -> None:
    document = parsed("a.docx", word_file())
    assert document.title == "Pump manual"
    assert [(section.headings, section.anchor, section.text) for section in document.sections] == [
        (("Pump manual",), "pump-manual", "Before any heading."),
        (("Installation",), "installation", "Close the valve."),
        (("Installation", "Prices"), "prices", "part | price\n\nseal ring | 3\n\nhose | 4\n\nWithout tax."),
    ]
    [rows] = document.sections[2].tables
    assert (rows.header, document.sections[2].text[rows.start : rows.end]) == (
        "part | price",
        "seal ring | 3\n\nhose | 4",
    )


def test_slides_are_sections_with_title_table_and_notes() -> None:
    document = parsed("a.PPTX", slide_file(["Pumps", "", "Overview"]))
    assert document.title == "Overview"
    assert [(section.headings, section.anchor) for section in document.sections] == [
        (("Overview",), "slide=1"),
        (("Pumps",), "slide=2"),
        (("Slide 3",), "slide=3"),
    ]
    first = document.sections[0]
    table = "part | price\n\nseal | 3\n\nhose | 4"
    assert first.text == f"Point 3\n\nNext point\n\nIn a group\n\n{table}\n\nSay 3"
    [rows] = first.tables
    assert rows.header == "part | price"


def test_a_slide_with_a_title_alone_has_its_title_as_text() -> None:
    from office import saved
    from pptx import Presentation

    deck = Presentation()
    deck.slides.add_slide(deck.slide_layouts[5]).shapes.title.text = "The pump"
    assert [section.text for section in parsed("a.pptx", saved(deck)).sections] == ["The pump"]


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("a.md", b"", "a.md: is empty; remove it"),
        ("a.md", b"# Only a heading", "a.md: has no text; remove it"),
        ("a.txt", "x\nGrüße".encode("latin-1"), "a.txt: byte 0xfc in line 2 is not UTF-8; save it as UTF-8"),
        ("a.html", b"<meta charset=klingon>x", "a.html: declares the unknown encoding 'klingon'; save it as UTF-8"),
        ("a.pdf", b"%PDF-1.4\nx", "a.pdf: is broken (PdfStreamError: "),
        ("a.docx", b"", "a.docx: is damaged; open it in its program, and save it again"),
        ("a.docx", b"not an archive", "a.docx: is damaged; open it in its program, and save it again"),
        ("a.docx", word_file()[:-400], "a.docx: is damaged; open it in its program, and save it again"),
        (
            "a.pptx",
            bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600),
            "a.pptx: is encrypted, or a file of Office 2003 or earlier; save a copy as .pptx without a password",
        ),
        ("a.docx", with_part(word_file(), "word/document.xml", None), "a.docx: is broken ("),
        ("a.docx", with_part(word_file(), "word/document.xml", b"<a><b></a>"), "a.docx: is broken (ExpatError: "),
        ("a.docx", slide_file(["a"]), "a.docx: is broken ("),
        ("a.pptx", word_file(), "a.pptx: has no text; remove it"),
        ("a.pptx", with_part(slide_file(["a"]), "ppt/slides/slide1.xml", None), "a.pptx: is broken (KeyError: "),
        ("a.docx", with_part(word_file(), "word/document.xml", BOMB), "a.docx: is broken (ExpatError: limit on input"),
        ("a.pptx", with_part(slide_file(["a"]), "ppt/slides/slide1.xml", BOMB), "a.pptx: is broken (ParseError: limit"),
        ("a.pptx", with_part(slide_file(["a"]), "ppt/slides/slide1.xml", LINKED), "a.pptx: is broken (ParseError: "),
        (
            "a.pptx",
            with_part(slide_file(["a"]), "ppt/slides/slide1.xml", b"<a>" * 5000 + b"</a>" * 5000),
            "a.pptx: is nested too deeply; simplify it, or leave it out",
        ),
    ],
    ids=[
        *("empty text", "no text", "bytes", "encoding", "broken", "empty", "text", "cut off", "encrypted", "no part"),
        *("no XML", "slides", "a document", "no slide", "bomb", "bomb in a slide", "a file", "depth"),
    ],
)
def test_a_document_that_cannot_be_read_is_one_line(name: str, raw: bytes, message: str) -> None:
    assert reason(name, raw).startswith(message)


def test_text_in_a_linked_file_is_not_read() -> None:
    raw = with_part(word_file(), "word/document.xml", LINKED)
    try:
        texts = [section.text for section in parsed("a.docx", raw).sections]
    except DataError as error:
        texts = [str(error)]
    assert not any("root:" in text for text in texts)
