"""A study from its file to its table and page, and the priority of its processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from raytriever.cluster.ray_session import ray_session
from raytriever.experiments.study.run_study import NICENESS, _equal_priority

pytestmark = pytest.mark.slow
CommandLine = Any


def test_rays_processes_have_the_priority_of_the_study() -> None:
    """Else a refresh of hard negatives waits for the training in the process of the study."""
    before = dict(os.environ)
    with _equal_priority(), ray_session(1):
        there = ray.get(ray.remote(lambda: os.nice(0)).remote())
    assert there == os.nice(0)
    assert dict(os.environ).get(NICENESS) == before.get(NICENESS)


def test_a_study_of_a_file_compares_its_variants(
    command_line: Callable[[], CommandLine], study_text: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(study_text.replace("seeds: 1", "seeds: 2"))
    line = command_line()
    for _ in range(2):
        out, err = line.run("study", "mine.yaml", "--output", "mine")
    assert "mine is finished; a larger --seeds continues it" in err
    results = json.loads((tmp_path / "mine" / "results.json").read_text())
    assert (results["study"], results["seeds"]) == ("mine", 2)
    auc = {row: cell["Letters"]["auc"] for row, cell in results["rows"].items()}
    assert {row: len(value["values"]) for row, value in auc.items()} == {"untrained": 1, "InfoNCE": 2, "MW": 2}
    assert auc["MW"]["mean"] > auc["untrained"]["mean"]
    assert results["claims"][0]["text"] == "MW is above untrained in AUC"
    assert r"\toprule" in (tmp_path / "mine" / "table.tex").read_text()
    assert "InfoNCE" in out
    assert "All pairs: t-test over queries and seeds" in (tmp_path / "mine" / "study.md").read_text()
    assert {(row["model"], row["metric"]) for row in results["pairs"]} >= {("MW", "auc")}
    variants = [f"mine/variants/{name}/seed-0" for name in ("MW-Letters", "InfoNCE-Letters")]
    line.run("compare", *variants, "--output", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "MW-Letters_seed-0" in page
    assert page.count("AUC") > 3
