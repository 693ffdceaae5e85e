"""Encode tokens in one process: sort texts by length, and form batches of equal token count ahead of the encoder.

Sorting keeps padding to a few per cent. The budget counts tokens, not texts, because tokens cost time and memory. Those
of long texts count more (`models.buckets.token_cost`), because attention is quadratic. Batches depend on the lengths
and the budget alone, so the same rows give the same bytes in every process. Results are in the order of the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Float32
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.errors import ModelError
from raytriever.models.buckets import token_cost
from raytriever.models.packing import TokenBatch
from raytriever.models.retriever import Retriever
from raytriever.progress import Progress
from raytriever.prompts import Prompts, Side

WINDOW = 8_192
# A CPU is fastest at 2,000 to 8,000 tokens per batch; a GPU needs enough tokens to stay busy.
TOKEN_BUDGET = {"cpu": 4_096, "cuda": 65_536}


def encode_queries(
    retriever: Retriever,
    dataset: RetrievalDataset,
    positions: Iterable[int],
    title: str = "queries",
    prompts: Prompts | None = None,
) -> Float32[ndarray, "queries width"]:
    """Return the embeddings of queries of a data set, each with its prompt.

    Args:
        retriever: the encoder.
        dataset: data set of the queries.
        positions: positions of the queries.
        title: label of the progress line.
        prompts: prompts of the data set, if it has other names than its own.

    Raises:
        ModelError: an embedding is not finite, or a prompt leaves no token for the text.
    """
    default = (prompts or retriever.prompts_of(dataset.name)).query
    queries = [int(query) for query in positions]
    prompt = dataset.prompts_of(queries, default)
    for own in set() if isinstance(prompt, str) else set(prompt):
        retriever.check_prompt(own, "query")
    return encode_texts(retriever, [dataset.queries.texts[query] for query in queries], "query", title, prompt)


def encode_texts(
    retriever: Retriever,
    texts: Sequence[str],
    side: Side,
    title: str = "encode",
    prompt: str | Sequence[str] | None = None,
) -> Float32[ndarray, "texts width"]:
    """Return the embeddings of texts of one side, in the arithmetic of the retriever's weights.

    Args:
        retriever: the encoder.
        texts: the texts.
        side: side of the texts.
        title: label of the progress line.
        prompt: text in front of all texts, or one for each; by default the prompt of the side.

    Raises:
        ModelError: an embedding is not finite.
    """
    embeddings = np.empty((len(texts), retriever.width), np.float32)
    with Progress(title, len(texts), "text") as progress:
        for start in range(0, len(texts), WINDOW):
            window = texts[start : start + WINDOW]
            own = prompt if prompt is None or isinstance(prompt, str) else prompt[start : start + WINDOW]
            contents = retriever.contents(window, side, own)
            embeddings[start : start + len(window)] = encode_contents(
                retriever, contents, side, on_progress=progress.advance, prompt=own
            )
    check_finite(embeddings, side, lambda row: texts[row])
    return embeddings


def encode_contents(
    retriever: Retriever,
    contents: Sequence[ndarray],
    side: Side,
    budget: int | None = None,
    skipped: Collection[int] = (),
    before_batch: Callable[[int], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
    prompt: str | Sequence[str] | None = None,
) -> Float32[ndarray, "texts width"]:
    """Return the embeddings of contents, finite or not, in the arithmetic of the retriever's weights.

    Args:
        retriever: on any device; it is put into evaluation mode.
        contents: token ids; see `Retriever.contents`.
        side: decides the tower and the length to which texts are cut.
        budget: cost of a batch in tokens, including padding; a single text may exceed it. By default a value for the
            device.
        skipped: texts that are not encoded; their embeddings are 0, and the batches of the others do not change.
        before_batch: called with the number of a batch before it is encoded.
        on_progress: called with the number of encoded texts after each batch.
        prompt: prompt in front of all contents, or of each; by default that of the side.
    """
    device = next(retriever.parameters()).device
    inputs = retriever.assemble(contents, side)
    rows = [
        [row for row in batch if row not in skipped]
        for batch in batches([len(ids) for ids in inputs], budget or token_budget(retriever))
    ]
    embeddings = torch.zeros((len(inputs), retriever.width), device=device)
    retriever.eval()
    with torch.inference_mode():
        lengths = retriever.prompt_lengths(prompt, side, len(inputs))
        for number, tokens in enumerate(_pad_ahead(retriever, inputs, rows, lengths)):
            if before_batch is not None:
                before_batch(number)
            if rows[number]:
                tokens = {name: tensor.to(device, non_blocking=True) for name, tensor in tokens.items()}
                embeddings[torch.tensor(rows[number], device=device)] = retriever.encode(tokens, side).float()
            if on_progress is not None:
                on_progress(len(rows[number]))
    return embeddings.cpu().numpy()


def token_budget(retriever: Retriever) -> int:
    """Return the default number of tokens per batch for the device of a retriever."""
    return TOKEN_BUDGET[next(retriever.parameters()).device.type]


def batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Sort rows by descending length, and cut them into batches that cost at most `budget` tokens with padding."""
    costs = token_cost(np.array(lengths, dtype=np.int64))
    rows = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    batches_of_rows = []
    start = 0
    while start < len(rows):
        count = max(1, budget // max(1, int(costs[rows[start]])))
        batches_of_rows.append(rows[start : start + count])
        start += count
    return batches_of_rows


def check_finite(
    embeddings: Float32[ndarray, "rows width"], side: Side, text_of: Callable[[int], str], first: int = 0
) -> None:
    """Raise `ModelError` if an embedding is not finite; the error names the first such text. Row 0 is text `first`."""
    bad = np.flatnonzero(~np.isfinite(embeddings).all(1))
    if len(bad):
        raise ModelError(
            f"{len(bad)} embeddings are not finite, the first of text {text_of(first + int(bad[0]))[:60]!r}",
            f"{side} encoder",
            "the weights are broken or overflow in bf16: train or load them again",
        )


def _pad_ahead(
    retriever: Retriever, inputs: Sequence[ndarray], batches: Sequence[list[int]], lengths: Sequence[int] | None
) -> Iterator[TokenBatch]:
    """Yield padded batches; a thread pads the next batch while the caller encodes the current one."""

    def pad(rows: list[int]) -> TokenBatch:
        return retriever.pad([inputs[row] for row in rows], lengths and [lengths[row] for row in rows])

    with ThreadPoolExecutor(1) as thread:
        pending = [thread.submit(pad, rows) for rows in batches[:1]]
        for rows in batches[1:]:
            tokens = pending.pop().result()
            pending.append(thread.submit(pad, rows))
            yield tokens
        for last in pending:
            yield last.result()
