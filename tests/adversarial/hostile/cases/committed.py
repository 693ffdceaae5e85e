"""Committed directories that were altered: prepared data, stores, indexes, negatives, scores; damaged, or resealed with
right digests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile.case import Case, Maker, of_area
from hostile.making import change, cut, document, folder, link, removed, rows, sealed, write

TRAIN = "train --dataset prepared --model model --output out --max-steps 2"
ENCODE = "encode --dataset prepared --model model --output out"
STORE = "index --dataset letters --model model --embeddings store --output out"
INDEX = "index --dataset letters --model model --output index --query is --precision fp32"
NEGATIVES = "score --dataset letters --model cross --negatives negatives --output out"
SCORES = (
    "train --dataset letters --model model --loss kl --teacher scores --negatives-table negatives"
    " --negatives-per-query 2 --output out"
)
DOCUMENTS = "prepared/documents/00000-000000"
PART = "part-00000.parquet"


def array(path: str, alter: Callable[[Any], Any]) -> Maker:
    """Alter a NumPy array file; pickled where the result is one of objects."""

    def action(file: Path) -> None:
        import numpy as np

        content = alter(np.load(file))
        file.unlink()
        np.save(file, content, allow_pickle=True)

    return change(path, action)


def arrow(path: str, alter: Callable[[Any], Any]) -> Maker:
    """Alter the table of an Arrow file."""

    def action(file: Path) -> None:
        import pyarrow as pa

        with pa.memory_map(str(file)) as source:
            table = alter(pa.ipc.open_file(source).read_all())
        file.unlink()
        with pa.ipc.new_file(str(file), table.schema) as writer:
            writer.write_table(table)

    return change(path, action)


def parquet(path: str, alter: Callable[[Any], Any]) -> Maker:
    """Alter the table of a Parquet file."""

    def action(file: Path) -> None:
        import pyarrow.parquet as pq

        table = alter(pq.read_table(file))
        file.unlink()
        pq.write_table(table, file)

    return change(path, action)


def pickled(column: str) -> Callable[[Any], Any]:
    """A column as Ray's pickled objects, which run `touch HACKED` when they are read."""

    def alter(table: Any) -> Any:
        import pyarrow as pa

        about = {b"ARROW:extension:name": b"ray.data.arrow_pickled_object", b"ARROW:extension:metadata": b""}
        code = b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch HACKED\x85R."
        content = pa.array([code] * len(table), pa.binary())
        position = table.schema.get_field_index(column)
        return table.set_column(position, pa.field(column, pa.binary(), metadata=about), content)

    return alter


def not_a_number(column: Any) -> Any:
    column = column.copy()
    column.flat[3] = float("nan")
    return column


def of_meta(path: str, **values: Any) -> Maker:
    """Other values in a manifest's `meta`."""
    return document(f"{path}/manifest.json", lambda content: content["meta"].update(values))


def named(path: str, name: str) -> Maker:
    """A file more in a manifest's list, with a size and a digest that do not matter."""
    return document(
        f"{path}/manifest.json", lambda content: content["files"].update({name: {"size": 5, "sha256": "0" * 64}})
    )


def cut_short(words: str, path: str, file: str, about: bool = True) -> list[Case]:
    """What can happen to any committed directory; `about` where its manifest says what the directory is."""
    manifest = f"{path}/manifest.json"
    cases = [
        Case(f"{path} with a file changed", words, "", (change(f"{path}/{file}", _flip),)),
        Case(f"{path} with a file cut", words, "incomplete: ", (cut(f"{path}/{file}", -7),)),
        Case(f"{path} without a file", words, "missing, though the manifest names it", (removed(f"{path}/{file}"),)),
        Case(f"{path} with a folder for a file", words, "missing, though", (folder(f"{path}/{file}"),)),
        Case(f"{path} without a manifest", words, "", (removed(manifest),)),
        Case(f"{path} with a manifest that is an array", words, "", (write(manifest, b"[]"),)),
        Case(f"{path} with a manifest nested deeply", words, "", (write(manifest, b"[" * 100_000),)),
        Case(f"{path} with a manifest that names a file outside", words, "", (named(path, "../../etc/passwd"),)),
        Case(f"{path} with a manifest that links to itself", words, "", (link(manifest, "manifest.json"),)),
    ]
    if about:
        cases += [
            Case(f"{path} with a manifest of another kind", words, "", (of_meta(path, kind="cake"),)),
            Case(
                f"{path} with a manifest of a later version",
                words,
                "is of format 99; this version reads format 1",
                (document(manifest, lambda content: content.update(format=99)),),
            ),
            Case(f"{path} with a manifest about nothing", words, "", (document(manifest, _about_nothing),)),
        ]
    return cases


def _about_nothing(content: dict[str, Any]) -> None:
    content["meta"] = {}


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.unlink()
    file.write_bytes(content)


def resealed(name: str, words: str, path: str, *makers: Maker, line: str = "") -> Case:
    """A directory that was altered and has right digests."""
    return Case(name, words, line, (sealed(path, *makers),))


CASES = of_area(
    "committed",
    *cut_short(ENCODE, "prepared", "documents/00000-000000.arrow"),
    *cut_short(STORE, "store", "*/000000.embeddings.npy"),
    *cut_short(INDEX, "index", "embeddings.npy"),
    *cut_short(NEGATIVES, "negatives", PART, about=False),
    Case("scores with a file cut", SCORES, "incomplete: ", (cut(f"scores/{PART}", -7),), leaves=("out*",)),
    Case("scores of another kind", SCORES, "", (of_meta("scores", kind="cake"),), leaves=("out*",)),
    resealed("texts as pickled objects", TRAIN, "prepared", arrow(f"{DOCUMENTS}.arrow", pickled("text"))),
    resealed("an Arrow file of fewer rows", ENCODE, "prepared", arrow(f"{DOCUMENTS}.arrow", lambda t: t.slice(9))),
    resealed("a store of NaN", STORE, "store", array("store/*/000000.embeddings.npy", not_a_number)),
    Case("a store of no dimension", STORE, "the number of rows, dimension", (of_meta("store", dim=0),)),
    resealed("a store of fewer rows", STORE, "store", array("store/*/000000.embeddings.npy", lambda a: a[:9])),
    resealed("an index whose ANN index is cut", INDEX, "index", cut("index/ann_index/index.faiss", 500)),
    resealed("negatives as pickled objects", NEGATIVES, "negatives", parquet(f"negatives/{PART}", pickled("query"))),
    resealed(
        "negatives without a column", NEGATIVES, "negatives", parquet(f"negatives/{PART}", lambda t: t.select([0]))
    ),
    resealed("negatives that are no Parquet", NEGATIVES, "negatives", write(f"negatives/{PART}", b"PAR1")),
    Case(
        "an index for another data set",
        "index --dataset other --model model --output index --query x",
        make=(
            rows("other/corpus.jsonl", {"_id": "a", "text": "x"}),
            rows("other/queries.jsonl", {"_id": "q", "text": "x"}),
            rows("other/qrels/test.tsv", "query-id\tcorpus-id\tscore", "q\ta\t1"),
        ),
    ),
    *[
        Case(f"{what} as {other}", words, leaves=("out*",))
        for what, other, words in (
            ("a prepared data set", "embeddings", STORE.replace("store", "prepared")),
            ("embeddings", "a data set", ENCODE.replace("prepared", "store")),
            ("an index", "embeddings", STORE.replace("store", "index")),
            ("a folder of data", "negatives", SCORES.replace("table negatives", "table letters")),
            ("a folder of data", "teacher", SCORES.replace("--teacher scores", "--teacher letters")),
        )
    ],
)
