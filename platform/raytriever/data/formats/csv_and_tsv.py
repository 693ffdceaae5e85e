"""Reader of CSV and TSV files: separator, header, line ends, quotation marks, and lists in cells.

Python's `csv` parses the rows, so a quoted field may contain separators and line breaks. In a TSV file, quotation
marks enclose a field only if they surround it as a whole, as spreadsheets write; other marks belong to the text."""

from __future__ import annotations

import csv
import io
import json
import re
import tokenize
from ast import literal_eval
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain, islice

from raytriever.core.errors import DataError
from raytriever.data.data_sources import open_stream, reading
from raytriever.data.formats.file_rows import MOST_ROW_BYTES
from raytriever.data.formats.plan import encodable
from raytriever.data.records_and_bad_rows import BadRow

_SEPARATORS = ",;\t|"
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "|"}
_HEADER_LINES, _QUOTED_LINES = 100, 1_000  # maximum lines of a header, and of a quoted field in a TSV file
_BEGIN = 1 << 16
_FIRST_END = re.compile(rb'(?:[^"\r\n]++|"[^"]*+")*+(\r\n|\r|\n)')
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)  # line that Excel may write before the header
_QUOTED = re.compile(r'"(?:[^"]|"")+"')
_OPEN = re.compile(r'(?:^|\t)"[^"]*+(?:""[^"]*+)*+$')  # a quoted field begins, but does not end, on this line
_LIST = re.compile(r"""\[\s*(?:[bru]?["'].*["'][\s,]*)?\]""", re.DOTALL)


@dataclass(frozen=True)
class TableFile:
    """CSV or TSV file."""

    where: str
    separator: str
    columns: tuple[str, ...]  # names in the header, with spaces in place of line breaks
    begin: int = 1  # number of lines of the header, including blank lines before it
    line_end: str = "\n"  # `\n`; or `\r` if the file has no line feeds, such as Excel's "CSV (Macintosh)"

    @classmethod
    def open(cls, where: str) -> TableFile:
        """Read the header. Raise `DataError` if the file is empty, is not UTF-8, or has a column twice."""
        with reading(where, [0]), closing(open_stream(where)) as stream:
            first_end = _FIRST_END.match(stream.read(_BEGIN))
        line_end = "\r" if first_end and first_end[1] == b"\r" else "\n"
        with closing(_lines(where, line_end, [0])) as stream_lines:
            lines = list(islice(stream_lines, _HEADER_LINES))
        separators = "\t" if where.lower().removesuffix(".gz").endswith(".tsv") else _SEPARATORS
        before = 0
        if lines and (named := _SEPARATOR_LINE.fullmatch(lines[0])):
            separators, before = named[1], 1
        while before < len(lines) and not lines[before].strip():
            before += 1
        if before == len(lines):
            raise DataError("the file is empty", where, "give a header with the names of the columns, and rows")
        headers = {separator: _header(lines[before:], separator) for separator in separators}
        separator = max(headers, key=lambda separator: len(headers[separator][0]))
        fields, count = headers[separator]
        if not count:
            raise _broken(where, before + 1, "its header has an open quotation mark")
        names = tuple(" ".join(name.split()) for name in fields)
        twice = next((name for name in names if name and names.count(name) > 1), None)
        if twice is not None:
            raise DataError(f"the header names the column {twice!r} twice", where, "rename one of them")
        return cls(where, separator, names, before + count, line_end)

    def rows(self) -> Iterator[tuple[int, list[str] | str]]:
        """Yield, for each row that is not blank, the number of its first line, and its fields or why it is bad. Raise
        `DataError` if the file is not UTF-8, or if a quotation mark of a CSV file is never closed."""
        read, field_count = [0], len(self.columns)
        with closing(_lines(self.where, self.line_end, read)) as lines:
            end = sum(1 for _ in islice(lines, self.begin))
            table = _tsv_rows(lines, field_count) if self.separator == "\t" else _csv_rows(lines, self.separator)
            try:
                for fields, count in table:
                    begin, end = end + 1, end + count
                    if isinstance(fields, str):
                        yield begin, fields
                    elif any(map(str.strip, fields)):
                        yield (
                            begin,
                            fields
                            if len(fields) == field_count
                            else f"{len(fields)} fields, the header has {field_count}",
                        )
            except csv.Error as error:
                raise _broken(self.where, end + 1, str(error)) from error

    @property
    def description(self) -> str:
        """Description, for messages, of how the file is read."""
        marks = ", quotation marks kept unless they enclose a whole field" if self.separator == "\t" else ""
        return f"columns separated by {_NAMES.get(self.separator, self.separator)}{marks}"


def texts_in(cell: str) -> str | list[str]:
    """Return the texts of a cell that holds a list as pandas, NumPy or JSON write it. Return other cells unchanged.
    Raise `BadRow` if the cell has the brackets and quotation marks of a list, but is not a list."""
    if not _LIST.fullmatch(cell.strip()):
        return cell
    with suppress(ValueError, RecursionError):
        values = json.loads(cell)  # noqa: TID251 - what is no list stays text
        if all(isinstance(value, str) for value in values):
            return [encodable(value, "list") for value in values]
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(cell.strip()).readline))
        # Parse strings one by one: NumPy writes no commas between them, so Python would join adjacent strings.
        texts = [literal_eval(token.string) for token in tokens if token.type == tokenize.STRING]
    except (tokenize.TokenError, SyntaxError, ValueError):
        tokens, texts = [], [None]
    signs = "".join(token.string.strip() for token in tokens if token.type != tokenize.STRING)
    if not all(isinstance(text, str) for text in texts) or not re.fullmatch(r"\[,*\]", signs):
        raise BadRow(f"{cell[:40]!r} looks like a list but cannot be read as one")
    return [encodable(text, "list") for text in texts]


def _lines(where: str, line_end: str, read: list[int]) -> Generator[str]:
    """Yield the lines of a file as text, with their line ends. `read[0]` counts the lines."""
    with reading(where, read), closing(open_stream(where)) as stream:
        text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", line_end)
        while line := text.readline(MOST_ROW_BYTES + 1):
            read[0] += 1
            if len(line) > MOST_ROW_BYTES:
                what = f"the line is longer than {MOST_ROW_BYTES >> 20} MB"
                raise DataError(what, f"{where} line {read[0]}", "cut it")
            try:
                line.isascii() or line.encode()
            except UnicodeEncodeError as error:
                byte = ord(line[error.start]) - 0xDC00
                what = f"is not a CSV file in UTF-8 (byte 0x{byte:02x} in line {read[0]})"
                raise DataError(what, where, "save it again as UTF-8") from error
            yield line


def _broken(where: str, line: int, what: str) -> DataError:
    remedy = 'close the quotation mark, or write "" for one inside a field'
    if "new-line" in what:
        what, remedy = "a carriage return in a field", "enclose the field in quotation marks"
    return DataError(f"cannot be read as CSV ({what})", f"{where} line {line}", remedy)


def _header(lines: Sequence[str], separator: str) -> tuple[list[str], int]:
    """Return the fields of the first row, and how many lines it has; 0 if it cannot be read."""
    if separator == "\t" and not _OPEN.search(lines[0].rstrip("\r\n")):
        return _split(lines[0]), 1
    try:
        return next(_csv_rows(iter(lines), separator))
    except csv.Error:
        return [], 0


def _csv_rows(lines: Iterator[str], separator: str) -> Iterator[tuple[list[str], int]]:
    csv.field_size_limit(MOST_ROW_BYTES)
    table = csv.reader(lines, delimiter=separator, strict=True)
    end = 0
    for fields in table:
        yield fields, table.line_num - end
        end = table.line_num


def _tsv_rows(lines: Iterator[str], field_count: int) -> Iterator[tuple[list[str] | str, int]]:
    """Yield, for each row of a TSV file, its fields (or why it is bad) and how many lines it has. A line is a row,
    unless a quoted field contains a tab or a line break: then `csv` reads the row. If the line after an unclosed
    quotation mark has all fields of a row, the mark belongs to the text."""
    ahead = deque[str]()
    while (line := ahead.popleft() if ahead else next(lines, None)) is not None:
        fields, is_open = _split(line), _OPEN.search(line.rstrip("\r\n"))
        if not is_open and (len(fields) == field_count or '"' not in line):
            yield fields, 1
            continue
        taken: list[str] = []
        for_csv = _recorded(chain([line], (ahead.popleft() for _ in tuple(ahead)), lines), taken)
        try:
            quoted = next(_csv_rows(for_csv, "\t"))[0]
        except csv.Error:
            quoted = []
        rest = taken[1:]
        is_row = len(fields) == field_count
        if len(quoted) == field_count and not (is_row and rest and len(_split(rest[0])) == field_count):
            yield quoted, len(taken)
            continue
        ahead.extendleft(reversed(rest))
        if is_row and rest and rest[0].strip() and len(_split(rest[0])) != field_count:
            yield "its last field begins with a quotation mark that is never closed", 1
        else:
            yield fields, 1


def _recorded(lines: Iterator[str], taken: list[str]) -> Iterator[str]:
    for line in islice(lines, _QUOTED_LINES):
        taken.append(line)
        yield line


def _split(line: str) -> list[str]:
    # The outer quotation marks may belong to the text, as in `"Open" or "closed"`.
    fields = line.rstrip("\r\n").split("\t")
    return [field[1:-1].replace('""', '"') if _QUOTED.fullmatch(field) else field for field in fields]
