"""Published formats that are not read: what their files look like, and how to convert them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import closing

from raytriever.data.formats.rows import BYTE_ORDER_MARK
from raytriever.data.sources import SourceFile, open_stream, reading
from raytriever.errors import DataError

_BLOCK = 1 << 16
_JSON = re.compile(r"\.json(?:\.gz)?$", re.IGNORECASE)
_LLAMA_INDEX = re.compile(rb'\{\s*"(?:mode"\s*:\s*"\w*"\s*,\s*")?(?:queries|corpus)"\s*:\s*\{')
_SQUAD = re.compile(rb'\{.*"paragraphs"\s*:\s*\[', re.DOTALL)
_COLLECTION = re.compile(r"(?:^|/)(?:collection|queries)[^/]*\.tsv(?:\.gz)?$", re.IGNORECASE)
_TRIPLE = ("query", "positive", "negative")
_NAME_WORDS = 4  # the name of a column has fewer words


def json_error(files: Iterable[SourceFile]) -> DataError | None:
    """Return the error of the first file that is one JSON object of a known format; None if there is none."""
    for file in files:
        if not _JSON.search(file.path):
            continue
        with reading(file.where, [0]), closing(open_stream(file.where)) as stream:
            begin = stream.read(_BLOCK).removeprefix(BYTE_ORDER_MARK).lstrip()
        if _LLAMA_INDEX.match(begin):
            remedy = (
                'in Python, data = json.load(open(FILE)) and rt.Dataset.from_dict(data["corpus"], data["queries"], '
                '{"train": {query: dict.fromkeys(ids, 1) for query, ids in data["relevant_docs"].items()}})'
            )
            return DataError("looks like EmbeddingQAFinetuneDataset of LlamaIndex, not read here", file.where, remedy)
        if _SQUAD.match(begin):
            remedy = (
                'write {"query": QUESTION, "positive": CONTEXT} on a line of a .jsonl file for each question, with '
                '"answerable": "no" and an empty positive for an impossible one'
            )
            return DataError("looks like SQuAD (paragraphs of context and qas), not read here", file.where, remedy)
    return None


def collection_error(where: str, files: Sequence[SourceFile]) -> DataError | None:
    """Return the error of a folder with a collection and queries without headers; None if it is none."""
    found = [file.path for file in files if _COLLECTION.search(file.path)]
    if not any("collection" in path for path in found):
        return None
    what = f"looks like the files of ColBERT and MS MARCO without headers ({', '.join(found[:4])}), not read here"
    remedy = (
        'write corpus.jsonl and queries.jsonl of {"_id": ID, "text": TEXT}, and qrels/train.tsv with the header '
        "query-id<TAB>corpus-id<TAB>score"
    )
    return DataError(what, where, remedy)


def header_error(where: str, columns: Sequence[str], separator: str) -> DataError | None:
    """Return the error of a table of which no column is recognised, if its first row holds texts or numbers."""
    if not any(len(name.split()) >= _NAME_WORDS or name.isdecimal() for name in columns):
        return None
    what = f"has no header: its first row is {', '.join(repr(name[:30]) for name in columns[:4])}"
    if len(columns) == len(_TRIPLE) and not any(name.isdecimal() for name in columns):
        what += "; it looks like triples of MS MARCO (query, positive, negative)"
    names = _TRIPLE if len(columns) == len(_TRIPLE) else ("query", "passage")
    header = "<TAB>".join(names) if separator == "\t" else separator.join(names)
    return DataError(what, where, f"write the names of its columns above it, such as {header}")
