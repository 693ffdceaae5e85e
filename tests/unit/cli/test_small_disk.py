"""A stage whose output does not fit on the disk ends in one line before it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytriever.cli.main import run
from raytriever.core.store import capacity


@pytest.fixture
def small(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave 100 bytes on the disk of the output, and enough on that of the cache."""
    folder = Path.cwd()
    monkeypatch.setattr(capacity, "free_space", lambda existing: 100 if existing == folder else 10**12)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("command", "words", "content"),
    [
        ("prepare", "", "the shards of the data set need"),
        ("encode", "--model MODEL", "the embeddings need 2"),
        ("index", "--model MODEL --index hnsw", "the files of the index need"),
        ("mine", "", "the negatives need"),
        ("train", "--model MODEL --max-steps 2 --batch-size 8", "the checkpoints and the model need"),
    ],
)
def test_a_command_ends_before_it_writes(
    command: str, words: str, content: str, letters: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(Path.cwd().iterdir())
    flags = words.replace("MODEL", str(tiny_encoder)).split()
    assert run(command, ["--dataset", str(letters), "--output", "made", *flags]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert content in line
    assert "and 100 B is free; free some space or write to another disk" in line
    assert not Path("made").exists()
    assert sorted(Path.cwd().iterdir()) == before
