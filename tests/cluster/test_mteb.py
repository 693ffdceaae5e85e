"""A task of MTEB by actors has the figures of one process, and `jobs/evaluate.py` runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processes import run_python

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.slow
def test_actors_have_the_scores_of_one_process(tiny_encoder: Path, tmp_path: Path) -> None:
    def scores(name: str, *more: str) -> dict[str, Any]:
        words = ["--suite", "mteb", "--tasks", "TinyRetrieval,TinyReranking", "--model", tiny_encoder]
        words += ["--tracker", "none", *more, "--output", tmp_path / name]
        run_python(SUPPORT / "mteb_tasks.py", *words, variables={"RAYTRIEVER_CACHE": str(tmp_path / f"cache-{name}")})
        files = (tmp_path / name / "results" / "encoder").glob("*/Tiny*.json")
        return {file.stem: json.loads(file.read_text())["scores"] for file in files}

    by_actors = scores("actors", "--actors", "2")
    assert sorted(by_actors) == ["TinyReranking", "TinyRetrieval"]
    assert by_actors == scores("alone")
