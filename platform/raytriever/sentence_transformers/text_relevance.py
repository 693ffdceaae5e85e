"""Relevance of a batch of sentence-transformers: which texts are equal, and which are positives of which anchor.

The trainer passes the token ids of each column to a loss, but no names of columns and no ids of texts. The columns are
in the order of the data set: anchor, positives, negatives. Texts with equal tokens are one document anywhere in the
batch, so a copy of a positive is not a negative. Rows with equal anchors share their positives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy import ndarray
from torch import Tensor

from raytriever.core.errors import LossInputError
from raytriever.losses.batch_and_temperature import RowRelevance, copy_all
from raytriever.losses.batch_relevance import GlobalIds, NoNegativesError, find_relevance, in_ranges
from raytriever.losses.distributed import WorkerGroup

# Inputs other than text, such as images and sounds. Token ids do not identify them.
_OTHER_INPUTS = ("pixel_values", "pixel_values_videos", "input_features", "input_values")


def batch_relevance(
    columns: Sequence[Mapping[str, Any]],
    positives: int,
    workers: WorkerGroup,
    device: torch.device,
    documents: Int64[Tensor, "rows documents"] | None = None,
    teacher: Float[Tensor, "rows documents"] | None = None,
    labels: Float[Tensor, "rows documents"] | None = None,
    *,
    symmetric: bool = False,
    seed: int = 0,
) -> RowRelevance | None:
    """Return the relevance of a batch. Return None if the global batch has no negatives.

    Args:
        columns: features of the anchors and of each column of documents.
        positives: number of columns of positives. They follow the anchors.
        workers: the data-parallel group. All workers must call this function.
        device: device of the embeddings.
        documents: ids of the documents; by default their tokens identify them.
        teacher: a teacher's scores of the documents.
        labels: graded relevance of the documents, 0 to 1.
        symmetric: also compute the other direction, where passages search for anchors.
        seed: seed of the loss `rand1`, which samples a positive.

    Raises:
        LossInputError: the workers have unequal numbers of rows, or an id or score is out of range.
    """
    anchors, *rest = (text_ids(column, f"{workers.rank} {place}") for place, column in enumerate(columns))
    own = np.stack(rest, 1) if documents is None else documents.cpu().numpy()
    table = _gather(np.concatenate([anchors[:, None], own], 1), workers, device)
    queries, everyones = np.ascontiguousarray(table[:, 0]), table[:, 1:]
    known = np.ascontiguousarray(everyones[:, :positives])
    # Embeddings are sorted by worker, then column, then row.
    passages = everyones.reshape(workers.size, *own.shape).transpose(0, 2, 1).reshape(-1)
    # The samples of `rand1` depend on the batch, not on a step number. So a resumed run repeats no earlier samples.
    step = _digest(queries.tobytes())
    everything = GlobalIds(queries, known, passages, *_known_positives(queries, known), seed, step)
    scored, labeled = (None if scores is None else (own, scores.cpu().numpy()) for scores in (teacher, labels))
    try:
        relevance = find_relevance(everything, workers.rank, workers.size, scored, symmetric, labeled)
    except NoNegativesError:
        return None
    return copy_all(relevance.map, device)


def text_ids(column: Mapping[str, Any], place: str) -> Int64[ndarray, " rows"]:
    """Return an id for each text of a column. Equal tokens get equal ids, whatever the padding is.

    Args:
        column: features of the column. Each image or sound gets its own id, because equal ones are not recognized.
        place: worker and column. The ids of images and sounds are made from it.
    """
    if "input_ids" not in column or any(name in column for name in _OTHER_INPUTS):
        first = next(value for value in column.values() if isinstance(value, Tensor) and value.ndim)
        rows = len(column.get("input_ids", first))
        return np.array([_digest(f"{place} {row}".encode()) for row in range(rows)], np.int64)
    return np.array([_digest(tokens.tobytes()) for tokens in _token_rows(column)], np.int64)


def _token_rows(column: Mapping[str, Any]) -> Iterator[Int64[ndarray, " tokens"]]:
    """Yield the tokens of each text, from a padded batch, a flattened batch, or bags of tokens."""
    tokens = column["input_ids"].cpu().numpy().astype(np.int64)
    if "cu_seq_lens_q" in column:
        yield from np.split(tokens.reshape(-1), column["cu_seq_lens_q"].cpu().numpy()[1:-1])
    elif "offsets" in column:
        yield from np.split(tokens, column["offsets"].cpu().numpy()[1:])
    else:
        masks = column["attention_mask"].cpu().numpy().astype(bool)
        yield from (row[mask] for row, mask in zip(tokens, masks, strict=True))


def _digest(content: bytes) -> int:
    """Return a hash of 63 bits, which is the same in all processes."""
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little") >> 1


def _gather(rows: ndarray, workers: WorkerGroup, device: torch.device) -> ndarray:
    if workers.size == 1:
        return rows
    counts = workers.all_gather(torch.tensor([len(rows)], device=device)).tolist()
    if len(set(counts)) > 1:
        raise LossInputError(
            f"the devices' row counts differ: {counts}", "gather_across_devices", "use dataloader_drop_last=True"
        )
    return workers.all_gather(torch.from_numpy(rows).to(device)).cpu().numpy()


def _known_positives(queries: ndarray, positives: ndarray) -> tuple[ndarray, ndarray]:
    """Return pairs (row, document). The documents of a row are the positives of all rows with the same anchor."""
    order = queries.argsort(kind="stable")
    begin, end = (np.searchsorted(queries[order], queries, side) for side in ("left", "right"))
    numbers, rows = in_ranges(begin, end)
    return np.repeat(rows, positives.shape[1]), positives[order[numbers]].reshape(-1)
