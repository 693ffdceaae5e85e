"""Questions that a file of the folder answers, or a passage of this file.

1. Each row names its file by path, by the end of the path, by a name that only one file has, or by the id of a passage.
2. After a file has been divided into passages, its questions are matched to passages: by the anchor or heading of a
   section, or by the text of the answer. If a row has neither, all passages of the file answer the question.
3. A row that cannot be matched is a bad row. It is listed with its line and the reason."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from raytriever.core.errors import DataError, setting
from raytriever.core.reading.characters import plain_characters, remove_invisible
from raytriever.core.reading.documents.sections import slug
from raytriever.core.unknown_names import did_you_mean
from raytriever.data.documents.passage_chunking import Passage, passage_id
from raytriever.data.formats.csv_and_tsv import TableFile
from raytriever.data.formats.csv_tables import QUERY, Role, choose_columns, parse_columns
from raytriever.data.formats.file_rows import numbered_rows, object_of
from raytriever.data.formats.plan import (
    ANSWERABLE,
    canonical_split,
    id_field,
    is_answerable,
    optional_text,
    string_field,
)
from raytriever.data.formats.train_dev_test import SPLITS, TEST
from raytriever.data.hashed_ids import normalize
from raytriever.data.records_and_bad_rows import BadRow, bad_entry, content_id

QUESTION = Role("question", QUERY.names)
FILE = Role(
    "file", ("file", "path", "document", "source", "page", "url", "filename", "file_name", "doc"), optional=True
)
ANSWER = Role("answer", ("answer", "passage", "positive", "text", "context", "quote", "answers"), optional=True)
ANCHOR = Role("anchor", ("anchor", "section", "heading", "fragment"), optional=True)
ID = Role("id", ("id", "_id", "question_id", "query_id", "qid"), optional=True)
IS_ANSWERABLE = Role(ANSWERABLE, (ANSWERABLE,), optional=True)
SPLIT = Role("split", ("split",), optional=True)
ROLES = (QUESTION, FILE, ANSWER, ANCHOR, ID, IS_ANSWERABLE, SPLIT)
NO_FILE = "none"  # value of the column `file` if no file answers the question
_REMEDY = f"name the columns: {setting('columns')} question=COLUMN,file=COLUMN"
_NO_WORD = re.compile(r"[\W_]+")
_NUMBER = re.compile(r":\d+$")
_GRAM = 8  # number of characters of the n-grams by which an answer is compared with passages
_WHOLE, _PART = 0.8, 0.3  # minimum fraction of an answer's n-grams in all passages together, and in each positive
_SURE = 12  # minimum characters of an answer that may begin or end within a word of the passage

# Limits of the search for a similar name, because comparing one name with all paths takes up to 0.1 s.
_MOST_HINTS, _MOST_PATHS = 20, 5_000


@dataclass(frozen=True)
class Question:
    """Question of a row; file, answer, anchor and split are empty if the row names none. `where` is the file with the
    row. `is_answerable` is False if the folder has no answer."""

    where: str
    line: int
    id: str
    text: str
    file: str
    answer: str
    anchor: str
    split: str
    is_answerable: bool


class Questions:
    """Questions of a CSV, TSV or JSONL file, by the document that answers them. Raise `DataError` if a file is broken
    or empty, a column is missing, or a question is also in the file `test`.

    Args:
        columns: value of `--columns`, or empty to recognize all columns.
        paths: files of the folder that can be read, relative to it.
        test: path of a second file, whose questions all belong to test; empty for none.
    """

    def __init__(self, where: str, columns: str, paths: Sequence[str], root: str, test: str = "") -> None:
        self.where = where
        self.bad: list[dict[str, Any]] = []
        self.by_file: dict[str, list[Question]] = defaultdict(list)
        self.unjudged: list[Question] = []
        self.unanswerable: dict[str, Question] = {}
        self.rows = 0
        self._test, self._files = test, _Files(paths, root)
        self._known: dict[str, Question] = {}
        self._answered: set[str] = set()
        self._texts: dict[str, Question] = {}
        named = parse_columns(columns) if columns else {}
        self.description = self._read(where, named)
        if test:
            self._read(test, named)

    def _read(self, where: str, named: Mapping[str, str]) -> str:
        rows, description = _read_rows(where, named)
        before = self.rows
        for line, row in rows:
            self.rows += 1
            try:
                self._add(_question_of(where, line, row, TEST if where == self._test else ""))
            except BadRow as reason:
                self.bad.append(_entry(where, line, str(reason), row))
        if self.rows == before:
            raise DataError("has no questions", where, "give a row for each question")
        return description

    def _add(self, question: Question) -> None:
        other = self._known.setdefault(question.id, question)
        same = self._texts.setdefault(normalize(question.text), question)
        if (
            twice := next((candidate for candidate in (other, same) if candidate.where != question.where), None)
        ) is not None:
            where, remedy = f"{question.where} line {question.line}", "remove it from one of the files"
            raise DataError(f"the question is also in {twice.where} line {twice.line}", where, remedy)
        if other.text != question.text:
            raise BadRow(f"line {other.line} has a different question with the id {question.id!r}")
        if other.split != question.split:
            named = [repr(candidate.split) if candidate.split else "empty" for candidate in (question, other)]
            raise BadRow(f"conflicting: the split is {named[0]}, but in line {other.line} it is {named[1]}")
        if not question.is_answerable:
            if question.id in self._answered:
                raise BadRow("conflicting: another line has an answer to this question")
            self.unanswerable[question.id] = question
            return
        if not question.file:
            if question.answer or question.anchor:
                raise BadRow('empty "file"')
            self.unjudged.append(question)
            return
        if question.id in self.unanswerable:
            raise BadRow(f"conflicting: line {self.unanswerable[question.id].line} says that there is no answer")
        file, anchor = self._files.resolve(question.file)
        self._answered.add(question.id)
        self.by_file[file].append(replace(question, anchor=question.anchor or anchor))

    def groups(self) -> Iterator[list[str]]:
        """Yield the files that answer a question, for each question without a named split."""
        files: dict[str, list[str]] = defaultdict(list)
        for file, questions in self.by_file.items():
            for question in questions:
                if not question.split:
                    files[question.id].append(file)
        yield from files.values()

    def named_splits(self) -> dict[str, str]:
        """Return, by file, the split that the column `split` names for its questions. If it names several for a file,
        return the first in the order train, dev, test."""
        splits: dict[str, str] = {}
        for file, questions in self.by_file.items():
            named = {question.split for question in questions if question.where != self._test and question.split}
            if named:
                splits[file] = min(named, key=SPLITS.index)
        return splits

    def match(self, file: str, passages: Sequence[Passage]) -> list[tuple[Question, list[str]]]:
        """Return the questions of a file, each with the ids of its passages. Questions without one are bad rows."""
        matched = []
        for question in self.by_file.get(file, ()):
            try:
                matched.append((question, _matching(question, file, passages)))
            except BadRow as reason:
                self.refuse(question, str(reason))
        return matched

    def refuse(self, question: Question, reason: str) -> None:
        """Add the row of a question to the bad rows."""
        self.bad.append(_entry(question.where, question.line, reason, vars(question)))


def _read_rows(where: str, named: Mapping[str, str]) -> tuple[Iterable[tuple[int, Any]], str]:
    if re.search(r"\.(jsonl|ndjson)(\.gz)?$", where):
        first = next(iter(numbered_rows(where)), None)
        if first is None:
            raise DataError("the file is empty", where, "give a JSON object with question and file in each line")
        try:
            columns = list(object_of(first[1]))
        except BadRow as reason:
            raise DataError(str(reason), f"{where} line {first[0]}", "give a JSON object in each line") from reason
        chosen = choose_columns(where, columns, ROLES, named, _REMEDY)
        rows = ((line, _named(raw, chosen)) for line, raw in numbered_rows(where))
        return rows, _description("", chosen, columns)
    if not re.search(r"\.[ct]sv(\.gz)?$", where):
        raise DataError("is neither CSV, TSV nor JSONL", where, "save it as .csv, .tsv or .jsonl")
    table = TableFile.open(where)
    chosen = choose_columns(where, table.columns, ROLES, named, _REMEDY)
    positions = {role: table.columns.index(column) for role, column in chosen.items()}
    return (
        (
            (line, row if isinstance(row, str) else {role: row[position] for role, position in positions.items()})
            for line, row in table.rows()
        ),
        _description(f", {table.description}", chosen, table.columns),
    )


def _named(raw: bytes, chosen: Mapping[str, str]) -> dict[str, Any] | str:
    try:
        row = object_of(raw)
    except BadRow as reason:
        return str(reason)
    return {role: row[column] for role, column in chosen.items() if row.get(column) is not None}


def _description(layout: str, chosen: Mapping[str, str], columns: Sequence[str]) -> str:
    unread = [repr(column) for column in columns if column not in chosen.values()]
    read = ", ".join(f"{role} = {column!r}" for role, column in chosen.items())
    return f"{read}{layout}{'; not read: ' + ', '.join(unread) if unread else ''}"


def _question_of(where: str, line: int, row: Any, only: str) -> Question:
    if isinstance(row, str):
        raise BadRow(row)
    text = plain_characters(string_field(row, "question")).strip()
    name = id_field(row, "id").strip() if str(row.get("id", "")).strip() else content_id(text)
    if len(name.split()) > 1:
        raise BadRow(f"id {name!r} has white space")
    file, answer, anchor = (optional_text(row, field).strip() for field in ("file", "answer", "anchor"))
    answerable = is_answerable(row)
    if file.casefold() == NO_FILE:
        if answerable:
            raise BadRow(f'conflicting: "{ANSWERABLE}" is yes, but "file" is {NO_FILE}')
        file, answerable = "", False
    if answerable is False and (file or answer or anchor):
        raise BadRow("conflicting: a question without an answer has a file, an answer or an anchor")
    split = canonical_split(optional_text(row, "split").strip())
    if split and split not in SPLITS:
        raise BadRow(f"split {split[:20]!r} is not one of {', '.join(SPLITS)}")
    if only and split not in ("", only):
        raise BadRow(f"conflicting: the split is {split!r}, but all questions of this file are {only}")
    return Question(where, line, name, text, file, answer, anchor, only or split, answerable is not False)


_NOT_RAW = ("where", "line", "id", "split", "is_answerable")


def _entry(where: str, line: int, reason: str, row: Any) -> dict[str, Any]:
    texts = [str(value) for name, value in row.items() if name not in _NOT_RAW] if isinstance(row, Mapping) else []
    return bad_entry(where, line, reason, " | ".join(filter(None, texts)).encode(errors="replace"))


class _Files:
    """Index of the folder's files by the names that users may write. Case and encoding of accents are ignored."""

    def __init__(self, paths: Sequence[str], root: str) -> None:
        self._paths, self._root = frozenset(paths), root.rstrip("/")
        self._hints = _MOST_HINTS if len(paths) < _MOST_PATHS else 0
        self._ends: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            parts = _alike(path).split("/")
            for index in range(len(parts)):
                self._ends["/".join(parts[index:])].append(path)

    def resolve(self, name: str) -> tuple[str, str]:
        """Return the path and the anchor that a name means; raises `BadRow`, with similar names, if none fits."""
        before, _, anchor = name.rpartition("#")
        named = [(name, ""), (before, anchor)] if before else [(name, "")]
        if match := _NUMBER.search(name):  # `name` is the id of a passage before the first heading
            named.append((name[: match.start()], match[0]))
        # Ids of passages escape some characters of the path and of the anchor.
        for file, section in [*named, *((unquote(file), section) for file, section in named)]:
            if path := self._path(file):
                return path, section
        return self._refuse(before or name), ""

    def _path(self, name: str) -> str | None:
        name = name.replace("\\", "/").removeprefix(f"{self._root}/")
        name = re.sub(r"^(?:\./|/)+", "", name)
        if name in self._paths:
            return name
        folder = self._root.rsplit("/", 1)[-1]
        if (below := name.removeprefix(f"{folder}/")) in self._paths:
            return below
        paths = self._ends.get(_alike(name), [])
        if len(paths) > 1:
            raise BadRow(f"{len(paths)} files are called {name!r}: {', '.join(paths[:4])}; write the path")
        return paths[0] if paths else None

    def _refuse(self, name: str) -> str:
        moved = self._ends.get(_alike(name.rpartition("/")[2]), [])  # files of the same name in other folders
        hint = did_you_mean(name, moved or self._paths) if self._hints > 0 else ""
        self._hints -= 1
        raise BadRow(f"no file {name!r} was read" + (f"; {hint}" if hint.startswith("did") else ""))


def _alike(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()


def _matching(question: Question, file: str, passages: Sequence[Passage]) -> list[str]:
    candidates = _of_section(question.anchor, file, passages) if question.anchor else passages
    if not question.answer:
        return [passage.id for passage in candidates]
    answer = _plain(question.answer)
    if not answer:
        raise BadRow("the answer has no letter and no digit")
    texts = [_plain(passage.text) for passage in candidates]
    has = [f" {answer} " in f" {text} " for text in texts]
    if not any(has) and (len(answer) >= _SURE or not answer.isascii()):
        has = [answer in text for text in texts]
    if not any(has):
        has = _parts(answer, texts, file)
    return [passage.id for passage, is_positive in zip(candidates, has, strict=True) if is_positive]


def _parts(answer: str, texts: Sequence[str], file: str) -> list[bool]:
    """Return which passages contain a part of an answer that spans several; raises `BadRow` if too little is found."""
    grams = {answer[start : start + _GRAM] for start in range(len(answer) - _GRAM + 1)}
    shared = [{gram for gram in grams if gram in text} for text in texts]
    together = len(set().union(*shared)) / len(grams) if grams else 0.0
    if together < _WHOLE:
        fraction = f" (only {together:.0%} of it is there)" if together else ""
        raise BadRow(f"the text of the answer is not in {file}{fraction}")
    return [len(part) >= _PART * len(grams) for part in shared]


def _of_section(anchor: str, file: str, passages: Sequence[Passage]) -> list[Passage]:
    anchor = plain_characters(anchor.removeprefix("#"))
    wanted = {anchor, unquote(anchor), slug(anchor), f"page={anchor}"}
    section = [
        passage
        for passage in passages
        if passage.anchor in wanted or (passage.heading and slug(passage.heading) in wanted)
    ]
    if not section:  # the anchor may be the id of a passage
        wanted = {f"{passage_id(file, '')}{mark}{anchor}" for mark in ("#", "")}
        section = [passage for passage in passages if passage.id in wanted]
    if not section:
        hint = did_you_mean(slug(anchor), {passage.anchor for passage in passages if passage.anchor})
        raise BadRow(f"no section {anchor!r} with text in {file}" + (f"; {hint}" if hint.startswith("did") else ""))
    return section


def _plain(text: str) -> str:
    """Return a text in lower case without punctuation, for comparison."""
    return _NO_WORD.sub(" ", unicodedata.normalize("NFKC", remove_invisible(text)).casefold()).strip()
