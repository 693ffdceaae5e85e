"""Queries that no document answers, as an addition to a data set."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from raytriever.data.combine_datasets import Chained
from raytriever.data.dataset import Judgements, Queries, RetrievalDataset
from raytriever.data.hashed_ids import hash_texts, key_of


def with_questions(dataset: RetrievalDataset, split: str, texts: Sequence[str], kind: str) -> RetrievalDataset:
    """Return the data set with new queries in a split; no document answers them. Raise `ValueError` if an id exists
    already.

    Args:
        dataset: any data set; its queries and documents keep their positions.
        split: split of the new queries. The split itself may be new.
        kind: prefix of the new ids, which are `KIND:0`, `KIND:1` and so on.

    Returns:
        A data set in memory, with another digest and without tokens. Its `location` still names the original data set.

    Examples:
        >>> more = with_questions(dataset, "test", ["who painted the moon"], "other-domain")
        >>> more.unanswerable["test"]
    """
    queries, first = dataset.queries, len(dataset.queries)
    ids = [f"{kind}:{number}" for number in range(len(texts))]
    if taken := set(ids).intersection(queries.ids):
        raise ValueError(f"query id {min(taken)!r} exists already")
    state = hashlib.sha256(queries.digest.encode())
    for name, text in zip(ids, texts, strict=True):
        state.update(key_of(name, text))
    hashes = None if queries.stored_hashes is None else np.concatenate([queries.stored_hashes, hash_texts(texts)])
    before = dataset.unanswerable.get(split, np.zeros(0, np.int64))
    empty = np.zeros(0, np.int64)
    return replace(
        dataset,
        queries=Queries(Chained([queries.ids, ids]), Chained([queries.texts, texts]), state.hexdigest(), hashes),
        judgements={split: Judgements(empty, empty, empty), **dataset.judgements},
        tokens=None,
        unanswerable={**dataset.unanswerable, split: np.append(before, np.arange(first, first + len(texts)))},
        added_queries=dataset.added_queries + len(texts),
    )
