"""Texts to embeddings, one process: tokenise a window, sort it by length, encode it in batches of equal token count.

Sorting keeps padding to a few per cent, and the budget counts tokens rather than texts because that is what costs
time and memory. The answer is in the order of the texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float32
from numpy import ndarray

from raytriever.errors import ModelError
from raytriever.models.retriever import Retriever, Side
from raytriever.tracking.progress import Progress

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
    device = next(retriever.parameters()).device
    budget = TOKEN_BUDGET[device.type]
    embeddings = np.empty((len(texts), retriever.width), np.float32)
    retriever.eval()
    with torch.inference_mode(), Progress(title, len(texts), "text") as progress:
        for start in range(0, len(texts), WINDOW):
            window = retriever.token_ids(texts[start : start + WINDOW], side)
            for rows in _batches([len(ids) for ids in window], budget):
                tokens = retriever.pad([window[row] for row in rows])
                tokens = {name: tensor.to(device) for name, tensor in tokens.items()}
                found = retriever.encode(tokens, side).float().cpu().numpy()
                embeddings[start + np.array(rows)] = found
                progress.advance(len(rows))
    bad = np.flatnonzero(~np.isfinite(embeddings).all(1))
    if len(bad):
        raise ModelError(
            f"{len(bad)} embeddings are not finite, the first of text {texts[bad[0]][:60]!r}",
            f"{side} encoder",
            "the weights are broken or overflow in bf16: train or load them anew",
        )
    return embeddings


def _batches(lengths: list[int], budget: int) -> Iterator[list[int]]:
    """Rows by descending length, cut so that rows x longest stays within the budget."""
    rows = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    while rows:
        count = max(1, budget // lengths[rows[0]])
        yield rows[:count]
        rows = rows[count:]
