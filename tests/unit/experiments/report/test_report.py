"""Pages and figures: their contents, escaped texts, and no requests to the network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from evaluations import ENDS, HOSTILE, write_evaluated, write_evaluation

from raytriever.core.errors import StorageError
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.evaluation.evaluate_split import evaluate
from raytriever.evaluation.evaluation_files import read_queries
from raytriever.evaluation.report_document import document
from raytriever.evaluation.result_tables import Cell, ReportTable
from raytriever.evaluation.results import Results
from raytriever.evaluation.systems import Bm25System
from raytriever.experiments.report.evaluation_page import write_evaluation_report, write_training_report
from raytriever.experiments.report.figures import save_gains, save_roc, styles_of
from raytriever.experiments.report.html_page import MAX_QUERIES, Page, choose_queries, write_page
from raytriever.metrics.pair_threshold import ScoredPools

MODELS = ("bm25", "mini<b>tuned</b>")


class Elements(HTMLParser):
    """Elements of a page with their attributes, and the texts of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inner: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag
        if tag in ("script", "style"):
            self.inner.append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style"):
            self.inner[-1] += data


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_evaluation(tmp_path_factory.mktemp("evaluation"), MODELS, ["letters"])


@pytest.mark.slow
def test_an_evaluation_gets_figures_and_a_page_with_all_of_them(evaluation: Path) -> None:
    write_evaluation_report(evaluation)
    names = {file.name for file in (evaluation / "figures").iterdir()}
    stems = ["calibration.letters", "gain-auc", "gain-mrr_at_10", "gain-ndcg_at_10", "roc.letters", "scores.letters"]
    stems.append("thresholds.letters")
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}
    page = Elements((evaluation / "report.html").read_text())
    images = [attributes["src"] or "" for tag, attributes in page.elements if tag == "img"]
    assert len(images) == len(stems)
    for image in images:
        ElementTree.fromstring(base64.b64decode(image.removeprefix("data:image/svg+xml;base64,")))


def test_a_page_needs_no_other_file_and_escapes_hostile_texts(evaluation: Path, tmp_path: Path) -> None:
    tables = [table for section in document(Results.read(evaluation)) for table in section.tables]
    write_page(tmp_path / "p.html", Page("Evaluation", tables=tables, queries=read_queries(evaluation)))
    text = (tmp_path / "p.html").read_text()
    page = Elements(text)
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert "b" not in [tag for tag, _ in page.elements]
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith(("data:", "#"))
    style, data, script = page.inner
    policy = next(a["content"] or "" for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:; ")
    for kind, content in (("style-src", style), ("script-src", script)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert "<" not in data
    queries = json.loads(data)["queries"]["letters"]
    assert queries["queries"][0]["text"] == HOSTILE
    assert ENDS in {title for _, title, _ in queries["documents"]}
    assert HOSTILE not in text


def test_a_page_with_one_table_escapes_its_texts(tmp_path: Path) -> None:
    rows = [["a", Cell("0.5", 0.5, "+", "better", rank=0)], ["<i>", Cell("<0.1", 0.0)]]
    write_page(
        tmp_path / "p.html",
        Page("T & {{data}}", ["{{script}}"], [ReportTable("x", ["model", "y"], rows)], settings="<a: 1>"),
    )
    text = (tmp_path / "p.html").read_text()
    assert "<h1>T &amp; {{data}}</h1>\n<p>{{script}}</p>" in text
    assert '<td class="best" data-value="0.5" title="better">0.5<sup>+</sup></td>' in text
    assert '<td class="text" data-value="&lt;i&gt;">&lt;i&gt;</td><td data-value="0.0">&lt;0.1<sup></sup></td>' in text
    assert "&lt;a: 1&gt;" in text
    assert 'id="drill"' not in text


def per_query_content(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return per-query content for values `[models, metrics, queries]`, with one document per query."""
    count = values.shape[2]
    models = {
        f"m{i}": {
            "metrics": {f"x{j}": [None if v != v else v for v in row.tolist()] for j, row in enumerate(model_values)},
            "top": [[[f"d{q % 3}", "t", "text", 1.0, None]] for q in range(count)],
        }
        for i, model_values in enumerate(values)
    }
    return {
        "queries": [f"q{i}" for i in range(count)],
        "texts": ["text"] * count,
        "models": models,
        "relevant": [[[f"d{i % 3}", "t", "text", 1]] for i in range(count)],
    }


def test_a_page_has_the_first_queries_of_every_list() -> None:
    values = np.random.default_rng(0).random((3, 2, 3000))
    values[0, 0, :2900] = np.nan
    shown = choose_queries(per_query_content(values))
    on_page = {query["id"] for query in shown["queries"]}
    assert len(on_page) <= MAX_QUERIES
    assert shown["of"] == 3000
    assert shown["depth"] >= 5
    assert len(shown["documents"]) == 3
    lists = [values[i, j] for i in range(3) for j in range(2)]
    lists += [values[i, j] - values[k, j] for i in range(3) for k in range(3) for j in range(2) if i != k]
    for keys in lists:
        first = np.argsort(keys)[: shown["depth"]]
        assert {f"q{query}" for query in first} <= on_page
    everything = choose_queries(per_query_content(values[:, :, :50]))
    assert len(everything["queries"]) == 50
    assert everything["queries"][0]["values"][0][0] is None


@pytest.mark.slow
def test_figures_are_reproducible_and_accept_any_name(tmp_path: Path) -> None:
    scores = np.linspace(0, 1, 50, dtype=np.float32)
    pools = ScoredPools(scores, scores / 2)
    systems = {"$x^": pools, "_<hidden>&": pools, "模型": pools, "empty": ScoredPools(scores[:0], scores)}
    for name in ("a", "b"):
        save_roc(tmp_path / f"{name}.png", systems)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    texts = "".join(ElementTree.parse(tmp_path / "a.svg").getroot().itertext())
    assert all(name in texts for name in ("$x^", "_<hidden>&", "模型"))
    assert "empty" not in texts
    save_gains(tmp_path / "gain.png", {"m": {"s": 0.1}, "n": {"s": -0.1, "t": 0.2}}, "nDCG@10", "bm25")
    assert re.search("nDCG@10, above or below bm25", (tmp_path / "gain.svg").read_text())
    assert (tmp_path / "gain.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("per_query/letters.json", "{}", "is damaged or changed: 'dataset' is missing"),
        ("scores/bm25/letters.npz", "nothing", "is damaged or changed: File is not a zip file"),
        ("results.json", '{"format": 1}', "is of format 1; this version reads format 3; evaluate again"),
    ],
)
def test_a_damaged_file_or_one_of_another_format_gives_one_line(
    evaluation: Path, tmp_path: Path, file: str, content: str, message: str
) -> None:
    for name in ("results.json", file):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((evaluation / name).read_bytes())
    (tmp_path / file).write_text(content)
    with pytest.raises(StorageError, match=message):
        write_evaluation_report(tmp_path)


def test_a_training_is_reported_from_its_evaluation_directory(tiny_dataset: Path, tmp_path: Path) -> None:
    dataset = open_dataset(tiny_dataset, ["test"])
    systems = dict.fromkeys(("bm25", "before", "after"), evaluate(dataset, "test", Bm25System(dataset)))
    results = write_evaluated(tmp_path / "evaluation", dataset, systems, "before")
    assert Results.read(tmp_path / "evaluation") == results
    curve = [(1, 0.5), (2, 0.25)]
    write_training_report(tmp_path, "A training", curve, curve[:1], {"auc": curve}, "seed: 0", ["A note"])
    text = (tmp_path / "report.html").read_text()
    for shown in ("A training", "A note.", "32 queries of split test", "stemmer: Snowball", "seed: 0", "All metrics"):
        assert shown in text
    drawn = {file.stem for file in (tmp_path / "figures").iterdir()}
    assert drawn >= {"roc.letters", "scores.letters", "calibration.letters", "gain-auc", "loss", "dev"}


def test_a_system_has_one_color_in_all_figures(tmp_path: Path) -> None:
    """The baseline has no bar; the others keep the colors that they have in the other figures."""
    styles = styles_of(["bm25", "mini", "tuned"])
    save_gains(tmp_path / "gain.png", {"mini": {"s": 0.1}, "tuned": {"s": 0.2}}, "nDCG@10", "bm25", styles)
    drawn = (tmp_path / "gain.svg").read_text().casefold()
    colors = [styles[name][0].casefold() for name in ("bm25", "mini", "tuned")]
    assert [color in drawn for color in colors] == [False, True, True]
