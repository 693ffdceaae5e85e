"""Writer of data sets in BEIR layout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HEADER = "query-id\tcorpus-id\tscore\n"


def write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write objects as JSON lines."""
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return file


def write_beir(
    folder: Path,
    documents: Sequence[str | Mapping[str, Any]],
    queries: Sequence[str | Mapping[str, Any]],
    **splits: Iterable[tuple[int, ...]],
) -> Path:
    """Write a data set. Document n, a text or a row, has the id `d<n>`, query n `q<n>`.

    Args:
        splits: pairs of query and document by number, or triples with the grade.
    """
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, letter, rows in (("corpus", "d", documents), ("queries", "q", queries)):
        whole = ({"text": row} if isinstance(row, str) else row for row in rows)
        write_rows(folder / f"{name}.jsonl", ({"_id": f"{letter}{n}", **row} for n, row in enumerate(whole)))
    for split, pairs in splits.items():
        judged = (f"q{query}\td{document}\t{grade[0] if grade else 1}\n" for query, document, *grade in pairs)
        (folder / "qrels" / f"{split}.tsv").write_text(HEADER + "".join(judged))
    return folder
