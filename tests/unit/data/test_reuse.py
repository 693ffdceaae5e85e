"""A corpus that changes: its preparation copies the shards of unchanged chunks, and writes the bytes of a first one."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from beir import write_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.data.formats.rows import read_lines
from raytriever.data.prepare import pipeline
from raytriever.data.prepare.pipeline import Request, Runner, in_processes, in_this_process, prepare
from raytriever.data.prepare.prepared import read_prepared
from raytriever.data.prepare.shards import ShardReport, ShardWriter
from raytriever.data.prepare.tokenisation import Tokenisation
from raytriever.store.commit import read_manifest

CHUNK = 1 << 12
Rows = list[dict[str, str]]


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_SMALLEST", CHUNK)


COUNT = 240


def corpus(count: int = COUNT) -> Rows:
    draw = random.Random(0)
    return [{"_id": f"d{n}", "text": " ".join(draw.choices(("text", "title", "other"), k=30))} for n in range(count)]


class Preparation:
    """Preparation of a folder with a given cache; `shards` are those of the last one: all, and the copied ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, cache: Path) -> None:
        self._monkeypatch, self._folder, self._cache = monkeypatch, folder, cache
        self.run: Runner = in_this_process
        self.reports: list[ShardReport] = []

    def __call__(
        self, tokenisation: Tokenisation | None, cache: str = "cache", output: Path | None = None, bad: float = 0.01
    ) -> Path:
        self._monkeypatch.setenv("RAYTRIEVER_CACHE", str(self._cache / cache))
        self.reports.clear()

        def run(writer: ShardWriter, total: int) -> Iterator[ShardReport]:
            for report in self.run(writer, total):
                self.reports.append(report)
                yield report

        return prepare(Request(str(self._folder), tokenisation, max_bad_rows=bad), run, output)

    @property
    def copied(self) -> int:
        return sum(report.is_copied for report in self.reports)

    @property
    def written(self) -> int:
        return sum(not report.is_copied for report in self.reports if report.part == 0)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch, small: Path, tmp_path: Path) -> Preparation:
    write_rows(small / "corpus.jsonl", corpus())
    return Preparation(monkeypatch, small, tmp_path)


NEW = {"_id": "new", "text": "a new text"}


def test_only_chunks_with_a_change_are_written_again(prepared: Preparation, small: Path, words: Tokenisation) -> None:
    prepared.run = in_processes
    prepared(words)
    assert prepared.written > 10
    rows = corpus()
    changed = {"_id": "d100", "text": "another title"}
    # Put first, changed, removed and appended.
    rows = [{"_id": "first", "text": "a first text"}, *rows[:100], changed, *rows[101:180], *rows[182:], NEW]
    write_rows(small / "corpus.jsonl", rows)
    path = prepared(words)
    assert prepared.copied > 2
    assert prepared.written <= 8
    prepared.run = in_this_process
    assert read_manifest(path) == read_manifest(prepared(words, cache="another"))  # digests of all files, and the rest
    assert not prepared.copied


@pytest.mark.slow
def test_other_settings_copy_nothing(prepared: Preparation, small: Path, words: Tokenisation) -> None:
    prepared(words)
    for other in (None, replace(words, passage_prompt="title ")):
        prepared(other)
        assert not prepared.copied


@pytest.mark.slow
def test_a_directory_of_the_user_is_brought_up_to_date(
    prepared: Preparation, small: Path, words: Tokenisation, tmp_path: Path
) -> None:
    prepared(words, output=tmp_path / "mine")
    write_rows(small / "corpus.jsonl", corpus(COUNT + 1))
    prepared(words, output=tmp_path / "mine")
    assert prepared.copied > 0
    assert len(read_prepared(tmp_path / "mine").documents) == COUNT + 1
    # The cache knows the directory. After it has been removed, all is made again.
    write_rows(small / "corpus.jsonl", corpus(COUNT + 2))
    prepared(words)
    assert prepared.copied > 0
    shutil.rmtree(tmp_path / "mine")
    shutil.rmtree(tmp_path / "cache" / "datasets")
    prepared(words)
    assert not prepared.copied


def test_a_damaged_shard_is_written_again(prepared: Preparation, small: Path, words: Tokenisation) -> None:
    path = prepared(words)
    whole = prepared.written
    for number, ending in enumerate([".arrow", ".tokens.npy", ".offsets.npy"]):
        file = sorted((path / "documents").glob(f"*{ending}"))[2 + 2 * number]
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    write_rows(small / "corpus.jsonl", [*corpus(), NEW])
    again = prepared(words)
    assert prepared.copied == whole - 4
    assert read_manifest(again) == read_manifest(prepared(words, cache="another"))


@pytest.mark.slow
def test_shards_that_are_removed_meanwhile_are_written(prepared: Preparation, small: Path, words: Tokenisation) -> None:
    def run(writer: ShardWriter, total: int) -> Iterator[ShardReport]:
        for number, report in enumerate(in_this_process(writer, total)):
            if number == 4:
                shutil.rmtree(earlier)
            yield report

    earlier = prepared(words)
    write_rows(small / "corpus.jsonl", [*corpus(), NEW])
    prepared.run = run
    path = prepared(words)
    assert prepared.copied == 5
    prepared.run = in_this_process
    assert read_manifest(path) == read_manifest(prepared(words, cache="another"))


def test_bad_and_repeated_rows_keep_their_numbers(prepared: Preparation, small: Path, words: Tokenisation) -> None:
    rows = corpus()
    rows[150] = {"_id": "empty", "text": ""}
    rows[230] = {"_id": "d3", "text": "another text of d3"}
    write_rows(small / "corpus.jsonl", rows)
    prepared(words, bad=0.1)
    write_rows(small / "corpus.jsonl", [NEW, *rows])
    path = prepared(words, bad=0.1)
    assert prepared.copied > 0
    bad = {entry["row"]: entry["reason"] for entry in read_prepared(path).quarantine.entries}
    assert bad == {152: 'empty "text"', 232: "id 'd3' was used before with a different text"}


def test_a_corpus_that_grows_keeps_the_size_of_its_chunks() -> None:
    assert pipeline.chunk_bytes(350_000_000) == pipeline.chunk_bytes(360_000_000) == 1 << 20
    assert pipeline.chunk_bytes(3_000_000_000) == pipeline.chunk_bytes(3_100_000_000) == 8 << 20


@settings(max_examples=60)
@given(
    rows=st.lists(st.binary(max_size=40).map(lambda row: row.replace(b"\n", b"")), min_size=1, max_size=60),
    size=st.integers(1, 200),
    ends=st.booleans(),
)
def test_pieces_are_whole_rows_of_about_the_size(
    tmp_path_factory: pytest.TempPathFactory, rows: list[bytes], size: int, ends: bool
) -> None:
    file = tmp_path_factory.mktemp("rows") / "a"
    content = b"x" + b"\n".join(rows) + b"\n" * ends
    file.write_bytes(content)
    pieces = list(read_lines(str(file), size))
    assert b"".join(piece for _, piece in pieces).split() == content.split()
    longest = max(map(len, content.split(b"\n"))) + 1
    assert all(piece.endswith(b"\n") for _, piece in pieces[:-1])
    assert all(len(piece) <= size + longest for _, piece in pieces)
