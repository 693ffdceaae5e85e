"""`study`: user errors, and the full scale without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cli.main import run
from raytriever.studies.run import study as engine
from raytriever.studies.run.study import SETTINGS

ErrorLine = Callable[..., str]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("mw-in-domian --output s", "unknown study 'mw-in-domian'; did you mean 'mw-in-domain'?"),
        ("mw-in-domain", "missing: --output; see `raytriever study --help`"),
        ("mw-in-domain --output s --scale smal", "--scale: unknown scale 'smal'; did you mean 'small'?"),
        ("mw-in-domain --output s --seeds 0", "--seeds: 0 is out of range; give 1 to 100"),
        ("mw-in-domain --output s --seeds few", "--seeds: 'few' is invalid; give a whole number"),
        ("mw-in-domain --output s --trial-gpus 1.5", "--trial-gpus: 1.5 is out of range; give a number above 0 and"),
        ("mw-in-domain --output s --run-name a/b", "--run-name: 'a/b' is not a valid run name; use letters"),
        ("mw-in-domain --output s --data-root gone", "--data-root gone: is no folder; name the folder that holds"),
        ("mw-in-domain --output s --scale small --data-root .", "squad"),
        ("mw-from-base --output s --scale full", "--scale full: at this scale mw-from-base is mw-in-domain; run the"),
        (
            "mw-from-base --output s --scale small --data-root .",
            "--data-root .: holds no base-encoder; run `python bench",
        ),
        ("mw-in-domain --output s --indexes flat", "--indexes: unknown flag"),
        ("--output s ood", "unknown study 'ood'; put it first, as in `study ood --output DIR`"),
    ],
)
def test_user_errors(error_line: ErrorLine, words: str, expected: str) -> None:
    assert expected in error_line("study", *words.split())


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
