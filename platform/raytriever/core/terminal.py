"""Output on the terminal, without secrets and without control characters.

Titles, ids, texts and file names come from data sets, and error texts from servers and libraries. A terminal obeys
control characters in them. An escape sequence can rename the window, fill the clipboard or erase a warning. A
bidirectional override shows a name in another order. All that the package prints goes through this module.
"""

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

# C0 but tab and line feed, DEL, C1, line and paragraph separators, bidirectional embeddings, overrides and isolates,
# interlinear marks, tags, and halves of surrogate pairs.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u2028\u2029\u202a-\u202e\u2066-\u2069\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)


_last_output = time.monotonic()


def seconds_of_silence() -> float:
    """Return the seconds since this process last printed something on a standard stream."""
    return time.monotonic() - _last_output


def end_of_silence() -> None:
    """Record that something is printed now, such as a bar that is drawn again."""
    global _last_output
    _last_output = time.monotonic()


def printable(text: str) -> str:
    r"""Return a text with control characters as escapes, such as `\x1b`; tabs and line feeds stay."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def one_line(text: str) -> str:
    """Return a text of the data as part of one line: runs of white space are one space each."""
    return printable(" ".join(text.split()))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is one."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def text_table(rows: Sequence[Sequence[str]], left: int = -1) -> str:
    """Format rows as lines of equally wide columns, two blanks apart.

    Args:
        rows: cells of each line, the header first.
        left: index of the column of words, which is aligned to the left; the others are aligned to the right.
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
    """Return a text as one cell of a Markdown table: on one line, without columns or HTML of its own."""
    return one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def markdown_table(
    rows: Sequence[Sequence[str]], right: int | None = None, escape: Callable[[str], str] = markdown_cell
) -> str:
    """Format rows as a Markdown table.

    Args:
        rows: cells of each line, the header first.
        right: index of the first column that is aligned to the right, if any is.
        escape: applied to each cell; `str` for cells that are Markdown.
    """
    sides = ["---" if right is None or column < right else "---:" for column in range(len(rows[0]))]
    lines = [[escape(cell) for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in (lines[0], sides, *lines[1:]))


STREAM = "<standard stream>"  # the file name of errors of standard output and standard error


def show(text: str = "") -> None:
    """Print a result on standard output. Raise `StorageError` if standard output goes to a disk that is full. Raise
    `BrokenPipeError` if the reader of the pipe has gone."""
    try:
        write_line(text, sys.stdout)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        remedy = "free some space or write to another disk"
        raise StorageError("no space left on the disk", "standard output", remedy) from error


def warn(text: str) -> None:
    """Print a line on standard error; a line that a full disk does not accept is lost, and the work goes on."""
    try:
        write_line(text, sys.stderr)
    except BrokenPipeError:
        raise
    except OSError:
        _discard(sys.stderr)


def write_line(text: str, stream: TextIO | None) -> None:
    """Print a line on a stream at once, above the bars of a terminal; nothing where the process has no such stream."""
    if stream is None:
        return
    try:
        bars = getattr(sys.modules.get("tqdm"), "tqdm", None)  # a process that has not imported it has no bars
        with bars.external_write_mode(stream) if bars and stream.isatty() else nullcontext():
            print(presentable(text, stream), file=stream, flush=True)
        if stream in (sys.stdout, sys.stderr):
            end_of_silence()
    except OSError as error:
        _discard(stream)
        error.filename = STREAM
        raise


def presentable(text: str, stream: TextIO) -> str:
    """Return a text as it may be written to a stream: masked, printable and in the stream's encoding."""
    encoding = stream.encoding or "utf-8"
    return printable(masked(translated(text))).encode(encoding, "backslashreplace").decode(encoding)


def open_missing_streams() -> None:
    """Open `/dev/null` for standard streams that were closed at the start. Otherwise the next file that is opened gets
    the number of the missing stream, and lines of any library land in it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)  # processes that this one starts need it too
            stream = open(number, "w" if number else "r", closefd=False, encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)


def _discard(stream: TextIO) -> None:
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # a stream of a test has none
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
