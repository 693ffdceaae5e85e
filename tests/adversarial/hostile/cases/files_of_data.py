"""Files and folders of data that are broken as a whole, ambiguous or not what their names say."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

from hostile.case import Case, Maker, of_area
from hostile.making import change, folder, packed, removed, rows, write

PREPARE = "prepare --dataset letters --model model --output out"
SET = "prepare --dataset set --model model --output out"
CORPUS = "letters/corpus.jsonl"
PAIR = {"anchor": "what is a cell", "positive": "A cell is"}
FLAG = {"query": "how tall", "pos": ["324 metres"], "neg": ["in Paris"]}


def endless(path: str) -> Maker:
    """A PDF file that takes ten minutes to read."""

    def action(file: Path) -> None:
        sys.path.append(str(Path(__file__).parents[3] / "support"))
        from pdf import write_endless_pdf

        write_endless_pdf(file)

    return change(path, action)


def bomb(path: str) -> Maker:
    """A gzip of one row that unpacks to 300 MB."""

    def action(file: Path) -> None:
        raw = io.BytesIO()
        with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1) as stream:
            stream.write(b'{"_id": "d0", "text": "')
            for _ in range(300):
                stream.write(b"a" * 1_000_000)
        file.write_bytes(raw.getvalue())

    return change(path, action)


def dressed(path: str, before: bytes = b"", after: bytes = b"", line_ends: bytes = b"\n") -> Maker:
    """A file with bytes before and after, and other ends of lines."""
    return change(path, lambda file: file.write_bytes(before + file.read_bytes().replace(b"\n", line_ends) + after))


def corpus(name: str, line: str, *make: Maker) -> Case:
    """A corpus in BEIR layout that `prepare` reads; without a line it is accepted."""
    return Case(name, PREPARE, line, make, code=2 if line else 0)


def other(name: str, line: str, *make: Maker, code: int = 2) -> Case:
    """A folder in another format that `prepare` reads."""
    return Case(name, SET, line, make, code=code)


PACKED = f"{CORPUS}.gz"
# Stages that read a data set, each with a corpus that is broken in its first row.
READERS = {
    "train": "train --dataset letters --model model --output out --max-steps 2",
    "encode": "encode --dataset letters --model model --output out",
    "mine": "mine --dataset letters --method bm25 --output out",
    "index": "index --dataset letters --model model --output out",
    "search": "search x --dataset letters --model model",
    "evaluate": "evaluate --datasets letters --model model --output out",
    "score": "score --dataset letters --model cross --output out --negatives negatives",
    "tune": "tune --dataset letters --model model --output out",
    "annotate": "annotate --dataset letters --dry-run --llm x --base-url http://127.0.0.1:9/v1 --output out",
}

CASES = of_area(
    "files",
    corpus("no corpus", "letters: has no corpus.jsonl or corpus.jsonl.gz", removed(CORPUS)),
    corpus("no queries", "letters: has no queries.jsonl", removed("letters/queries.jsonl")),
    corpus("a folder of judgements that is empty", "", removed("letters/qrels"), folder("letters/qrels")),
    corpus("a corpus of no bytes", "has no rows: the file is empty", write(CORPUS, b"")),
    corpus("a corpus of NULs", "not JSON (Expecting value at column 1)", write(CORPUS, bytes(4096))),
    corpus(
        "a corpus in UTF-16",
        "byte 0xff at column 1 is not UTF-8",
        change(CORPUS, lambda f: f.write_bytes(f.read_text().encode("utf-16"))),
    ),
    corpus("a corpus with a byte order mark", "", dressed(CORPUS, before=b"\xef\xbb\xbf")),
    corpus("a corpus with lines that end as on Windows", "", dressed(CORPUS, line_ends=b"\r\n")),
    corpus("a corpus that is a folder", "letters: has no corpus.jsonl or corpus.jsonl.gz", folder(CORPUS)),
    corpus("a gzip that is none", "the gzip file is broken after row 0", removed(CORPUS), write(PACKED, b"not packed")),
    corpus(
        "a gzip with a wrong checksum",
        "letters/corpus.jsonl.gz: the gzip file is broken after row 0",
        packed(CORPUS),
        change(PACKED, lambda f: f.write_bytes(f.read_bytes()[:-8] + bytes(8))),
    ),
    Case(
        "a gzip that unpacks to one row of 300 MB",
        PREPARE,
        "the row is longer than 256 MB",
        (removed(CORPUS), bomb(PACKED)),
        seconds=120,
    ),
    corpus("judgements of no bytes", "the header is '' (the file is empty)", write("letters/qrels/test.tsv", b"")),
    corpus("judgements without a header", "the header is 'q128", write("letters/qrels/test.tsv", "q128\td128\t1\n")),
    Case(
        "a split whose name leads out",
        "evaluate --datasets letters --model model --split ../../etc/passwd --output out",
        "letters: no split '../../etc/passwd'",
    ),
    other(
        "an object of a hundred thousand fields",
        "set: is in no known format",
        rows("set/train.jsonl", {f"field{i}": i for i in range(100_000)}),
    ),
    other("an array nested deeply", "the JSON array is cut off after row 0", write("set/train.json", "[" * 100_000)),
    *[
        Case(f"a broken corpus for {stage}", words, "not JSON", (write(CORPUS, b"{\n"),))
        for stage, words in READERS.items()
    ],
    Case(
        "a folder without documents",
        "import papers --model model --output out",
        "papers: has no documents; its files end in .exe (1)",
        (write("papers/a.exe", b"MZ"),),
    ),
    Case(
        "a PDF file that takes ten minutes to read",
        "import papers --model model --output out",
        "papers/a.pdf: none of the 1 files has text that can be read; a.pdf takes longer than 32 s to read",
        (endless("papers/a.pdf"),),
        seconds=150.0,
    ),
    Case(
        "PDF files that are cut off",
        "import papers --model model --output out",
        "none of the 2 files has text that can be read; a.pdf is broken",
        (write("papers/a.pdf", b"%PDF-1.7\nxref"), write("papers/b.pdf", b"PK")),
    ),
)
