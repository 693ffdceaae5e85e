"""A task of MTEB by actors has the figures of one process, and `jobs/evaluate.py` runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.slow
def test_actors_have_the_scores_of_one_process(tiny_encoder: Path, tmp_path: Path) -> None:
    def scores(name: str, *more: str) -> dict[str, Any]:
        words = ["--suite", "mteb", "--tasks", "TinyRetrieval,TinyReranking", "--model", str(tiny_encoder)]
        words += ["--tracker", "none", *more]
        command = [sys.executable, str(SUPPORT / "mteb_tasks.py"), *words, "--output", str(tmp_path / name)]
        done = subprocess.run(
            command,
            env={**os.environ, "RAYTRIEVER_CACHE": str(tmp_path / f"cache-{name}")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        files = (tmp_path / name / "results" / "encoder").glob("*/Tiny*.json")
        return {file.stem: json.loads(file.read_text())["scores"] for file in files}

    by_actors = scores("actors", "--actors", "2")
    assert sorted(by_actors) == ["TinyReranking", "TinyRetrieval"]
    assert by_actors == scores("alone")
