"""The page of an evaluation in a real browser: it shows, sorts, drills down, obeys the keyboard, and asks no one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from evaluations import ENDS, HOSTILE, write_evaluation
from playwright.sync_api import Browser, ConsoleMessage, Error, Request, sync_playwright

from raytriever.experiments.report.evaluation_page import write_evaluation_report

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL = "no Chromium is installed: apt-get install chromium, or leave these tests out with -m 'not browser'"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = write_evaluation(tmp_path_factory.mktemp("evaluation"))
    write_evaluation_report(folder)
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    assert program, INSTALL
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=program) as chromium:
        yield chromium


class Tab:
    """The page in a window of a width in CSS pixels, with light or dark as the preferred scheme."""

    def __init__(self, browser: Browser, url: str, width: int = 1600, scheme: Any = "light") -> None:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self._said, self._thrown, self._asked = list[ConsoleMessage](), list[Error](), list[Request]()
        page.on("console", lambda item: self._said.append(item))
        page.on("pageerror", lambda item: self._thrown.append(item))
        page.on("request", lambda item: self._asked.append(item))
        page.goto(url)
        self.run, self.press = page.evaluate, page.keyboard.press

    @property
    def errors(self) -> list[str]:
        """Console errors, uncaught exceptions and blocked or failed loads."""
        self.run("1")  # what the browser has said by now is read
        said = [message.text for message in self._said if message.type in ("error", "assert")]
        return said + [error.message for error in self._thrown]

    @property
    def requests(self) -> list[str]:
        """Addresses that the page asked for, but for its own and those inside it."""
        self.run("1")
        return [item.url for item in self._asked if not item.url.startswith(("data:", "file:"))]


def column(tab: Tab, index: int, table: int = 0) -> list[str]:
    """The texts of a column of a table, from above."""
    cells = f"[...document.querySelectorAll('table')[{table}].tBodies[0].rows].map(row => row.cells[{index}].innerText)"
    return [str(text).strip() for text in tab.run(cells)]


def choose(tab: Tab, select: str, value: str) -> None:
    tab.run(
        f"(s => {{ s.value = {value!r}; s.dispatchEvent(new Event('change')) }})(document.querySelector('{select}'))"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_it_shows_all_without_an_error_a_request_or_a_horizontal_scroll_bar(
    browser: Browser, page: str, width: int, scheme: str
) -> None:
    tab = Tab(browser, page, width, scheme)
    images = tab.run("[...document.images].map(image => image.complete && image.naturalWidth)")
    assert len(images) == 3 + 2 * 4
    assert all(images)
    tab.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    tab.run("new Promise(done => setTimeout(done, 200))")
    assert tab.run("document.querySelectorAll('#query-list .lists').length") > 3
    # What is wider than the window (wide tables, settings) scrolls within itself.
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.errors == []
    assert tab.requests == []
    back = tab.run("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(255, 255, 255)") == (scheme == "light")


def test_a_column_sorts_both_ways_and_the_metric_is_chosen(browser: Browser, page: str) -> None:
    tab = Tab(browser, page)
    head = "document.querySelectorAll('table')[0].querySelectorAll('th')"
    rising = column(tab, 1)
    assert rising == sorted(rising)
    tab.run(f"{head}[1].firstChild.click()")
    assert column(tab, 1) == rising[::-1]
    assert tab.run(f"{head}[1].getAttribute('aria-sort')") == "descending"
    tab.run(f"{head}[1].firstChild.click()")
    assert column(tab, 1) == rising
    tab.run(f"{head}[0].firstChild.click()")
    assert column(tab, 0) == ["bm25", "mini", "mini<b>tuned</b>"]
    assert tab.run(f"{head}[1].getAttribute('aria-sort')") is None
    visible = (
        "[...document.querySelectorAll('[data-of=\"0\"]')].filter(one => one.offsetParent).map(one => one.innerText)"
    )
    (shown,) = tab.run(visible)
    assert shown.startswith("nDCG@10")
    choose(tab, "select[data-group]", "2")
    (shown,) = tab.run(visible)
    assert shown.startswith("AUC")


def test_thresholds_sort_and_those_out_of_reach_stand_last(browser: Browser, page: str) -> None:
    tab = Tab(browser, page)
    heads = tab.run("[...document.querySelectorAll('table')].map(one => one.tHead.innerText)")
    [index] = [number for number, head in enumerate(heads) if "calibration error" in head.lower()]
    assert "Thresholds" in tab.run("[...document.querySelectorAll('h3')].map(one => one.innerText)")
    place = [title.strip().lower() for title in heads[index].split("\t")].index("threshold")
    button = f"document.querySelectorAll('table')[{index}].querySelectorAll('th')[{place}].firstChild"
    for _ in range(2):
        tab.run(f"{button}.click()")
        shown = column(tab, place, index)
        assert shown[-2:] == ["out of reach"] * 2
        numbers = [float(text) for text in shown[:-2]]
        assert len(numbers) == 10
        assert numbers == sorted(numbers, reverse=numbers[0] > numbers[-1])
    assert {text.split()[0] for text in column(tab, 2, index)} == {"precision", "recall"}
    assert "0.900 at best" in column(tab, place + 1, index)
    assert tab.errors == []


def test_queries_are_drilled_down_by_keys_alone(browser: Browser, page: str) -> None:
    tab = Tab(browser, page)
    reached = []
    for _ in range(80):
        tab.press("Tab")
        name = tab.run("(e => e.id || e.tagName + (e.textContent || '').slice(0, 12))(document.activeElement)")
        reached.append(name)
        if name.startswith("SUMMARY"):
            break
    assert {"dataset", "metric", "first", "second", "order", "filter"} <= set(reached)
    assert any(name.startswith("BUTTON") for name in reached)
    assert tab.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
    tab.press("Enter")
    tab.run("new Promise(done => setTimeout(done, 200))")
    lists = tab.run("document.querySelector('#query-list details').innerText")
    assert "Best of mini<b>tuned</b>" in lists
    assert "Best of bm25" in lists
    assert "Relevant documents" in lists
    assert "relevant, grade 1" in lists
    tab.press("Enter")
    assert not tab.run("document.querySelector('#query-list details').open")
    # A key on the head of a column sorts.
    tab.run("document.querySelectorAll('table')[0].querySelectorAll('th button')[1].focus()")
    before = column(tab, 1)
    tab.press("Space")
    assert column(tab, 1) == before[::-1]


def test_the_lists_are_the_worst_and_the_most_changed(browser: Browser, page: str) -> None:
    tab = Tab(browser, page)

    def differences() -> list[float]:
        texts = tab.run("[...document.querySelectorAll('.values span')].map(one => one.textContent)")
        return [float(text.replace("−", "-").replace("±", "")) for text in texts]

    behind = differences()
    assert behind == sorted(behind)
    assert behind[-1] < 0
    choose(tab, "#order", "ahead")
    ahead = differences()
    assert ahead == sorted(ahead, reverse=True)
    assert ahead[-1] > 0
    choose(tab, "#first", "bm25")  # both models are bm25 now: the worst of it
    choose(tab, "#order", "worst")
    values = tab.run("[...document.querySelectorAll('.values')].map(one => one.textContent)")
    numbers = [float(text.rsplit(" ", 1)[1]) for text in values]
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    choose(tab, "#dataset", "numbers")
    assert "of numbers" in tab.run("document.querySelectorAll('#query-list summary')[1].textContent")
    tab.run("(f => { f.value = 'number 7 '; f.dispatchEvent(new Event('input')) })(document.getElementById('filter'))")
    assert tab.run("document.querySelectorAll('#query-list summary').length") <= 1
    assert tab.errors == []


def test_texts_stay_texts(browser: Browser, page: str) -> None:
    tab = Tab(browser, page)
    choose(tab, "#order", "worst")
    assert HOSTILE in tab.run("document.querySelector('#query-list summary').textContent")
    tab.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    tab.run("new Promise(done => setTimeout(done, 200))")
    assert ENDS in tab.run("document.querySelector('#query-list').textContent")
    assert tab.run("document.querySelectorAll('#query-list script, #query-list img, table b').length") == 0
    assert tab.run("window.hacked") is None
    # The policy holds even for markup that got in: nothing inline runs, nothing is loaded.
    tab.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"https://example.org/x.png\" onerror=\"hacked=1\">')"
    )
    tab.run("new Promise(done => setTimeout(done, 300))")
    assert tab.run("window.hacked") is None
    assert any("Content Security Policy" in error for error in tab.errors)
