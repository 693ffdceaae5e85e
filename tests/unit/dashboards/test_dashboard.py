"""The dashboard that is committed is the one described, and Grafana can show it."""

from __future__ import annotations

import json
import re
import sys
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.append(str(Path(__file__).parents[3] / "dashboards"))
import panels

REPOSITORY = Path(__file__).parents[3]
ALERTS = yaml.safe_load((REPOSITORY / "dashboards" / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]


@pytest.fixture(scope="module")
def board() -> dict[str, Any]:
    return dict(json.loads(panels.TARGET.read_text(encoding="utf-8")))


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    """Whether two places on the grid share a cell."""
    across = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
    return across and one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]


def test_what_is_committed_is_what_is_described() -> None:
    assert panels.TARGET.read_text(encoding="utf-8") == panels.text()


def test_ids_are_unique_and_no_panel_lies_over_another(board: dict[str, Any]) -> None:
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(area["x"] >= 0 and area["x"] + area["w"] <= 24 for area in places)
    assert [pair for pair in combinations(places, 2) if overlap(*pair)] == []
    assert all(item["y"] <= other["y"] for item, other in pairwise(places))


def test_every_panel_says_what_it_shows_in_which_unit(board: dict[str, Any]) -> None:
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert {panel["type"] for panel in panels} == {"timeseries"}
    assert len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters) > 0


def test_every_figure_of_ours_is_of_the_chosen_runs(board: dict[str, Any]) -> None:
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource", "run"]
    curves = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    for curve in curves:
        assert ("raytriever" in curve) == ('run=~"$run"' in curve), curve


def test_every_alert_says_what_to_do(board: dict[str, Any]) -> None:
    page = (REPOSITORY / "docs" / "how-to" / "answer-an-alert.md").read_text(encoding="utf-8")
    written = re.findall(r"^### (Raytriever\w+)$", page, re.MULTILINE)
    assert written == [rule["alert"] for rule in ALERTS]
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["runbook"] == f"docs/how-to/answer-an-alert.md#{rule['alert'].lower()}"
