"""Names of data sets and models may hold anything: a cell of a table stays a cell in text, Markdown, LaTeX and HTML."""

from __future__ import annotations

import pytest

from raytriever.evaluation.pooled_scores import calibration_table
from raytriever.evaluation.tables import Figure, PaperTable, latex, markdown, metrics_table
from raytriever.terminal import markdown_cell, markdown_table, printable, text_table

NAMES = [
    "a|b",
    "a\nb",
    "a\r\n\nb",
    "\x1b[2Jx",
    "<script>alert(1)</script>",
    "\\end{tabular}",
    "a & b \\\\",
    "\u202ex",
    "%",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_of_markdown_is_one_cell(name: str) -> None:
    table = PaperTable("caption", [], ["", name], [(name, [Figure("0.5")])])
    for text in (markdown([table]).split("\n\n")[1], markdown_table([["", name], [name, "0.5"]])):
        lines = text.strip().splitlines()
        assert len(lines) == 3
        assert {line.replace("\\|", "").count("|") for line in lines} == {3}
        assert "<script" not in text
        assert printable(text) == text
    assert "\n" not in markdown_cell(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_of_the_calibration_table_is_one_row(name: str) -> None:
    out_of_reach = {"aim": "precision", "wanted": 0.9, "chosen_on": name, "reached": False, "precision": 0.5}
    row = {
        "dataset": name,
        "model": name,
        **out_of_reach,
        "coverage": None,
        "checked_precision": None,
        "calibration_error": 0.1,
        "calibration_error_low": 0.0,
        "calibration_error_high": 0.2,
    }
    table, notes = calibration_table([{**row, "notes": ["There is no threshold."]}]).split("\n\n")
    lines = table.splitlines()
    assert len(lines) == 3
    assert {line.replace("\\\\", "").replace("\\|", "").count("|") for line in lines} == {11}
    assert len(notes.splitlines()) == 1
    for text in (table, notes):
        assert "<script" not in text
        assert printable(text) == text


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_of_latex_is_one_cell(name: str) -> None:
    plain = latex([PaperTable("caption", [], ["", "x"], [("y", [Figure("0.5")])])])
    text = latex([PaperTable("caption", [], ["", name], [(name, [Figure("0.5")])])])
    for sign in ("&", "\\\\\n", "\\end{", "\n"):
        assert text.replace("\\&", "").count(sign) == plain.replace("\\&", "").count(sign)
    assert "%" not in text.replace("\\%", "").replace("% wants", "")
    assert printable(text) == text


@pytest.mark.parametrize("name", NAMES)
def test_a_row_of_plain_text_is_one_line(name: str) -> None:
    assert len(metrics_table({name: {"auc": 0.5}}).splitlines()) == 2
    assert len(text_table([["trial", "status"], ["0", name]]).splitlines()) == 2
