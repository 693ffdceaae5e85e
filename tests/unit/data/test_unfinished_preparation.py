"""A preparation that was killed continues with its finished shards, and ends with the bytes of an undisturbed one."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from beir import write_beir
from prepared import prepare

from raytriever.core.errors import StorageError
from raytriever.core.store import capacity
from raytriever.core.store.commit import FileEntry, leftovers, read_manifest
from raytriever.data.formats.file_blocks import FileBlock, Parsed
from raytriever.data.formats.plan import Part
from raytriever.data.prepare import prepare_dataset, text_shards
from raytriever.data.prepare.prepare_dataset import Request, in_this_process
from raytriever.data.prepare.text_shards import WORK

CHUNK, FINISHED = 1 << 12, 5
KILLED = f"""
import os, signal, sys
from pathlib import Path
from raytriever.data.prepare import prepare_dataset as pipeline

def run(writer, total):
    for number, report in enumerate(pipeline.in_this_process(writer, total)):
        yield report
        if number == {FINISHED - 1}:
            os.kill(os.getpid(), signal.SIGKILL)

pipeline._SMALLEST = {CHUNK}
pipeline.prepare(pipeline.Request(sys.argv[1]), run, Path(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of which the first file alone has more than `FINISHED` blocks; one of its rows is bad."""
    sample = random.Random(0)
    folder = tmp_path_factory.mktemp("source") / "words"
    write_beir(
        folder, [" ".join(sample.choices(("one", "two", "three"), k=30)) for _ in range(280)], ["one"], train=[(0, 0)]
    )
    lines = (folder / "corpus.jsonl").read_text().split("\n")
    lines[7] = "{"
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(autouse=True)
def small_chunks(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_dataset, "_SMALLEST", CHUNK)


@pytest.fixture(scope="module")
def left(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hidden directory of a preparation of `out` that was killed."""
    output = tmp_path_factory.mktemp("left") / "out"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(source), str(output)], check=False)
    assert ended.returncode == -signal.SIGKILL
    [leftover] = leftovers(output)
    assert len(list((leftover / WORK).glob("*-*.npz"))) == FINISHED
    return leftover


@pytest.fixture
def killed(left: Path, tmp_path: Path) -> Path:
    """A copy of it, for `out` in the folder of the test."""
    return Path(shutil.copytree(left, tmp_path / left.name))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the blocks that are parsed."""
    numbers: list[int] = []
    parse = text_shards.parse_block

    def parse_block(part: Part, block: FileBlock) -> Parsed:
        numbers.append(block.number)
        return parse(part, block)

    monkeypatch.setattr(text_shards, "parse_block", parse_block)
    return numbers


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preparation that was not disturbed."""
    output = tmp_path_factory.mktemp("whole") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYTRIEVER_CACHE", str(output.parent / "cache"))
        patch.setattr(prepare_dataset, "_SMALLEST", CHUNK)
        assert go_on(source, output)[1] == []
    return output


def go_on(source: Path, output: Path) -> tuple[dict[str, FileEntry], list[str]]:
    """Prepare; return the files with their digests, and the lines that were said."""
    lines: list[str] = []
    prepare(Request(str(source)), in_this_process, output, lines.append)
    return read_manifest(output)["files"], [line for line in lines if "killed" in line]


def nothing(leftover: Path) -> None: ...


def cut_off(leftover: Path) -> None:
    """What a killed process writes: files of a shard, a file that has no name yet, and one that `assemble` makes."""
    (leftover / "documents" / f"00000-{FINISHED:06d}.arrow").write_bytes(b"ARROW1")
    (leftover / WORK / "0a1b2c.npz").touch()
    (leftover / "documents.hashes.npy").write_bytes(b"")


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def damage(leftover: Path) -> None:
    flip(leftover / "documents" / "00000-000002.arrow")


def lose(leftover: Path) -> None:
    (leftover / "documents" / "00000-000002.arrow").unlink()


def damage_work(leftover: Path) -> None:
    flip(leftover / WORK / "00000-000002.npz")


def empty_work(leftover: Path) -> None:
    (leftover / WORK / "00000-000002.npz").write_bytes(b"")


def grow_old(leftover: Path) -> None:
    os.utime(leftover, (0, 0))


@pytest.mark.fast_every(4)
@pytest.mark.parametrize(
    ("harm", "again"),
    [
        (nothing, []),
        (cut_off, []),
        (grow_old, []),
        (damage, [2]),
        (lose, [2]),
        (damage_work, [2]),
        (empty_work, [2]),
    ],
)
def test_finished_shards_stay(
    harm: Callable[[Path], None],
    again: list[int],
    source: Path,
    whole: Path,
    killed: Path,
    parsed: list[int],
    tmp_path: Path,
) -> None:
    harm(killed)
    files, said = go_on(source, tmp_path / "out")
    assert said == [f"words: a preparation was killed; continuing after {FINISHED} shards"]
    manifest = read_manifest(whole)
    blocks = len([name for name in manifest["files"] if re.fullmatch(r"documents/00000-\d+\.arrow", name)])
    assert blocks > FINISHED + 2
    assert parsed[: parsed.index(0)] == [*again, *range(FINISHED, blocks)]
    assert (files, read_manifest(tmp_path / "out")["meta"]) == (manifest["files"], manifest["meta"])
    assert not killed.exists()
    assert not leftovers(tmp_path / "out")


def test_shards_of_other_files_or_chunks_do_not(
    source: Path, killed: Path, parsed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(prepare_dataset, "_SMALLEST", 2 * CHUNK)
        assert go_on(source, tmp_path / "out")[1] == []
    assert parsed[:2] == [0, 1]
    assert killed.exists()  # a new one may be another command's
    corpus = source / "corpus.jsonl"
    before = corpus.read_text()
    try:
        corpus.write_text(before + '{"_id": "last", "text": "one"}\n')
        assert go_on(source, tmp_path / "out")[1] == []
    finally:
        corpus.write_text(before)  # other tests have the same source


def test_what_is_there_needs_no_room(
    source: Path, killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(file.stat().st_size for file in killed.rglob("*") if file.is_file())
    needed = text_shards.bytes_of_shards([(str(file), file.stat().st_size) for file in source.rglob("*.*sonl")], False)
    monkeypatch.setattr(capacity, "free_space", lambda folder: needed - size - 10)
    with pytest.raises(StorageError, match="the shards of the data set"):
        go_on(source, tmp_path / "out")
    assert killed.exists()
    monkeypatch.setattr(capacity, "free_space", lambda folder: needed - size // 2)
    go_on(source, tmp_path / "out")
