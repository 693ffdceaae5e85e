"""Memory that the embeddings and the scores of a batch take on one training worker."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.losses.scores import panel_height

FLOAT = 4


@dataclass(frozen=True)
class WorkerTexts:
    """Texts that one worker encodes and scores in a step.

    Args:
        queries: queries of this worker.
        passages: passages of this worker.
        workers: training processes.
        tokens: tokens of the longest text.
        width: components of an embedding.
    """

    queries: int
    passages: int
    workers: int
    tokens: int
    width: int

    @property
    def texts(self) -> int:
        """Texts of both sides."""
        return self.queries + self.passages


def batch_bytes(share: WorkerTexts, device: str) -> int:
    """Return the bytes of the embeddings of the whole batch and of the scores, in float32, on a type of device.

    Three copies of a worker's own embeddings exist at once (of each chunk, joined, and in the order of the batch). The
    loss holds three tensors of the size of its queries and of the passages of all workers: scaled or gathered
    embeddings, their gradient, and the scaled gradient. A panel of scores is as large as the loss makes it on this type
    of device, and has one temporary tensor of its size.
    """
    candidates = share.workers * share.passages
    panel = candidates * panel_height(share.queries, FLOAT * candidates, device)
    return FLOAT * (3 * share.width * (share.texts + share.queries + candidates) + 2 * panel)


def guide_bytes(weights: int, precision: str, width: int, share: WorkerTexts) -> int:
    """Return the bytes of a guide: its weights, and its embeddings of this worker's texts and of all passages."""
    embeddings = FLOAT * width * (share.texts + share.workers * share.passages)
    return weights * (2 if precision == "bf16" else FLOAT) + embeddings
