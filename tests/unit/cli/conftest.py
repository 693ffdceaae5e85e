"""Fixtures that run the command line in this process, and documents to import."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cli.main import run

_PROGRESS = re.compile(r"/s, \d|: preparing |: prepared before|: \d+ s$|: [\d,]+ rows$")


@pytest.fixture
def error_line(work: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a stage that must end with exit code 2, one line and no new file; return the line without `error: `."""

    def end(stage: str, *words: object) -> str:
        before = sorted(work.rglob("*"))
        capsys.readouterr()
        code = run(stage, [str(word) for word in words])
        out, err = capsys.readouterr()
        assert code == 2, err
        assert not out
        lines = [line for line in err.splitlines() if not _PROGRESS.search(line)]
        assert len(lines) == 1, err
        assert lines[0].startswith("error: ")
        assert err.endswith("\n")
        assert "Traceback" not in err
        assert sorted(work.rglob("*")) == before
        return lines[0].removeprefix("error: ")

    return end


@pytest.fixture
def write_part() -> Callable[..., None]:
    """Write the document of one part, of some metal."""

    def write(folder: Path, number: int, metal: str = "steel") -> None:
        lines = [f"# Part {number}", f"Part {number} is made of {metal}.", "## Repair", f"Replace part {number}. " * 20]
        (folder / f"part{number}.md").write_text("\n\n".join(lines))

    return write


@pytest.fixture
def docs(work: Path, write_part: Callable[..., None]) -> Path:
    """Folder of thirty documents, and a table of a question about each and of one about none of them."""
    folder = work / "docs"
    folder.mkdir()
    for number in range(30):
        write_part(folder, number)
    rows = [f"how do I repair {number},part{number}.md,repair" for number in range(30)]
    (folder / "qa.csv").write_text("\n".join(["question,file,anchor", *rows, "lost,partt1.md,"]) + "\n")
    return folder
