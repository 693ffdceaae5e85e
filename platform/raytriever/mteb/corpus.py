"""One split of a retrieval task of MTEB as a data set: its files are written once to the cache, and prepared there.

Actors on any node then read the corpus as that of any data set. The files are in BEIR layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.data.prepare.pipeline import in_processes
from raytriever.data.sources import Files, Row, Rows

# Split of the data set that holds the judgements; MTEB's own names of splits may not be names of files.
SPLIT = "test"
# Text of documents and queries that have none: MTEB encodes them, and data sets here hold no empty text. It is a space
# without width, which WordPiece and SentencePiece tokenizers read as no text.
NO_TEXT = "\u200b"
_BATCH = 1024


def open_split(
    corpus: Any,
    queries: Any,
    relevant: Mapping[str, Mapping[str, int]],
    task_metadata: Any,
    name: str,
    max_bad_rows: float,
) -> RetrievalDataset:
    """Return a split of a task as a prepared data set with the split `SPLIT`.

    `relevant` has the grades of documents by query.

    Raises:
        DataError: too many rows are bad, such as repeated ids.
    """
    texts = dict(zip(queries["id"], query_texts(queries, task_metadata), strict=True))

    def documents() -> Iterator[Row]:
        for row in corpus:
            title, text = row.get("title") or "", row["text"] or ""
            blank = not title.strip() and not text.strip()
            # A title without a text becomes the text: the model reads the same.
            yield (
                {"_id": row["id"], "title": title, "text": text}
                if text.strip()
                else {"_id": row["id"], "text": NO_TEXT if blank else title}
            )

    def judgements() -> Iterator[Row]:
        for query, grades in relevant.items():
            for document, grade in grades.items() if query in texts else ():
                yield {"query-id": query, "corpus-id": document, "score": int(grade)}

    rows: dict[str, Rows] = {
        "corpus.jsonl": documents,
        "queries.jsonl": lambda: (
            {"_id": key, "text": text if text.strip() else NO_TEXT} for key, text in texts.items()
        ),
        f"qrels/{SPLIT}.jsonl": judgements,
    }
    titles = {"corpus.jsonl": "documents", "queries.jsonl": "queries", f"qrels/{SPLIT}.jsonl": "judgements"}
    folder = Files(rows, {file: f"{title} of {name}" for file, title in titles.items()}).write(name)
    return open_dataset(str(folder), [SPLIT], max_bad_rows=max_bad_rows, run=in_processes)


def query_texts(queries: Any, task_metadata: Any) -> list[str]:
    """Return the text of each query as MTEB gives it to encoders: with its instruction, or a conversation as text."""
    from mteb._create_dataloaders import create_dataloader
    from mteb.types import PromptType

    loader = create_dataloader(queries, task_metadata=task_metadata, prompt_type=PromptType.query, batch_size=_BATCH)
    return [text for batch in loader for text in batch["text"]]
