"""Rows that a whole command meets; other bad rows are tests of `unit/data/test_rows.py` and `unit/data/formats`."""

from __future__ import annotations

from hostile.case import Case, of_area
from hostile.making import every_row, row

STRICT = "prepare --dataset letters --model model --output out --max-bad-rows 0"
CORPUS, TEST = "letters/corpus.jsonl", "letters/qrels/test.tsv"


def corpus(name: str, content: dict | str | bytes, line: str) -> Case:
    """A bad third row of a corpus."""
    return Case(name, STRICT, f"letters/corpus.jsonl row 3: {line}", (row(CORPUS, 3, content),))


def renamed(name: str, id: str) -> Case:
    """A third document of another id, so that the judgements of the id that it had are bad rows."""
    line = "letters/qrels/train.tsv row 4: unknown document id 'd2'"
    return Case(name, STRICT, line, (row(CORPUS, 3, {"_id": id, "text": "x"}),))


def judged(name: str, content: str | bytes, line: str) -> Case:
    """A bad fourth row of the judgements."""
    return Case(name, STRICT, f"letters/qrels/test.tsv row 4: {line}", (row(TEST, 4, content),))


CASES = of_area(
    "rows",
    corpus("a document that is not JSON", "{", "not JSON (Expecting property name"),
    renamed("a document with a NUL in its id", "d\x00"),
    corpus(
        "a document with half of a surrogate pair",
        '{"_id": "d2", "text": "\\ud800"}',
        '"text" holds half of a surrogate pair',
    ),
    corpus("a document with the id of another one", {"_id": "d1", "text": "another"}, "id 'd1' was used before"),
    corpus(
        "a document nested a million levels deep",
        b'{"_id": "d2", "text": ' + b"[" * 1_000_000,
        "not JSON (maximum recursion depth exceeded",
    ),
    corpus("a number of a million digits", b'{"_id": ' + b"9" * 1_000_000 + b', "text": "x"}', "not JSON"),
    corpus("a document with an escape sequence as a field", {"\x1b[2J": "x"}, 'no field "_id"'),
    judged("a judgement of an unknown document", "q130\tnone\t1", "unknown document id 'none'"),
    judged("a judgement of an unknown query", "none\td130\t1", "unknown query id 'none'"),
    judged("a score of a thousand digits", "q130\td130\t" + "9" * 1000, "score '99999999999999999999' is not an"),
    judged("a judgement of invalid UTF-8", b"q130\td\xff\t1", "byte 0xff at column 7 is not UTF-8"),
    judged("a judgement with a carriage return within", "q130\td130\r\t1", "unknown document id 'd130\\r'"),
    Case(
        "every document has one id",
        STRICT,
        "id 'same' was used before with a different text",
        (every_row(CORPUS, lambda content: content.update(_id="same")),),
    ),
)
