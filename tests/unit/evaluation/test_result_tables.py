"""Tables: what is bold, underlined and marked, and cells that stay cells for names that hold anything."""

from __future__ import annotations

from typing import Any

import pytest
from evaluations import threshold_row

from raytriever.core.terminal import markdown_table, printable, text_table
from raytriever.evaluation import results
from raytriever.evaluation.report_document import thresholds_markdown
from raytriever.evaluation.result_tables import Cell, MetricTables, ReportTable, latex, printed

MODELS = {
    "one": {"a": {"ndcg_at_10": 0.5, "auc": 0.9}, "b_c": {"ndcg_at_10": 0.25, "auc": 0.8}},
    "two": {"a": {"ndcg_at_10": 0.6, "auc": 0.9}, "b_c": {"ndcg_at_10": 0.2, "auc": 0.7}},
    "three": {"a": {"ndcg_at_10": 0.4, "auc": 0.9}, "b_c": {"ndcg_at_10": 0.250001, "auc": 0.6}},
}


def above(dataset: str | None, metric: str, model: str, against: str) -> results.TestedPair:
    """A significant difference."""
    return results.TestedPair(dataset, metric, model, against, 0.1, 0.1, 0.1, 0.001, 0.001)


PAIRS = [
    above("a", "ndcg_at_10", "two", "one"),
    above("a", "ndcg_at_10", "two", "three"),
    above("a", "ndcg_at_10", "one", "three"),
    above("b_c", "ndcg_at_10", "one", "two"),
    above("b_c", "auc", "one", "two"),
    above("b_c", "auc", "one", "three"),
    above(None, "ndcg_at_10", "two", "one"),
    above(None, "ndcg_at_10", "two", "three"),
]


def rows_of(table: ReportTable) -> dict[str, list[tuple[str, int | None, str]]]:
    return {
        str(row[0]): [(cell.text, cell.rank, cell.mark) for cell in row[1:] if isinstance(cell, Cell)]
        for row in table.rows
    }


def in_print(models: Any, pairs: list[results.TestedPair], baselines: list[str]) -> list[ReportTable]:
    splits = dict.fromkeys(results.datasets_of(models), "test")
    return MetricTables(models, pairs, baselines).in_print(splits)


def test_many_data_sets_stand_below_each_other_in_a_table_a_metric() -> None:
    many = {model: {f"d{i}": rows["a"] for i in range(5)} for model, rows in MODELS.items()}
    pairs = [above(None, "ndcg_at_10", *pair) for pair in (("two", "one"), ("two", "three"), ("one", "three"))]
    tables = in_print(many, pairs, [])
    assert [table.title.split(".")[0] for table in tables] == ["nDCG@10", "AUC"]
    assert tables[0].columns == ["Data set", *MODELS]
    assert [row[0] for row in tables[0].rows] == ["d0", "d1", "d2", "d3", "d4", "Average"]
    assert rows_of(tables[0])["Average"] == [("50.00", 1, ""), ("60.00", 0, ""), ("40.00", None, "")]
    assert "significantly above and below" not in tables[0].title
    assert "A column without bold has no significant best." in tables[0].title


def test_one_model_needs_no_rule_and_a_data_set_may_be_called_average() -> None:
    one = {"one": {"Average": {"auc": 0.5}, "b": {"auc": 0.75}}}
    [table] = in_print(one, [], ["one"])
    assert table.title == "Split test, x 100."
    assert [name for name, _ in table.spans] == ["Average", "b", "Average-2"]
    assert [text for text, _, _ in rows_of(table)["one"]] == ["50.00", "75.00", "62.50"]


def test_few_data_sets_are_columns_of_one_table_in_both_languages() -> None:
    tables = in_print(MODELS, PAIRS, ["one", "three"])
    text = printed(tables)
    # The highest figure is plain where nothing shows that it is more than noise.
    for line in (
        "| Model | a nDCG@10 | a AUC | b_c nDCG@10 | b_c AUC | Average nDCG@10 | Average AUC |",
        "| one | <u>50.00</u><sup>◆</sup> | 90.00 | 25.00 | **80.00**<sup>◆</sup> | 37.50 | 85.00 |",
        "| two | **60.00**<sup>+◆</sup> | 90.00 | 20.00<sup>-</sup> | 70.00<sup>-</sup> | **40.00**<sup>+◆</sup> |",
        "| three | 40.00<sup>-</sup> | 90.00 | 25.00 | 60.00<sup>-</sup> | 32.50 | 75.00 |",
    ):
        assert line in text
    assert "+ and -: significantly above and below one; ◆ and ◇: significantly above and below three." in text
    tex = latex(tables)
    assert r" & \multicolumn{2}{c}{a} & \multicolumn{2}{c}{b\_c} & \multicolumn{2}{c}{Average} \\" in tex
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5} \cmidrule(lr){6-7}" in tex
    assert r"two & \textbf{60.00}$^{+\blacklozenge}$ & 90.00 & 20.00$^{-}$ & 70.00$^{-}$ & \textbf{40.00}" in tex
    assert r"one & \underline{50.00}$^{\blacklozenge}$ & 90.00" in tex
    assert r"p $<$ 0.05" in tex
    assert r"$\blacklozenge$ and $\lozenge$: significantly" in tex
    assert r"\begin{tabular}{lrrrrrr}" in tex


NAMES = ["a|b", "a\nb", "a\r\n\nb", "\x1b[2Jx", "<script>alert(1)</script>", "\\end{tabular}"]
NAMES += ["a & b \\\\", "\u202ex", "%"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_stays_within_its_cell(name: str) -> None:
    table = ReportTable("caption", ["", name], [[name, Cell("0.5")]])
    for text in (table.as_markdown(), markdown_table([["", name], [name, "0.5"]])):
        lines = text.strip().splitlines()
        assert len(lines) == 3
        assert {line.replace("\\|", "").count("|") for line in lines} == {3}
        assert "<script" not in text
        assert printable(text) == text
    plain, tex = (latex([ReportTable("caption", ["", x], [[x, Cell("0.5")]])]) for x in ("x", name))
    for sign in ("&", "\\\\\n", "\\end{", "\n"):
        assert tex.replace("\\&", "").count(sign) == plain.replace("\\&", "").count(sign)
    assert "%" not in tex.replace("\\%", "").replace("% wants", "")
    assert printable(tex) == tex
    assert len(table.as_text().splitlines()) == 2
    assert len(text_table([["trial", "status"], ["0", name]]).splitlines()) == 2
    row = threshold_row(dataset=name, model=name, chosen_on=name, notes=["There is no threshold."])
    rows, notes = thresholds_markdown([row]).split("\n\n")
    assert (len(rows.splitlines()), len(notes.splitlines())) == (3, 1)
    assert "<script" not in notes
    assert printable(notes) == notes


def test_systems_with_other_metrics_or_data_sets_have_dashes_and_no_mean() -> None:
    models = {
        "a": {"s": {"ndcg_at_10": 0.5}, "t": {"ndcg_at_10": 0.1}},
        "b": {"s": {"ndcg_at_10": 0.4}, "t": {"ndcg_at_10": 0.4}},
        "c": {"s": {"ndcg_at_10": 0.6}},
    }
    first, whole, significance = MetricTables(
        models, [above("s", "ndcg_at_10", "c", "a"), above("s", "ndcg_at_10", "c", "b")], ["a", "b"]
    ).on_page()
    assert first.columns == ["model", "s", "t", "mean"]
    assert [[text for text, _, _ in row] for row in rows_of(first).values()] == [
        ["0.5000", "0.1000", "0.3000"],
        ["0.4000", "0.4000", "0.4000"],
        ["0.6000", "–", "–"],
    ]
    cell = first.rows[2][1]
    assert isinstance(cell, Cell)
    assert (cell.mark, cell.rank) == ("+◆", 0)
    assert cell.hint.startswith("+0.1000 against a, p after Holm 0.0010; +0.1000 against b")
    assert first.note.startswith("+ and -: significantly above and below a; ◆ and ◇: significantly above and below b.")
    assert [row[:2] for row in whole.rows] == [["s", "a"], ["s", "b"], ["s", "c"], ["t", "a"], ["t", "b"]]
    assert len(significance.rows) == 2
    assert "Bold: significantly above every other model of its column" in first.note
