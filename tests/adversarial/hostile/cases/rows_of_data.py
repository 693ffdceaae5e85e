"""Rows of data sets that are broken, of wrong types or contradictory, in every format."""

from __future__ import annotations

from hostile.case import Case, of_area
from hostile.making import every_row, row, rows

STRICT = "prepare --dataset letters --model model --output out --max-bad-rows 0"
CORPUS, QUERIES, TEST = "letters/corpus.jsonl", "letters/queries.jsonl", "letters/qrels/test.tsv"
OTHER = "prepare --dataset set --model model --output out --max-bad-rows 0"


def corpus(name: str, content: dict | str | bytes, line: str) -> Case:
    """A bad third row of a corpus."""
    return Case(name, STRICT, f"letters/corpus.jsonl row 3: {line}", (row(CORPUS, 3, content),))


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


def other(name: str, file: str, field: str, value: object, line: str) -> Case:
    """A second row of a file in another format with one wrong field, after a good row."""
    bad = {**GOOD[file], field: value}
    return Case(f"{name} in {file}", OTHER, f"set/{file} row 2: {line}", (rows(f"set/{file}", GOOD[file], bad),))


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
    corpus("a document that is not JSON", "{", "not JSON (Expecting property name"),
    corpus("a document cut in its middle", '{"_id": "d2", "text": "jgg', "not JSON (Unterminated string"),
    corpus("a document that is an array", "[1, 2]", "a JSON object is expected, not list"),
    corpus("a document without text", {"_id": "d2", "title": "x"}, 'no field "text"'),
    corpus("a document with a blank text", {"_id": "d2", "text": " \t "}, 'empty "text"'),
    corpus("a document with a list as text", {"_id": "d2", "text": ["x"]}, '"text" is list, not a string'),
    corpus("a document with a number as title", {"_id": "d2", "title": 7, "text": "x"}, '"title" is int, not a string'),
    corpus("a document with true as id", {"_id": True, "text": "x"}, '"_id" is bool, not a string'),
    corpus("a document with an empty id", {"_id": "", "text": "x"}, 'empty "_id"'),
    renamed("a document with a NUL in its id", "d\x00"),
    corpus("a document of invalid UTF-8", b'{"_id": "d2", "text": "caf\xe9"}', "byte 0xe9"),
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
    query("a query with the id of another one", {"_id": "q3", "text": "another"}, "id 'q3' was used before"),
    query("a query of Infinity", '{"_id": Infinity, "text": "x"}', "not JSON (Infinity is not a number of JSON)"),
    judged("a judgement of an unknown document", "q130\tnone\t1", "unknown document id 'none'"),
    judged("a judgement of an unknown query", "none\td130\t1", "unknown query id 'none'"),
    judged("a judgement without score", "q130\td130", "2 columns, not 3 separated by tabs"),
    judged("a judgement with NaN as score", "q130\td130\tnan", "score 'nan' is not an integer"),
    judged("a score of a thousand digits", "q130\td130\t" + "9" * 1000, "score '99999999999999999999' is not an"),
    judged("a judgement of invalid UTF-8", b"q130\td\xff\t1", "byte 0xff at column 7 is not UTF-8"),
    judged("a judgement with a carriage return within", "q130\td130\r\t1", "unknown document id 'd130\\r'"),
    Case(
        "every document has one id",
        STRICT,
        "id 'same' was used before with a different text",
        (every_row(CORPUS, lambda content: content.update(_id="same")),),
    ),
    other("a positive without text", "train.jsonl", "positive_passages", [{}], 'no field "text"'),
    other("positives as text", "train.jsonl", "positive_passages", "x", '"positive_passages" is str, not a list'),
    other("a positive of null", "dpr-train.jsonl", "positive_ctxs", [None], '"positive_ctxs[0]" is NoneType, not an'),
    other(
        "scores that do not go along",
        "flag-train.jsonl",
        "neg_scores",
        [1, 2, 3],
        '"neg_scores" has 3 scores for 1 in "neg"',
    ),
    other("a label of 7", "pairs-train.jsonl", "label", 7, "label '7' is none of entailment, neutral, contradiction"),
    other("a split that leads out", "pairs-train.jsonl", "split", "../../x", ""),
    other("an anchor of null", "st-train.jsonl", "anchor", None, '"anchor" is NoneType, not a string'),
    other("a score above one", "scored-train.jsonl", "score", 1.5, '"score" is 1.5, neither a grade from 0 nor within'),
    other("a score of NaN", "scored-train.jsonl", "score", float("nan"), "not JSON (NaN is not a number of JSON)"),
)
