"""An evaluation by actors has the figures of one by a single process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
def test_actors_find_what_one_process_finds(
    command_line: Callable[..., Any], tiny_encoder: Path, tiny_dataset: Path
) -> None:
    line = command_line()
    words = ["--model", "bm25", str(tiny_encoder), "--datasets", str(tiny_dataset), "--precision", "fp32"]

    def evaluated(name: str, *more: str) -> Any:
        process = line.start("evaluate", *words, "--output", name, *more)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        return json.loads((line.folder / name / "results.json").read_text())["models"]

    # The actors first, so that nothing is in the cache.
    by_actors = evaluated("actors", "--actors", "2")
    assert len(list((line.folder / "cache" / "embeddings").iterdir())) == 1
    assert by_actors == evaluated("alone")
