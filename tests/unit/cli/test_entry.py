"""Console script, exit codes and imports of `--help`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from processes import run_python

from raytriever import __version__
from raytriever.cli import model_commands
from raytriever.cli.command import Given
from raytriever.cli.commands import COMMANDS, Row
from raytriever.cli.main import run

HEAVY = ("torch", "transformers", "ray", "mlflow", "numpy", "matplotlib")


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["raytriever", *words])
    return run()


def test_the_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_an_unknown_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "trian") == 2
    assert capsys.readouterr().err == "error: unknown command 'trian'; did you mean 'train'?\n"


def test_the_command_of_the_contributors_page_is_added_in_one_place(
    letters: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    file, row = (block.split("```")[0] for block in page.split("## Add a command")[1].split("```python\n")[1:3])
    module = ModuleType("raytriever.cli.passages")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(file, module.__dict__)  # the page is ours
    monkeypatch.setitem(COMMANDS, "passages", eval(row, {"Row": Row})["passages"])  # noqa: S307
    assert run("passages", ["--dataset", str(letters), "--rows", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert call(monkeypatch) == 0
    assert "  passages    print the first passages of a data set" in capsys.readouterr().out
    assert run("passages", ["--dataset", str(letters), "--row", "2"]) == 2
    assert "--row: unknown flag; did you mean '--rows'?" in capsys.readouterr().err


def test_a_broken_pipe_to_a_process_is_no_quiet_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_pipe(given: Given) -> list[str]:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(model_commands, "SEARCH", replace(model_commands.SEARCH, run=break_pipe))
    with pytest.raises(BrokenPipeError):
        run("search", ["x"])


def test_help_imports_nothing_heavy() -> None:
    program = f"""
import sys
from raytriever.cli.main import run
for stage in {[*COMMANDS, ""]}:
    sys.argv = ["raytriever", *filter(None, [stage]), "--help"]
    try:
        assert run() == 0
    except SystemExit as ended:
        assert not ended.code
    print(stage, *(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)
"""
    done = run_python("-c", program)
    assert done.stderr.split() == list(COMMANDS)
    assert done.stdout.count("usage: ") == 1 + len(COMMANDS)
    assert "did you mean" not in done.stdout


def test_an_output_that_holds_something_else_is_refused_before_anything_heavy(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    program = f"""
import sys
from raytriever.cli.main import run
print(run("train", ["--recipe", "pydocs", "--output", sys.argv[1]]), {{*{HEAVY}}} & set(sys.modules))
"""
    done = run_python("-c", program, tmp_path)
    assert done.stdout == "2 set()\n"
    assert done.stderr == f"error: output {tmp_path}: is not empty and holds no run; give another directory\n"


def test_a_very_long_error_is_cut_in_its_middle(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "prepare", "--dataset", "/".join(["deep" * 50] * 30), "--output", "out") == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert line.endswith("give a shorter name\n")
    assert " ... " in line
    assert len(line) < 1600
