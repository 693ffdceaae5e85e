"""Control characters in names, ids, titles and texts: a terminal obeys none of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hostile.case import Case, Maker, of_area
from hostile.making import every_row, rows, write

KINDS = {
    "an escape sequence": "\x1b]0;owned\x07\x1b[2J",
    "the clipboard's sequence": "\x1b]52;c;cm0gLXJm\x07",
    "a carriage return": "before\rerror: all is well",
    "a line feed": "before\nerror: all is well",
    "a bidirectional override": "\u202egnp.exe",
    "an isolate": "\u2066x\u2069",
    "a control character of C1": "\x9b31m",
    "a NUL": "a\x00b",
    "a bell and a backspace": "a\x07\x08b",
    "a line separator": "a\u2028b\u2029c",
}
SEARCH = "search is --dataset letters --model model --top 200"


def with_field(field: str, text: str) -> Maker:
    """Put a text in front of a field of each document."""
    return every_row("letters/corpus.jsonl", lambda row: row.update({field: text + row[field]}))


def renamed(name: str) -> Maker:
    """Give the data set's folder a hostile name."""

    def make(folder: Path) -> None:
        (folder / "letters").rename(folder / name)

    make.path = "letters"  # type: ignore[attr-defined]
    return make


def quoted(text: str) -> Callable[[Path], None]:
    """A file of a hostile name in a folder of no known format."""
    return write(f"set/{text.replace(chr(0), '')}.txt", "")


SOME = {name: KINDS[name] for name in list(KINDS)[:4]}
EASY = {name: text for name, text in KINDS.items() if "\x00" not in text}

CASES = of_area(
    "characters",
    *[Case(f"{name} in titles", SEARCH, make=(with_field("title", text),), code=0) for name, text in KINDS.items()],
    *[Case(f"{name} in texts", SEARCH, make=(with_field("text", text),), code=0) for name, text in SOME.items()],
    *[
        Case(
            f"{name} as a field",
            "prepare --dataset letters --model model --output out --max-bad-rows 0",
            "no field",
            (rows("letters/corpus.jsonl", {text: "x"}),),
        )
        for name, text in SOME.items()
    ],
    *[
        Case(
            f"{name} in a file's name",
            "prepare --dataset set --model model --output out",
            "no known format",
            (quoted(text),),
        )
        for name, text in EASY.items()
    ],
    *[
        Case(f"{name} in a flag's value", f"train --loss '{text}'", "loss: unknown value")
        for name, text in EASY.items()
    ],
    Case("an escape sequence as a flag", "train '--\x1b[2J'", "unknown flag"),
    Case("an escape sequence as a word", "search x '\x1b[2J'", "unexpected argument"),
    Case("an escape sequence as a stage", "'\x1b[2J'", "unknown command"),
    Case(
        "an escape sequence in a path of data",
        "encode --dataset 'no\x1b[2Jwhere' --model model --output out",
        "no such folder",
    ),
    Case(
        "an escape sequence in a path of a model",
        "search x --dataset letters --model './no\x1b[2Jwhere'",
        "no such directory",
    ),
    Case(
        "an escape sequence in ids",
        "search is --dataset letters --model model",
        make=(
            every_row("letters/corpus.jsonl", lambda row: row.update(_id=row["_id"] + "\x1b[2J")),
            rows("letters/qrels/test.tsv", "query-id\tcorpus-id\tscore", "q128\td128\x1b[2J\t1"),
            rows("letters/qrels/dev.tsv", "query-id\tcorpus-id\tscore", "q1\td1\x1b[2J\t1"),
            rows("letters/qrels/train.tsv", "query-id\tcorpus-id\tscore", "q2\td2\x1b[2J\t1"),
        ),
        code=0,
    ),
    Case(
        "an escape sequence in the name of a data set",
        "prepare --dataset 'let\x1b[2Jters' --model model --output out",
        make=(renamed("let\x1b[2Jters"),),
        code=0,
    ),
    Case(
        "an escape sequence in the titles of an index",
        "index --dataset letters --model model --output out --query is --top 200",
        make=(with_field("title", KINDS["an escape sequence"]),),
        code=0,
    ),
    Case(
        "an escape sequence in settings",
        "train --config mine.yaml",
        "loss: unknown value '\\x1b[2J'",
        (write("mine.yaml", 'loss: {loss: "\\e[2J"}'),),
    ),
    Case("an escape sequence in the name of a study", "study '\x1b[2J' --output out", "is not a study file"),
    Case(
        "an escape sequence in an endpoint",
        "annotate --dataset letters --llm '\x1b[2J' --base-url 'http://\x1b[2J/v1' --output out",
        "base_url: is not a valid address",
    ),
    Case(
        "bytes that are no UTF-8 as a word", "search 'caf\udce9' --dataset letters", "is not UTF-8", shell='"$@" 2>&2'
    ),
)
