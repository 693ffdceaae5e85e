"""The page of an evaluation in a real browser: it shows, sorts, drills down, obeys the keyboard, and asks no one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raytriever.experiments.report.evaluation_page import write_evaluation_report

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
from chromium import Chromium
from evaluations import ENDS, HOSTILE, write_evaluation

pytestmark = [pytest.mark.browser, pytest.mark.slow]
WIDTHS = (400, 1600)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = write_evaluation(tmp_path_factory.mktemp("evaluation"))
    write_evaluation_report(folder)
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


def column(browser: Chromium, index: int, table: int = 0) -> list[str]:
    """The texts of a column of a table, from above."""
    cells = f"[...document.querySelectorAll('table')[{table}].tBodies[0].rows].map(row => row.cells[{index}].innerText)"
    return [str(text).strip() for text in browser.run(cells)]


def choose(browser: Chromium, select: str, value: str) -> None:
    browser.run(
        f"(s => {{ s.value = {value!r}; s.dispatchEvent(new Event('change')) }})(document.querySelector('{select}'))"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_shows_all_without_an_error_a_request_or_a_horizontal_scroll_bar(
    browser: Chromium, page: str, width: int, scheme: str
) -> None:
    browser.open(page, width, scheme=scheme)
    images = browser.run("[...document.images].map(image => image.complete && image.naturalWidth)")
    assert len(images) == 3 + 2 * 4
    assert all(images)
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    browser.run("new Promise(done => setTimeout(done, 200))")
    assert browser.run("document.querySelectorAll('#query-list .lists').length") > 3
    # What is wider than the window (wide tables, settings) scrolls within itself.
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.errors == []
    assert browser.requests == []
    back = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(255, 255, 255)") == (scheme == "light")


def test_a_column_sorts_both_ways_and_the_metric_is_chosen(browser: Chromium, page: str) -> None:
    browser.open(page, 1600)
    head = "document.querySelectorAll('table')[0].querySelectorAll('th')"
    rising = column(browser, 1)
    assert rising == sorted(rising)
    browser.run(f"{head}[1].firstChild.click()")
    assert column(browser, 1) == rising[::-1]
    assert browser.run(f"{head}[1].getAttribute('aria-sort')") == "descending"
    browser.run(f"{head}[1].firstChild.click()")
    assert column(browser, 1) == rising
    browser.run(f"{head}[0].firstChild.click()")
    assert column(browser, 0) == ["bm25", "mini", "mini<b>tuned</b>"]
    assert browser.run(f"{head}[1].getAttribute('aria-sort')") is None
    visible = (
        "[...document.querySelectorAll('[data-of=\"0\"]')].filter(one => one.offsetParent).map(one => one.innerText)"
    )
    (shown,) = browser.run(visible)
    assert shown.startswith("nDCG@10")
    choose(browser, "select[data-group]", "2")
    (shown,) = browser.run(visible)
    assert shown.startswith("AUC")


def test_thresholds_sort_and_those_out_of_reach_stand_last(browser: Chromium, page: str) -> None:
    browser.open(page, 1600)
    heads = browser.run("[...document.querySelectorAll('table')].map(one => one.tHead.innerText)")
    [index] = [number for number, head in enumerate(heads) if "calibration error" in head.lower()]
    assert "Thresholds" in browser.run("[...document.querySelectorAll('h3')].map(one => one.innerText)")
    place = [title.strip().lower() for title in heads[index].split("\t")].index("threshold")
    button = f"document.querySelectorAll('table')[{index}].querySelectorAll('th')[{place}].firstChild"
    for _ in range(2):
        browser.run(f"{button}.click()")
        shown = column(browser, place, index)
        assert shown[-2:] == ["out of reach"] * 2
        numbers = [float(text) for text in shown[:-2]]
        assert len(numbers) == 10
        assert numbers == sorted(numbers, reverse=numbers[0] > numbers[-1])
    assert {text.split()[0] for text in column(browser, 2, index)} == {"precision", "recall"}
    assert "0.900 at best" in column(browser, place + 1, index)
    assert browser.errors == []


def test_queries_are_drilled_down_by_keys_alone(browser: Chromium, page: str) -> None:
    browser.open(page, 1600)
    reached = []
    for _ in range(80):
        browser.press("Tab")
        name = browser.run("(e => e.id || e.tagName + (e.textContent || '').slice(0, 12))(document.activeElement)")
        reached.append(name)
        if name.startswith("SUMMARY"):
            break
    assert {"dataset", "metric", "first", "second", "order", "filter"} <= set(reached)
    assert any(name.startswith("BUTTON") for name in reached)
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
    browser.press("Enter")
    browser.run("new Promise(done => setTimeout(done, 200))")
    lists = browser.run("document.querySelector('#query-list details').innerText")
    assert "Best of mini<b>tuned</b>" in lists
    assert "Best of bm25" in lists
    assert "Relevant documents" in lists
    assert "relevant, grade 1" in lists
    browser.press("Enter")
    assert not browser.run("document.querySelector('#query-list details').open")
    # A key on the head of a column sorts.
    browser.run("document.querySelectorAll('table')[0].querySelectorAll('th button')[1].focus()")
    before = column(browser, 1)
    browser.press(" ")
    assert column(browser, 1) == before[::-1]


def test_the_lists_are_the_worst_and_the_most_changed(browser: Chromium, page: str) -> None:
    browser.open(page, 1600)

    def differences() -> list[float]:
        texts = browser.run("[...document.querySelectorAll('.values span')].map(one => one.textContent)")
        return [float(text.replace("−", "-").replace("±", "")) for text in texts]

    behind = differences()
    assert behind == sorted(behind)
    assert behind[-1] < 0
    choose(browser, "#order", "ahead")
    ahead = differences()
    assert ahead == sorted(ahead, reverse=True)
    assert ahead[-1] > 0
    choose(browser, "#first", "bm25")  # both models are bm25 now: the worst of it
    choose(browser, "#order", "worst")
    values = browser.run("[...document.querySelectorAll('.values')].map(one => one.textContent)")
    numbers = [float(text.rsplit(" ", 1)[1]) for text in values]
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    choose(browser, "#dataset", "numbers")
    assert "of numbers" in browser.run("document.querySelectorAll('#query-list summary')[1].textContent")
    browser.run(
        "(f => { f.value = 'number 7 '; f.dispatchEvent(new Event('input')) })(document.getElementById('filter'))"
    )
    assert browser.run("document.querySelectorAll('#query-list summary').length") <= 1
    assert browser.errors == []


def test_texts_stay_texts(browser: Chromium, page: str) -> None:
    browser.open(page, 1600)
    choose(browser, "#order", "worst")
    assert HOSTILE in browser.run("document.querySelector('#query-list summary').textContent")
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    browser.run("new Promise(done => setTimeout(done, 200))")
    assert ENDS in browser.run("document.querySelector('#query-list').textContent")
    assert browser.run("document.querySelectorAll('#query-list script, #query-list img, table b').length") == 0
    assert browser.run("window.hacked") is None
    # The policy holds even for markup that got in: nothing inline runs, nothing is loaded.
    browser.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"https://example.org/x.png\" onerror=\"hacked=1\">')"
    )
    browser.run("new Promise(done => setTimeout(done, 300))")
    assert browser.run("window.hacked") is None
    assert any("Content Security Policy" in error for error in browser.errors)
