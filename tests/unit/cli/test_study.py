"""`study`: user errors before anything is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from raytriever.experiments.study.run_study import SETTINGS

ErrorLine = Callable[..., str]


def test_a_directory_of_other_files_is_refused(error_line: ErrorLine, work: Path) -> None:
    (work / "mine.yaml").write_text("data_sets: {docs: pydocs}\narms: {BM25: bm25}\n")
    folder = work / "s"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    assert "output s: is not empty and holds no study" in error_line("study", "mine.yaml", "--output", "s")
    (folder / SETTINGS).write_text(json.dumps({"study": "ratio", "variants": {}}))
    expected = error_line("study", "mine.yaml", "--output", "s")
    assert expected == "output s: holds another study (ratio; this command asks for mine); give another directory"
    (folder / SETTINGS).write_text('{"study": "mw-in')
    assert "study.json: is damaged or changed: it is not JSON" in error_line("study", "mine.yaml", "--output", "s")
