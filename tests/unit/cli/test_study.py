"""`study`: user errors, and the full scale without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cli.main import run
from raytriever.studies.recipes import STUDIES
from raytriever.studies.run import study as engine
from raytriever.studies.run.study import SETTINGS

ErrorLine = Callable[..., str]


def test_a_directory_of_other_files_is_refused(error_line: ErrorLine, work: Path) -> None:
    folder = work / "s"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    assert "--output s: is not empty and holds no study" in error_line("study", "mw-in-domain", "--output", "s")
    (folder / SETTINGS).write_text(json.dumps({"study": "ratio", "scale": "smoke", "arms": {}}))
    expected = error_line("study", "mw-in-domain", "--output", "s")
    assert (
        expected
        == "--output s: holds another study (study ratio; this command asks for mw-in-domain); give another directory"
    )
    (folder / SETTINGS).write_text(json.dumps({"study": "mw-in-domain", "scale": "small", "arms": {}}))
    assert "(scale small; this command asks for smoke)" in error_line("study", "mw-in-domain", "--output", "s")
    (folder / SETTINGS).write_text('{"study": "mw-in')
    assert "study.json: is damaged or changed: it is not JSON" in error_line("study", "mw-in-domain", "--output", "s")


def test_the_full_scale_prints_its_cost_and_needs_a_gpu(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.torch.cuda, "is_available", lambda: False)
    assert run("study", ["mw-in-domain", "--scale", "full", "--output", "s"]) == 2
    out, err = capsys.readouterr()
    assert "xlm-roberta-large" in out
    assert "GPU hours" in out
    assert err.startswith("error: --scale full: the study needs ")
    assert len(err.splitlines()) == 1
    assert not list(work.iterdir())


def test_missing_data_is_reported_before_the_first_arm(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.torch.cuda, "is_available", lambda: True)
    (work / "packs").mkdir()
    assert run("study", ["mw-in-domain", "--scale", "full", "--output", "s", "--data-root", "packs"]) == 2
    err = capsys.readouterr().err
    assert "msmarco: does not exist; give --data-root, the folder that holds it, or copy the data set there" in err
    assert len(err.splitlines()) == 1
    assert [path.name for path in work.iterdir()] == ["packs"]


def test_the_studies_are_named(work: Path, capsys: pytest.CaptureFixture[str], error_line: ErrorLine) -> None:
    with pytest.raises(SystemExit) as end:
        run("study", ["--list"])
    assert end.value.code == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(lines) == {*STUDIES, "ood", "FILE.yaml"}
    assert lines["mw-in-domain"].endswith("Table 1: each loss trained and measured on the same data set.")
    assert all(len(line.split()) > 3 and line.endswith((".", "?")) for line in lines.values()), lines
    line = error_line("study")
    assert all(name in line for name in (*STUDIES, "ood", "FILE.yaml")), line


@pytest.mark.slow
def test_the_control_set_has_the_documents_that_are_asked_for(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ood", "--model", "control", "--documents", "1000", "--queries", "50", "--indexes", "ivf", "--output", "s"]
    assert run("study", words) == 0, capsys.readouterr().err
    assert json.loads((work / "s" / "control" / "results.json").read_text())["documents"] == 1000
