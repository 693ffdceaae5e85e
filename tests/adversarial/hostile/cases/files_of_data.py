"""Files and folders of data that are broken as a whole, ambiguous or not what their names say."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

from hostile.case import Case, Maker, of_area
from hostile.making import change, cut, folder, packed, removed, replaced, rows, write

PREPARE = "prepare --dataset letters --model model --output out"
SET = "prepare --dataset set --model model --output out"
CORPUS = "letters/corpus.jsonl"
PAIR = {"anchor": "what is a cell", "positive": "A cell is"}
TEVATRON = {"query_id": "1", "query": "a cell", "positive_passages": [{"docid": "7", "title": "", "text": "A cell"}]}
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


CASES = of_area(
    "files",
    Case("no corpus", PREPARE, "letters: no corpus.jsonl or corpus.jsonl.gz", (removed(CORPUS),), fast=True),
    Case("no queries", PREPARE, "letters: no queries.jsonl", (removed("letters/queries.jsonl"),), fast=True),
    Case("no judgements", PREPARE, make=(removed("letters/qrels"),), code=0),
    Case(
        "a folder of judgements that is empty",
        PREPARE,
        make=(removed("letters/qrels"), folder("letters/qrels")),
        code=0,
    ),
    Case(
        "a corpus of no bytes",
        PREPARE,
        "letters/corpus.jsonl: no row in it, the file is empty",
        (write(CORPUS, b""),),
        fast=True,
    ),
    Case("a corpus of blank lines", PREPARE, "letters/corpus.jsonl: no row in it", (write(CORPUS, b"\n\n\n"),)),
    Case("a corpus of NULs", PREPARE, "not JSON (Expecting value at column 1)", (write(CORPUS, bytes(4096)),)),
    Case(
        "a corpus in UTF-16",
        PREPARE,
        "byte 0xff at column 1 is not UTF-8",
        (change(CORPUS, lambda f: f.write_bytes(f.read_text().encode("utf-16"))),),
    ),
    Case("a corpus with a byte order mark", PREPARE, "", (dressed(CORPUS, before=b"\xef\xbb\xbf"),), code=0),
    Case("a corpus with lines that end as on Windows", PREPARE, "", (dressed(CORPUS, line_ends=b"\r\n"),), code=0),
    Case(
        "a corpus with lines that end as on an old Macintosh",
        PREPARE,
        "not JSON (Extra data at column 56)",
        (dressed(CORPUS, line_ends=b"\r"),),
    ),
    Case(
        "a corpus that is a picture",
        PREPARE,
        "byte 0x89 at column 1 is not UTF-8",
        (write(CORPUS, b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8),),
    ),
    Case("a corpus that is a folder", PREPARE, "letters: no corpus.jsonl or corpus.jsonl.gz in it", (folder(CORPUS),)),
    Case(
        "a corpus twice, plain and packed",
        PREPARE,
        "",
        (change(CORPUS, lambda f: f.with_name("corpus.jsonl.gz").write_bytes(b"x")),),
        code=0,
    ),
    Case("a gzip that is cut", PREPARE, "the gzip is broken", (packed(CORPUS, 500),), fast=True),
    Case(
        "a gzip of no bytes", PREPARE, "letters/corpus.jsonl.gz: no row in it, the file is empty", (packed(CORPUS, 0),)
    ),
    Case(
        "a gzip that is none",
        PREPARE,
        "letters/corpus.jsonl.gz: the gzip is broken after row 0",
        (removed(CORPUS), write("letters/corpus.jsonl.gz", b"not packed at all")),
    ),
    Case(
        "a gzip with a wrong checksum",
        PREPARE,
        "letters/corpus.jsonl.gz: the gzip is broken after row 0",
        (packed(CORPUS), change("letters/corpus.jsonl.gz", lambda f: f.write_bytes(f.read_bytes()[:-8] + bytes(8)))),
    ),
    Case(
        "a gzip with garbage after it",
        PREPARE,
        "letters/corpus.jsonl.gz: the gzip is broken after row 0",
        (packed(CORPUS), dressed("letters/corpus.jsonl.gz", after=b"garbage")),
    ),
    Case(
        "a gzip that unpacks to one row of 300 MB",
        PREPARE,
        "the row is longer than 256 MB",
        (removed(CORPUS), bomb("letters/corpus.jsonl.gz")),
        seconds=120,
    ),
    Case(
        "judgements of no bytes",
        PREPARE,
        "the header is '' (the file is empty)",
        (write("letters/qrels/test.tsv", b""),),
    ),
    Case(
        "judgements with a wrong header",
        PREPARE,
        "the header is 'query\\tdocument\\tscore'",
        (replaced("letters/qrels/test.tsv", "query-id\tcorpus-id", "query\tdocument"),),
    ),
    Case(
        "judgements without header",
        PREPARE,
        "the header is 'q128\\td128\\t1'",
        (replaced("letters/qrels/test.tsv", "query-id\tcorpus-id\tscore\n", ""),),
    ),
    Case(
        "judgements of the form of TREC",
        PREPARE,
        "the header is 'q128 0 d128 1'",
        (write("letters/qrels/test.tsv", "q128 0 d128 1\n"),),
    ),
    Case(
        "judgements separated by commas",
        PREPARE,
        "the header is 'query-id,corpus-id,score'",
        (change("letters/qrels/test.tsv", lambda f: f.write_text(f.read_text().replace("\t", ","))),),
    ),
    Case(
        "a split whose name leads out",
        "evaluate --datasets letters --model model --split ../../etc/passwd --output out",
        "letters: no split '../../etc/passwd'",
    ),
    Case(
        "a split of no name",
        "evaluate --datasets letters --model model --split '' --output out",
        "letters: no split ''",
    ),
    Case(
        "two formats in one folder",
        SET,
        "set: not in one format",
        (rows("set/a-train.jsonl", FLAG), rows("set/b-train.jsonl", PAIR)),
        fast=True,
    ),
    Case(
        "several data sets in one folder",
        SET,
        "set: not in one format",
        (rows("set/a/train.jsonl", TEVATRON), rows("set/b/corpus.jsonl", {"_id": "1", "text": "x"})),
    ),
    Case("a folder of nothing", SET, "--dataset set: no file in it", (folder("set"),), fast=True),
    Case("a folder of hidden files", SET, "--dataset set: no file in it", (rows("set/.train.jsonl", PAIR),)),
    Case("a folder of unknown files", SET, "set: in no known format", (write("set/notes.txt", "x"),)),
    Case("fields of no known format", SET, "set: in no known format", (rows("set/train.jsonl", {"a": 1, "b": 2}),)),
    Case(
        "an object of a million fields",
        SET,
        "set: in no known format",
        (rows("set/train.jsonl", {f"field{i}": i for i in range(100_000)}),),
    ),
    Case(
        "an array that is cut off",
        SET,
        "set/train.json: the JSON array is cut off after row 1",
        (write("set/train.json", json.dumps([PAIR, PAIR])[:-10]),),
    ),
    Case("an array of arrays", SET, "set: in no known format", (write("set/train.json", "[[1], [2]]"),)),
    Case(
        "an array nested deeply",
        SET,
        "set/train.json: the JSON array is cut off after row 0",
        (write("set/train.json", "[" * 100_000),),
    ),
    Case(
        "a format that is not that of the files",
        "prepare --dataset letters --format dpr --model model --output out",
        "letters: not in the format dpr",
    ),
    Case(
        "a format of no known name",
        "prepare --dataset letters --format beer --model model --output out",
        "did you mean 'beir'?",
        fast=True,
    ),
    Case(
        "a Parquet file that is none",
        SET,
        "set/train.parquet: the Parquet is broken",
        (write("set/train.parquet", b"PAR1 not at all PAR1"),),
    ),
    Case(
        "a Parquet file of no bytes",
        SET,
        "set/train.parquet: no row in it, the file is empty",
        (write("set/train.parquet", b""),),
    ),
    Case(
        "a Parquet file that is cut",
        SET,
        "set/train.parquet: the Parquet is broken",
        (parquet("set/train.parquet", "text"), cut("set/train.parquet", -30)),
    ),
    Case(
        "a Parquet column of pickled objects",
        SET,
        "set/train.parquet: column 'positive' is of the extension type 'ray.data.arrow_pickled_obje",
        (parquet("set/train.parquet", "pickled"),),
        fast=True,
    ),
    *[
        Case(f"a Parquet column of kind {kind}", SET, "", (parquet("set/train.parquet", kind),))
        for kind in ("number", "null", "nested", "binary")
    ],
    Case("a Parquet column of a dictionary", SET, "", (parquet("set/train.parquet", "dictionary"),), code=0),
    Case(
        "training on a broken corpus",
        "train --dataset letters --model model --output out --max-steps 2",
        "not JSON (Expecting property name enclosed in double quotes at column 2)",
        (write(CORPUS, b"{\n"),),
        fast=True,
    ),
    Case(
        "encoding a broken corpus",
        "encode --dataset letters --model model --output out",
        "not JSON (Expecting property name enclosed in double quotes at column 2)",
        (write(CORPUS, b"{\n"),),
    ),
    Case(
        "mining in a broken corpus",
        "mine --dataset letters --method bm25 --output out",
        "not JSON (Expecting property name enclosed in double quotes at column 2)",
        (write(CORPUS, b"{\n"),),
    ),
    Case(
        "indexing a broken corpus",
        "index --dataset letters --model model --output out",
        "not JSON (Expecting property name enclosed in double quotes at column 2)",
        (write(CORPUS, b"{\n"),),
    ),
    Case(
        "searching a broken corpus",
        "search x --dataset letters --model model",
        "not JSON (Expecting property name enclosed in double quotes at column 2)",
        (write(CORPUS, b"{\n"),),
    ),
    Case(
        "evaluating on a broken corpus",
        "evaluate --datasets letters --model model --output out",
        "not JSON (Expecting property name enclosed in double quotes at column 2)",
        (write(CORPUS, b"{\n"),),
    ),
    Case(
        "scoring a broken corpus",
        "score --dataset letters --model cross --output out --negatives negatives",
        "not JSON (Expecting property name enclosed in double quotes at column 2)",
        (write(CORPUS, b"{\n"),),
    ),
    Case(
        "tuning on a broken corpus",
        "tune --dataset letters --model model --output out",
        "not JSON (Expecting property name enclosed in double quotes at column 2)",
        (write(CORPUS, b"{\n"),),
    ),
    Case(
        "annotating a broken corpus",
        "annotate --dataset letters --dry-run --llm x --endpoint http://127.0.0.1:9/v1 --output out",
        "not JSON (Expecting property name enclosed in double quotes at column 2)",
        (write(CORPUS, b"{\n"),),
    ),
    Case(
        "a folder without documents",
        "import papers --model model --output out",
        "papers: no document in it; its files end in .exe (1)",
        (write("papers/a.exe", b"MZ"),),
        fast=True,
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
