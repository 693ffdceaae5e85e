"""Tokens to embeddings, one process: sorted by length, in batches of equal token count, the next made meanwhile.

Sorting keeps padding to a few per cent, and the budget counts tokens rather than texts because that is what costs
time and memory. Batches follow from the lengths and the budget alone, so the same rows give the same bytes whoever
encodes them. The answer is in the order of the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Float32
from numpy import ndarray

from raytriever.errors import ModelError
from raytriever.models.encoder import TokenBatch
from raytriever.models.retriever import Retriever, Side
from raytriever.progress import Progress

WINDOW = 8_192
# Found best on a CPU at 2,000 to 8,000 tokens a batch; a GPU wants as many as keep it busy.
TOKEN_BUDGET = {"cpu": 4_096, "cuda": 65_536}


def encode_texts(
    retriever: Retriever, texts: Sequence[str], side: Side, title: str = "encode"
) -> Float32[ndarray, "texts width"]:
    """Embeddings of texts of one side, in the arithmetic of the retriever's own weights.

    Raises:
        ModelError: an embedding is not finite.
    """
    embeddings = np.empty((len(texts), retriever.width), np.float32)
    with Progress(title, len(texts), "text") as progress:
        for start in range(0, len(texts), WINDOW):
            window = texts[start : start + WINDOW]
            found = encode_contents(retriever, retriever.contents(window, side), side, done=progress.advance)
            embeddings[start : start + len(window)] = found
    check_finite(embeddings, side, lambda row: texts[row])
    return embeddings


def encode_contents(
    retriever: Retriever,
    contents: Sequence[ndarray],
    side: Side,
    budget: int | None = None,
    without: Collection[int] = (),
    before: Callable[[int], None] | None = None,
    done: Callable[[int], None] | None = None,
) -> Float32[ndarray, "texts width"]:
    """Embeddings of contents, finite or not, in the arithmetic of the retriever's own weights.

    Args:
        retriever: on any device; put into evaluation mode.
        contents: see `Retriever.contents`.
        side: which tower, and to which length they are cut.
        budget: tokens of a batch, padding included; a single text may exceed it. By default what suits the device.
        without: texts that are not encoded and become 0; the batches of the others stay what they are.
        before: hears the number of a batch before it is encoded.
        done: hears how many texts were encoded.
    """
    device = next(retriever.parameters()).device
    inputs = retriever.assemble(contents, side)
    rows = [
        [row for row in batch if row not in without]
        for batch in batches([len(ids) for ids in inputs], budget or token_budget(retriever))
    ]
    found = torch.zeros((len(inputs), retriever.width), device=device)
    retriever.eval()
    with torch.inference_mode():
        for number, tokens in enumerate(_ahead(retriever, inputs, rows)):
            if before is not None:
                before(number)
            if rows[number]:
                tokens = {name: tensor.to(device, non_blocking=True) for name, tensor in tokens.items()}
                found[torch.tensor(rows[number], device=device)] = retriever.encode(tokens, side).float()
            if done is not None:
                done(len(rows[number]))
    return found.cpu().numpy()


def token_budget(retriever: Retriever) -> int:
    """Tokens of a batch that suit the device a retriever is on."""
    return TOKEN_BUDGET[next(retriever.parameters()).device.type]


def batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Rows by descending length, cut so that rows x longest stays within the budget."""
    rows = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    found = []
    start = 0
    while start < len(rows):
        count = max(1, budget // max(1, lengths[rows[start]]))
        found.append(rows[start : start + count])
        start += count
    return found


def check_finite(
    embeddings: Float32[ndarray, "rows width"], side: Side, text_of: Callable[[int], str], first: int = 0
) -> None:
    """Raise `ModelError` where an embedding is not finite, naming the first such row, counted from `first`."""
    bad = np.flatnonzero(~np.isfinite(embeddings).all(1))
    if len(bad):
        raise ModelError(
            f"{len(bad)} embeddings are not finite, the first of text {text_of(first + int(bad[0]))[:60]!r}",
            f"{side} encoder",
            "the weights are broken or overflow in bf16: train or load them anew",
        )


def _ahead(retriever: Retriever, inputs: Sequence[ndarray], batches: Sequence[list[int]]) -> Iterator[TokenBatch]:
    """Each batch padded, on another thread while the one before is encoded."""

    def pad(rows: list[int]) -> TokenBatch:
        return retriever.pad([inputs[row] for row in rows])

    with ThreadPoolExecutor(1) as thread:
        waiting = [thread.submit(pad, rows) for rows in batches[:1]]
        for rows in batches[1:]:
            tokens = waiting.pop().result()
            waiting.append(thread.submit(pad, rows))
            yield tokens
        for last in waiting:
            yield last.result()
