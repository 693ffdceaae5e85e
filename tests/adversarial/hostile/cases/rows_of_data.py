"""Rows of data sets that are broken, of wrong types or contradictory, in every format."""

from __future__ import annotations

from hostile.case import Case, of_area
from hostile.making import every_row, row, rows

STRICT = "prepare --dataset letters --model model --output out --max-bad-rows 0"
CORPUS, QUERIES, TEST = "letters/corpus.jsonl", "letters/queries.jsonl", "letters/qrels/test.tsv"
OTHER = "prepare --dataset set --model model --output out --max-bad-rows 0"


def corpus(name: str, content: dict | str | bytes, line: str, fast: bool = False) -> Case:
    """A bad third row of a corpus."""
    return Case(name, STRICT, f"letters/corpus.jsonl row 3: {line}", (row(CORPUS, 3, content),), fast=fast)


def renamed(name: str, id: str) -> Case:
    """A third document of another id, so that the judgements of the id that it had are bad rows."""
    line = "letters/qrels/train.tsv row 4: unknown document id 'd2'"
    return Case(name, STRICT, line, (row(CORPUS, 3, {"_id": id, "text": "x"}),))


def query(name: str, content: dict | str | bytes, line: str) -> Case:
    """A bad fifth row of the queries."""
    return Case(name, STRICT, f"letters/queries.jsonl row 5: {line}", (row(QUERIES, 5, content),))


def judged(name: str, content: str | bytes, line: str) -> Case:
    """A bad fourth row of the judgements."""
    return Case(name, STRICT, f"letters/qrels/test.tsv row 4: {line}", (row(TEST, 4, content),))


def other(name: str, file: str, content: dict | str | bytes, line: str) -> Case:
    """A bad second row of a file in another format, after a good one of its own."""
    return Case(name, OTHER, f"set/{file} row 2: {line}", (rows(f"set/{file}", GOOD[file], content),))


GOOD = {
    "train.jsonl": {
        "query_id": "1",
        "query": "a cell",
        "positive_passages": [{"docid": "7", "title": "", "text": "A cell is"}],
        "negative_passages": [],
    },
    "dpr-train.jsonl": {"question": "who", "answers": ["x"], "positive_ctxs": [{"title": "", "text": "x sings"}]},
    "flag-train.jsonl": {"query": "how tall", "pos": ["324 metres"], "neg": ["in Paris"]},
    "pairs-train.jsonl": {"premise": "Two embrace.", "hypothesis": "Two touch.", "label": "entailment"},
    "st-train.jsonl": {"anchor": "what is a cell", "positive": "A cell is"},
    "scored-train.jsonl": {"sentence1": "A cell is", "sentence2": "Cells are", "score": 0.8},
}

CASES = of_area(
    "rows",
    corpus(
        "a document that is not JSON",
        "{",
        "not JSON (Expecting property name enclosed in double quotes at column 2)",
        fast=True,
    ),
    corpus(
        "a document cut in its middle",
        '{"_id": "d2", "text": "jgg',
        "not JSON (Unterminated string starting at at column 23)",
        fast=True,
    ),
    corpus("a document that is an array", "[1, 2]", "a JSON object is expected, not list"),
    corpus("a document that is a number", "7", "a JSON object is expected, not int"),
    corpus("a document that is null", "null", "a JSON object is expected, not NoneType"),
    corpus("a document without text", {"_id": "d2", "title": "x"}, 'no field "text"'),
    corpus("a document with a blank text", {"_id": "d2", "text": " \t "}, 'empty "text"', fast=True),
    corpus("a document with a number as text", {"_id": "d2", "text": 7}, '"text" is int, not a string'),
    corpus("a document with a list as text", {"_id": "d2", "text": ["x"]}, '"text" is list, not a string'),
    corpus("a document with null as text", {"_id": "d2", "text": None}, '"text" is NoneType, not a string'),
    corpus("a document with a number as title", {"_id": "d2", "title": 7, "text": "x"}, '"title" is int, not a string'),
    corpus("a document with a fraction as id", {"_id": 1.5, "text": "x"}, '"_id" is float, not a string'),
    corpus("a document with true as id", {"_id": True, "text": "x"}, '"_id" is bool, not a string'),
    corpus("a document with a list as id", {"_id": ["d2"], "text": "x"}, '"_id" is list, not a string'),
    corpus("a document with an empty id", {"_id": "", "text": "x"}, 'empty "_id"'),
    corpus("a document with null as id", {"_id": None, "text": "x"}, '"_id" is NoneType, not a string'),
    renamed("a document with a NUL in its id", "d\x00"),
    renamed("a document with a tab in its id", "d\t2"),
    corpus("a document of invalid UTF-8", b'{"_id": "d2", "text": "caf\xe9"}', "byte 0xe9", fast=True),
    corpus(
        "a document with half of a surrogate pair",
        '{"_id": "d2", "text": "\\ud800"}',
        '"text" holds half of a surrogate pair',
    ),
    corpus(
        "a document with the id of another one",
        {"_id": "d1", "text": "another"},
        "id 'd1' was used before with a different text",
    ),
    corpus(
        "a document nested a million levels deep",
        b'{"_id": "d2", "text": ' + b"[" * 1_000_000,
        "not JSON (maximum recursion depth exceeded while decoding a JSON array from a unicode stri",
    ),
    corpus(
        "a document with a number of a million digits", b'{"_id": ' + b"9" * 1_000_000 + b', "text": "x"}', "not JSON"
    ),
    corpus("a document with an escape sequence as a field", {"\x1b[2J": "x"}, 'no field "_id"'),
    query("a query that is not JSON", "nonsense", "not JSON (Expecting value at column 1)"),
    query("a query without text", {"_id": "q4"}, 'no field "text"'),
    query("a query of invalid UTF-8", b'{"_id": "q4", "text": "\xff\xfe"}', "byte 0xff at column 24 is not UTF-8"),
    query(
        "a query with the id of another one",
        {"_id": "q3", "text": "another"},
        "id 'q3' was used before with a different text",
    ),
    query("a query of Infinity", '{"_id": Infinity, "text": "x"}', "not JSON (Infinity is not a number of JSON)"),
    judged("a judgement of an unknown document", "q130\tnone\t1", "unknown document id 'none'"),
    judged("a judgement of an unknown query", "none\td130\t1", "unknown query id 'none'"),
    judged("a judgement without score", "q130\td130", "2 columns, not 3 separated by tabs"),
    judged("a judgement with a word as score", "q130\td130\tgood", "score 'good' is not an integer"),
    judged("a judgement with a fraction as score", "q130\td130\t0.5", "score '0.5' is not an integer"),
    judged("a judgement with NaN as score", "q130\td130\tnan", "score 'nan' is not an integer"),
    judged(
        "a judgement with a score of a thousand digits",
        "q130\td130\t" + "9" * 1000,
        "score '99999999999999999999' is not an integer",
    ),
    judged("a judgement separated by spaces", "q130 d130 1", "1 columns, not 3 separated by tabs"),
    judged("a judgement of invalid UTF-8", b"q130\td\xff\t1", "byte 0xff at column 7 is not UTF-8"),
    judged("a judgement with a carriage return within", "q130\td130\r\t1", "unknown document id 'd130\\r'"),
    judged("a judgement with columns too many", "q130\td130\t1\thuman\t0\tmore", "6 columns, not 3 separated by tabs"),
    Case(
        "every document has one id",
        STRICT,
        "id 'same' was used before with a different text",
        (every_row(CORPUS, lambda content: content.update(_id="same")),),
    ),
    other(
        "a positive of tevatron without text",
        "train.jsonl",
        {**GOOD["train.jsonl"], "positive_passages": [{}]},
        'no field "text"',
    ),
    other(
        "positives of tevatron as text",
        "train.jsonl",
        {**GOOD["train.jsonl"], "positive_passages": "x"},
        '"positive_passages" is str, not a list',
    ),
    other(
        "a query of tevatron as a list",
        "train.jsonl",
        {**GOOD["train.jsonl"], "query": ["x"]},
        '"query" is list, not a string',
    ),
    other(
        "a positive of dpr that is null",
        "dpr-train.jsonl",
        {**GOOD["dpr-train.jsonl"], "positive_ctxs": [None]},
        '"positive_ctxs[0]" is NoneType, not an object',
    ),
    other("no question in dpr", "dpr-train.jsonl", {"answers": [], "positive_ctxs": []}, 'no field "question"'),
    other(
        "a score of NaN in dpr",
        "dpr-train.jsonl",
        '{"question": "who", "answers": [], "positive_ctxs": [{"title": "", "text": "x", "score": NaN}]}',
        "not JSON (NaN is not a number of JSON)",
    ),
    other(
        "scores that do not go along",
        "flag-train.jsonl",
        {**GOOD["flag-train.jsonl"], "neg_scores": [1, 2, 3]},
        '"neg_scores" has 3 scores for 1 in "neg"',
    ),
    other(
        "scores of text",
        "flag-train.jsonl",
        {**GOOD["flag-train.jsonl"], "neg_scores": ["high"]},
        '"neg_scores[0]" is str, not a number',
    ),
    other(
        "positives of numbers",
        "flag-train.jsonl",
        {"query": "x", "pos": [1], "neg": []},
        '"pos[0]" is int, not a string',
    ),
    other(
        "a label of 7",
        "pairs-train.jsonl",
        {**GOOD["pairs-train.jsonl"], "label": 7},
        "label '7' is none of entailment, neutral, contradiction or 0, 1, 2",
    ),
    other("a split that leads out", "pairs-train.jsonl", {**GOOD["pairs-train.jsonl"], "split": "../../x"}, ""),
    other(
        "an anchor of null", "st-train.jsonl", {"anchor": None, "positive": "x"}, '"anchor" is NoneType, not a string'
    ),
    other(
        "a score above one",
        "scored-train.jsonl",
        {**GOOD["scored-train.jsonl"], "score": 1.5},
        '"score" is 1.5, neither a grade from 0 nor within 0 and 1: divide by its largest',
    ),
    other(
        "a score of infinity",
        "scored-train.jsonl",
        '{"sentence1": "a", "sentence2": "b", "score": 1e999}',
        '"score" is inf, not a finite number',
    ),
)
