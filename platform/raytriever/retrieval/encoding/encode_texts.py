"""Encode texts in one process, in their order. A thread tokenizes the next texts while the encoder works.

`models.inference` makes the batches and defines the protocol of an encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from raytriever.core.progress import Progress
from raytriever.data.dataset import RetrievalDataset
from raytriever.models.inference import Pending, TextEncoder
from raytriever.models.prompts import Prompts, Side
from raytriever.retrieval.encoding.shard_encoder import check_finite

WINDOW = 8_192


def encode_queries(
    retriever: TextEncoder,
    dataset: RetrievalDataset,
    positions: Iterable[int],
    title: str = "queries",
    prompts: Prompts | None = None,
) -> Float32[ndarray, "queries dim"]:
    """Return the embeddings of queries of a data set, each with its prompt.

    If a query has no prompt of its own, its prompt is that of `prompts`, or else the retriever's for this data set."""
    default = (prompts or retriever.prompts_of(dataset.name)).query
    queries = [int(query) for query in positions]
    prompt = dataset.prompts_of(queries, default)
    for text in set() if isinstance(prompt, str) else set(prompt):
        retriever.check_prompt(text, "query")
    return encode_texts(retriever, [dataset.queries.texts[query] for query in queries], "query", title, prompt)


def encode_texts(
    retriever: TextEncoder,
    texts: Sequence[str],
    side: Side,
    title: str = "encode",
    prompt: str | Sequence[str] | None = None,
) -> Float32[ndarray, "texts dim"]:
    """Return the embeddings of queries or of passages, computed in the precision of the retriever's weights.

    `prompt` is put before each text, or is a list with a prompt for each text. By default it is the prompt of the side.
    """
    embeddings = np.empty((len(texts), retriever.dim), np.float32)
    before: tuple[int, Pending] | None = None  # the window that is still encoded: its first row and result

    def tokenize(start: int) -> tuple[Sequence[Any], str | Sequence[str] | None]:
        own = prompt if prompt is None or isinstance(prompt, str) else prompt[start : start + WINDOW]
        return retriever.contents(texts[start : start + WINDOW], side, own), own

    starts = range(0, len(texts), WINDOW)
    retriever.announce(content for start in starts for content in tokenize(start)[0])
    with Progress(title, len(texts), "text") as progress, ThreadPoolExecutor(1) as reader:
        reading = None  # future of the next texts; None at first, because a few queries need no thread
        for start in starts:
            contents, own = tokenize(start) if reading is None else reading.result()
            reading = reader.submit(tokenize, start + WINDOW) if start + WINDOW < len(texts) else None
            pending = _start_contents(retriever, contents, side, progress.advance, own)
            if before is not None:
                embeddings[before[0] : start] = before[1].result()
            before = start, pending
        if before is not None:
            embeddings[before[0] :] = before[1].result()
    check_finite(embeddings, side, lambda row: texts[row])
    return embeddings


def encode_contents(retriever: TextEncoder, contents: Sequence[Any], side: Side) -> Float32[ndarray, "texts dim"]:
    """Return the embeddings of results of `Retriever.contents`, in the precision of the weights. NaN is possible.

    The retriever is put into evaluation mode. `side` decides the tower and the maximum length of texts."""
    return _start_contents(retriever, contents, side).result()


def _start_contents(
    retriever: TextEncoder,
    contents: Sequence[Any],
    side: Side,
    on_progress: Callable[[int], None] | None = None,
    prompt: str | Sequence[str] | None = None,
) -> Pending:
    inputs = retriever.assemble(contents, side)
    rows = retriever.batches(inputs, retriever.token_budget())
    return retriever.start(inputs, rows, side, on_progress=on_progress, prompt=prompt)
