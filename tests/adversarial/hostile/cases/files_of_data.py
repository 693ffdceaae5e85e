"""Files and folders of data that are broken as a whole, ambiguous or not what their names say."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

from hostile.case import Case, Maker, of_area
from hostile.making import change, cut, folder, packed, removed, rows, write

PREPARE = "prepare --dataset letters --model model --output out"
SET = "prepare --dataset set --model model --output out"
CORPUS = "letters/corpus.jsonl"
PAIR = {"anchor": "what is a cell", "positive": "A cell is"}
FLAG = {"query": "how tall", "pos": ["324 metres"], "neg": ["in Paris"]}


def parquet(path: str, kind: str) -> Maker:
    """A Parquet file whose column `positive` is of an unexpected kind."""

    def action(file: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        texts = pa.array(["a cell", "b cell"])
        columns = {
            "number": pa.array([1, 2]),
            "null": pa.nulls(2),
            "nested": pa.array([{"a": 1}, {"a": 2}]),
            "binary": pa.array([b"\xff\xfe", b"x"]),
            "dictionary": texts.dictionary_encode(),
            "pickled": texts,
            "text": texts,
        }
        table = pa.table({"anchor": texts, "positive": columns[kind]})
        if kind == "pickled":
            about = {b"ARROW:extension:name": b"ray.data.arrow_pickled_object", b"ARROW:extension:metadata": b""}
            field = pa.field("positive", pa.binary(), metadata=about)
            columns = [texts, pa.array([b"\x80\x04.", b"\x80\x04."])]
            table = pa.table(columns, schema=pa.schema([pa.field("anchor", pa.string()), field]))
        pq.write_table(table, file)

    return change(path, action)


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
    "annotate": "annotate --dataset letters --dry-run --llm x --endpoint http://127.0.0.1:9/v1 --output out",
}

CASES = of_area(
    "files",
    corpus("no corpus", "letters: no corpus.jsonl or corpus.jsonl.gz", removed(CORPUS)),
    corpus("no queries", "letters: no queries.jsonl", removed("letters/queries.jsonl")),
    corpus("a folder of judgements that is empty", "", removed("letters/qrels"), folder("letters/qrels")),
    corpus("a corpus of no bytes", "no row in it, the file is empty", write(CORPUS, b"")),
    corpus("a corpus of NULs", "not JSON (Expecting value at column 1)", write(CORPUS, bytes(4096))),
    corpus(
        "a corpus in UTF-16",
        "byte 0xff at column 1 is not UTF-8",
        change(CORPUS, lambda f: f.write_bytes(f.read_text().encode("utf-16"))),
    ),
    corpus("a corpus with a byte order mark", "", dressed(CORPUS, before=b"\xef\xbb\xbf")),
    corpus("a corpus with lines that end as on Windows", "", dressed(CORPUS, line_ends=b"\r\n")),
    corpus("a corpus that is a folder", "letters: no corpus.jsonl or corpus.jsonl.gz in it", folder(CORPUS)),
    corpus("a gzip that is cut", "the gzip is broken", packed(CORPUS, 500)),
    corpus("a gzip that is none", "the gzip is broken after row 0", removed(CORPUS), write(PACKED, b"not packed")),
    corpus(
        "a gzip with a wrong checksum",
        "letters/corpus.jsonl.gz: the gzip is broken after row 0",
        packed(CORPUS),
        change(PACKED, lambda f: f.write_bytes(f.read_bytes()[:-8] + bytes(8))),
    ),
    corpus(
        "a gzip with garbage after it", "the gzip is broken after row 0", packed(CORPUS), dressed(PACKED, after=b"x")
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
        "two formats in one folder",
        "set: not in one format",
        rows("set/a-train.jsonl", FLAG),
        rows("set/b-train.jsonl", PAIR),
    ),
    other("a folder of nothing", "dataset set: no file in it", folder("set")),
    other("a folder of hidden files", "dataset set: no file in it", rows("set/.train.jsonl", PAIR)),
    other("a folder of unknown files", "set: in no known format", write("set/notes.txt", "x")),
    other(
        "an object of a hundred thousand fields",
        "set: in no known format",
        rows("set/train.jsonl", {f"field{i}": i for i in range(100_000)}),
    ),
    other(
        "an array that is cut off",
        "set/train.json: the JSON array is cut off after row 1",
        write("set/train.json", json.dumps([PAIR, PAIR])[:-10]),
    ),
    other("an array nested deeply", "the JSON array is cut off after row 0", write("set/train.json", "[" * 100_000)),
    Case(
        "a format that is not that of the files",
        "prepare --dataset letters --format dpr --model model --output out",
        "letters: not in the format dpr",
    ),
    other("a Parquet file that is none", "the Parquet is broken", write("set/train.parquet", b"PAR1 not at all PAR1")),
    other("a Parquet file of no bytes", "no row in it, the file is empty", write("set/train.parquet", b"")),
    other(
        "a Parquet file that is cut",
        "set/train.parquet: the Parquet is broken",
        parquet("set/train.parquet", "text"),
        cut("set/train.parquet", -30),
    ),
    other(
        "a Parquet column of pickled objects",
        "set/train.parquet: column 'positive' is of the extension type 'ray.data.arrow_pickled_obje",
        parquet("set/train.parquet", "pickled"),
    ),
    *[
        other(f"a Parquet column of kind {kind}", "", parquet("set/train.parquet", kind))
        for kind in ("number", "null", "nested", "binary")
    ],
    other("a Parquet column of a dictionary", "", parquet("set/train.parquet", "dictionary"), code=0),
    *[
        Case(f"a broken corpus for {stage}", words, "not JSON", (write(CORPUS, b"{\n"),))
        for stage, words in READERS.items()
    ],
    Case(
        "a folder without documents",
        "import papers --model model --output out",
        "papers: no document in it; its files end in .exe (1)",
        (write("papers/a.exe", b"MZ"),),
    ),
    Case(
        "a PDF file that takes ten minutes to read",
        "import papers --model model --output out",
        "papers/a.pdf: none of its 1 files has text that can be read; a.pdf takes longer than 32 s to read",
        (endless("papers/a.pdf"),),
        seconds=150.0,
    ),
    Case(
        "PDF files that are cut off",
        "import papers --model model --output out",
        "none of its 2 files has text that can be read; a.pdf is broken",
        (write("papers/a.pdf", b"%PDF-1.7\nxref"), write("papers/b.pdf", b"PK")),
    ),
)
