"""Documents are read within limits of processor time and memory, in a process that is started again after it ended."""

from __future__ import annotations

import os
import signal
from multiprocessing import active_children
from pathlib import Path

import pytest
from pdf import write_endless_pdf

from raytriever.core.errors import DataError
from raytriever.core.processes import ChildProcess
from raytriever.data.data_sources import SourceFile
from raytriever.data.documents import reader_process
from raytriever.data.documents.reader_process import DocumentReader

# Each took from 8 s to hours.
HOSTILE = {
    "heading-2.html": "<h1>" * 2_000,
    "heading-4.html": "<h1>" * 4_000,
    "heading-8.html": "<h1>" * 8_000,
    "comment-20.html": "<!--" * 20_000,
    "comment-40.html": "<!--" * 40_000,
    "comment-100.html": "<!--" * 100_000,
    "attribute.html": "<a a='" * 50_000,
    "cdata.html": "<![CDATA[" * 50_000,
    "comment.md": "<!--" * 100_000,
    "heading.md": "<h1>" * 8_000,
}


@pytest.fixture
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_process, "_SECONDS", {})
    monkeypatch.setattr(reader_process, "_SECONDS_OF_TEXT", (1.0, 0.0))


def write(folder: Path, name: str, text: str) -> SourceFile:
    path = folder / name
    path.write_text(text)
    return SourceFile(name, str(path), path.stat().st_size, 0)


def reason(documents: DocumentReader, file: SourceFile) -> str:
    """Return why a file cannot be read; empty if it can."""
    try:
        documents.read(file)
    except DataError as error:
        return error.what
    return ""


LATE = "takes longer than 1 s to read"


@pytest.mark.usefixtures("one_second")
def test_a_hostile_document_ends_and_the_next_one_is_read(tmp_path: Path) -> None:
    names = ("comment-100.html", "heading-8.html", "heading.md")
    late, *quick = (write(tmp_path, name, HOSTILE[name]) for name in names)
    good = write(tmp_path, "good.html", "<h1>A</h1>text")
    with DocumentReader() as documents:
        assert reason(documents, late) == LATE
        assert [section.text for section in documents.read(good).sections] == ["text"]
        assert [reason(documents, file) for file in quick] == ["has no text"] * 2
    assert not active_children()


@pytest.mark.slow
@pytest.mark.usefixtures("one_second")
def test_every_hostile_document_ends(tmp_path: Path) -> None:
    write_endless_pdf(tmp_path / "a.pdf")
    files = [write(tmp_path, name, text) for name, text in HOSTILE.items()]
    files.append(SourceFile("a.pdf", str(tmp_path / "a.pdf"), (tmp_path / "a.pdf").stat().st_size, 0))
    with DocumentReader() as documents:
        reasons = {file.path: reason(documents, file) for file in files}
    assert set(reasons.values()) <= {LATE, "has no text", ""}
    assert {name for name, why in reasons.items() if why == LATE} >= {"a.pdf", "attribute.html", "comment.md"}


def test_the_limits_of_a_small_file_are_below_ten_seconds() -> None:
    first, for_each_mb = reader_process._SECONDS_OF_TEXT
    assert max(first + for_each_mb * len(text) / 1e6 for text in HOSTILE.values()) < 6
    assert reader_process._MEMORY <= 1e9


def test_memory_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_process, "_MEMORY", 100_000_000)
    large, small = write(tmp_path, "a.txt", "a \n\n" * 8_000_000), write(tmp_path, "b.txt", "text")
    with DocumentReader() as documents:
        with pytest.raises(DataError, match=r"a\.txt: needs more than 100\.0 MB of memory to read; divide it"):
            documents.read(large)
        assert documents.read(small).sections


def test_a_process_that_died_starts_again() -> None:
    with ChildProcess("string") as child:
        assert child.call(None, len, "abc") == 3
        pid = child.call(None, os.getpid)
        assert pid == child.call(10, os.getpid) != os.getpid()
        with pytest.raises(ValueError, match="invalid literal"):
            child.call(None, int, "a")
        with pytest.raises(ChildProcessError, match="SIGKILL"):
            child.call(None, os.kill, pid, signal.SIGKILL)
        assert child.call(None, os.getpid) != pid
    assert not active_children()
