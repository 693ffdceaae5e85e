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


# Modules are loaded before the rights are dropped: the interpreter may be in a folder of the first user's.
PROGRAM = f"""
import os, sys
from pathlib import Path
from raytriever.errors import UserError
from raytriever.data.pydocs import pairs_of
from raytriever.data.sources import Source
from raytriever.models.files import stored_tensors
from raytriever.store.commit import files_below
import safetensors.torch
folder = Path(sys.argv[1])
if os.getuid() == 0:
    os.setuid({NOBODY})
for read in (files_below, Source.open, lambda folder: list(pairs_of(folder)), stored_tensors):
    try:
        read(folder)
    except UserError as error:
        print(error)
"""


@pytest.mark.slow
def test_folders_and_weights_that_may_not_be_read_are_named(shared: Path) -> None:
    weights = shared / "model.safetensors"
    weights.write_bytes(b"")
    weights.chmod(0)
    environment = os.environ | {"PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, "-c", PROGRAM, str(shared)]
    *listings, of_weights = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(listings) == 3
    for line in listings:
        assert str(shared / "part" / "closed") in line
        assert "ermi" in line  # permission, or permitted
    assert of_weights.startswith(f"{weights}: permission denied; make it readable for this user (chmod, chown)")
