"""The wheel that `make dist` builds holds the whole package and its types, and is imported from there."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from processes import run_python

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "platform" / "raytriever"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # Without isolation, so that the build needs no network: hatchling is one of the packages for tests.
    command = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder), str(REPOSITORY)]
    run_python("-m", "pip", *command, timeout=200)
    [wheel] = folder.glob("raytriever-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "content")
    return folder / "content"


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(unpacked: Path) -> None:
    def files(folder: Path) -> set[str]:
        paths = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
        return {str(path) for path in paths if "__pycache__" not in path.parts}

    assert files(unpacked / "raytriever") == files(PACKAGE)
    assert (unpacked / "raytriever" / "py.typed").is_file()
    assert {path.name.split("-")[0] for path in unpacked.iterdir()} == {"raytriever"}


@pytest.mark.slow
def test_every_command_shows_its_help_from_the_wheel(unpacked: Path, tmp_path: Path) -> None:
    [entry_points] = unpacked.glob("*.dist-info/entry_points.txt")
    assert "raytriever = raytriever.cli.main:run" in entry_points.read_text()
    program = (
        "from raytriever.cli.commands import COMMANDS\nfrom raytriever.cli.main import run\n"
        "for stage in COMMANDS:\n    try:\n        run(stage, ['--help'])\n"
        "    except SystemExit as ended:\n        assert not ended.code, stage"
    )
    done = run_python("-c", program, cwd=tmp_path, variables={"PYTHONPATH": str(unpacked)})
    assert "usage: raytriever quickstart [flags]" in done.stdout
    assert not list(tmp_path.iterdir())
