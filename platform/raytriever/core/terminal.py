"""Output on the terminal, without secrets and without control characters.

Titles, ids, texts and file names come from data sets. Error texts come from servers and libraries. A terminal obeys
control characters in them: an escape sequence can rename the window, fill the clipboard or erase a warning, and a
bidirectional override changes the order of a name's letters. All output of the package goes through this module."""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TextIO

from raytriever.core.errors import StorageError, translated
from raytriever.core.masking import masked

# Characters that are escaped: C0 except tab and line feed, DEL, C1, line and paragraph separators, bidirectional
# embeddings, overrides and isolates, interlinear marks, tags, and halves of surrogate pairs.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u2028\u2029\u202a-\u202e\u2066-\u2069\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)


_last_output = time.monotonic()


def seconds_of_silence() -> float:
    """Return the seconds since this process last printed something on a standard stream."""
    return time.monotonic() - _last_output


def end_of_silence() -> None:
    """End the silence: something is printed now, such as an update of a progress bar."""
    global _last_output
    _last_output = time.monotonic()


def printable(text: str) -> str:
    r"""Return a text with control characters as escapes, such as `\x1b`. Tabs and line feeds are not changed."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def one_line(text: str) -> str:
    """Return a printable text on one line: each run of white space becomes one space."""
    return printable(" ".join(text.split()))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def text_table(rows: Sequence[Sequence[str]], left: int = -1) -> str:
    """Format rows as a text table whose columns are two spaces apart.

    Args:
        rows: cells of each line, the header first.
        left: index of the column that is aligned to the left; all others are aligned to the right.
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    count = len(rows[0])
    widths = [max(len(row[column]) for row in rows) for column in range(count)]
    sides = ["<" if column == left % count else ">" for column in range(count)]
    lines = (
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)) for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def markdown_cell(text: str) -> str:
    """Return a text as one cell of a Markdown table: on one line, with escapes for `|`, `\\` and `<`."""
    return one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def markdown_table(
    rows: Sequence[Sequence[str]], right: int | None = None, escape: Callable[[str], str] = markdown_cell
) -> str:
    """Format rows as a Markdown table.

    Args:
        rows: cells of each line, the header first.
        right: index of the first column that is aligned to the right; None if there is none.
        escape: applied to each cell; `str` for cells that are Markdown.
    """
    sides = ["---" if right is None or column < right else "---:" for column in range(len(rows[0]))]
    lines = [[escape(cell) for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in (lines[0], sides, *lines[1:]))


STREAM = "<standard stream>"  # `filename` of an OSError of standard output or standard error


def show(text: str = "") -> None:
    """Print a result on standard output. Raise `StorageError` if standard output goes to a disk that is full. Raise
    `BrokenPipeError` if the reader of the pipe has ended."""
    try:
        write_line(text, sys.stdout)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        remedy = "free some space or write to another disk"
        raise StorageError("no space left on the disk", "standard output", remedy) from error


def warn(text: str) -> None:
    """Print a line on standard error. If it cannot be written, as on a full disk, the line is lost and work goes on."""
    try:
        write_line(text, sys.stderr)
    except BrokenPipeError:
        raise
    except OSError:
        _discard(sys.stderr)


def write_line(text: str, stream: TextIO | None) -> None:
    """Print a line on a stream at once, above progress bars. If `stream` is None, do nothing."""
    if stream is None:
        return
    try:
        bars = getattr(sys.modules.get("tqdm"), "tqdm", None)  # a process without tqdm has no progress bars
        with bars.external_write_mode(stream) if bars and stream.isatty() else nullcontext():
            print(presentable(text, stream), file=stream, flush=True)
        if stream in (sys.stdout, sys.stderr):
            end_of_silence()
    except OSError as error:
        _discard(stream)
        error.filename = STREAM
        raise


def presentable(text: str, stream: TextIO) -> str:
    """Return a text that may be written to a stream: without secrets, printable and in the stream's encoding."""
    encoding = stream.encoding or "utf-8"
    return printable(masked(translated(text))).encode(encoding, "backslashreplace").decode(encoding)


def open_missing_streams() -> None:
    """Open `/dev/null` for standard streams that were closed at the start. Otherwise the next file that is opened gets
    the number of the missing stream, and the output of any library goes into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)  # child processes need the stream too
            stream = open(number, "w" if number else "r", closefd=False, encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)


def _discard(stream: TextIO) -> None:
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # a test's stream has no file descriptor
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
