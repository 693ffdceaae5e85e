"""Folders and files that may not be read: what reads them ends in one line that names them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

PACKAGE = Path(__file__).parent.parent.parent / "platform"
NOBODY = 65534
# Statements that read a folder or a file; each ends in an error.
READERS = {
    "files": "from raytriever.store.commit import files_below; files_below(folder)",
    "data set": "from raytriever.data.sources import Source; Source.open(folder)",
    "modules": "from raytriever.data.pydocs.builder import modules_of; list(modules_of(folder))",
    "weights": "from raytriever.models.files import stored_tensors; stored_tensors(folder)",
}


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody may enter, with a folder in it that nobody may read."""
    with TemporaryDirectory(prefix="raytriever-test-") as name:
        folder = Path(name)
        (folder / "part" / "closed").mkdir(parents=True)
        (folder / "corpus.jsonl").write_text('{"_id": "d", "text": "t"}\n')
        folder.chmod(0o755)
        (folder / "part" / "closed").chmod(0o000)
        yield folder
        (folder / "part" / "closed").chmod(0o700)


def lines_for_nobody(folder: Path) -> list[str]:
    """The lines of the errors of `READERS`, run as a user without rights."""
    # Modules are loaded before the rights are dropped: the interpreter may be in a folder of the first user's.
    program = f"""
import os, sys
from pathlib import Path
from raytriever.errors import UserError
import raytriever.data.sources, raytriever.data.pydocs.builder, raytriever.models.files, raytriever.store.commit
import safetensors.torch
folder = Path(sys.argv[1])
if os.getuid() == 0:
    os.setuid({NOBODY})
for statement in {[*READERS.values()]}:
    try:
        exec(statement)
    except UserError as error:
        print(error)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env=os.environ | {"PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.splitlines()


def test_a_folder_or_weights_that_may_not_be_read_are_named(shared: Path) -> None:
    file = shared / "model.safetensors"
    file.write_bytes(b"")
    file.chmod(0)
    *lines, weights = lines_for_nobody(shared)
    assert len(lines) == len(READERS) - 1
    for line in lines:
        assert str(shared / "part" / "closed") in line
        assert "ermi" in line  # permission, or permitted
    assert weights.startswith(f"{file}: permission denied; make it readable for this user (chmod, chown)")
