"""Word and PowerPoint files become sections; what cannot be read is one line."""

from __future__ import annotations

import io

import pytest
from office import slide_file, with_part, word_file

from raytriever.core.errors import DataError
from raytriever.core.reading.documents.read_document import kind_of_document, read_document
from raytriever.core.reading.documents.sections import ParsedDocument

BOMB = b"<!DOCTYPE a [<!ENTITY a0 'aaaaaaaaaa'>%s]><a>&a8;</a>" % b"".join(
    b"<!ENTITY a%d '%s'>" % (n, b"&a%d;" % (n - 1) * 10) for n in range(1, 9)
)
LINKED = b"<!DOCTYPE a [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><a>&a;</a>"


def parsed(name: str, raw: bytes) -> ParsedDocument:
    return read_document(io.BytesIO(raw), name, kind_of_document(name) or "")


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
        ("a.docx", b"", "a.docx: is damaged; open it in its program, and save it again"),
        ("a.docx", b"not an archive", "a.docx: is damaged; open it in its program, and save it again"),
        ("a.docx", word_file()[:-400], "a.docx: is damaged; open it in its program, and save it again"),
        (
            "a.pptx",
            bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600),
            "a.pptx: is encrypted, or a file of Office 2003 or earlier; save a copy as .pptx without password",
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
        *("empty", "text", "cut off", "encrypted", "no part", "no XML", "slides", "a document", "no slide", "bomb"),
        *("bomb in a slide", "a file", "depth"),
    ],
)
def test_a_file_of_office_that_cannot_be_read_is_one_line(name: str, raw: bytes, message: str) -> None:
    assert reason(name, raw).startswith(message)


def test_text_in_a_linked_file_is_not_read() -> None:
    raw = with_part(word_file(), "word/document.xml", LINKED)
    try:
        texts = [section.text for section in parsed("a.docx", raw).sections]
    except DataError as error:
        texts = [str(error)]
    assert not any("root:" in text for text in texts)
