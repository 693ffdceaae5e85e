"""Texts to train a base encoder on: text files, and the texts that one split of a data set trains on.

A text is held out by the hash of its words, so equal texts are on the same side."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raytriever.core.errors import DataError
from raytriever.core.reading.regular_files import open_regular
from raytriever.data.hashed_ids import normalize
from raytriever.data.prepare.open_dataset import open_all_splits

TEXT_FILES = (".txt", ".txt.gz")
HELD_OUT = 50  # one text of so many


def read_source(source: str) -> list[str]:
    """Return the texts of a text file, or of one split of a data set (`PATH#SPLIT`).

    Raises:
        UserError: it does not exist, has no such split, or is broken.
    """
    if source.endswith(TEXT_FILES):
        try:
            with open_regular(source) as stream:
                opened = gzip.GzipFile(fileobj=stream) if source.endswith(".gz") else stream
                lines = opened.read().decode("utf-8").split("\n")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise DataError(f"cannot be read ({error})", source, "give a file in UTF-8, plain or of gzip") from error
        return [line.strip() for line in lines if line.strip()]
    path, _, split = source.partition("#")
    return texts_of_split(path, split or "train")


def texts_of_split(path: str, split: str) -> list[str]:
    """Return the texts of a data set that one split trains on, and that no other split measures on."""
    dataset = open_all_splits(path)
    if split not in dataset.judgements:
        known = ", ".join(sorted(dataset.judgements))
        raise DataError(f"has no split {split!r}; there are: {known}", path, f"name one as {path}#SPLIT")
    queries, documents = ({True: [np.zeros(0, np.int64)], False: [np.zeros(0, np.int64)]} for _ in range(2))
    for name, rows in dataset.judgements.items():
        queries[name == split].append(rows.queries)
        documents[name == split].append(rows.documents)
    if dataset.negatives is not None:
        for key, among in queries.items():
            is_chosen = np.isin(dataset.negatives.queries, np.concatenate(among))
            documents[key].append(dataset.negatives.documents[is_chosen])
    texts, passages = dataset.queries.texts, dataset.passages()
    own_queries, own_documents = (
        np.setdiff1d(np.concatenate(value[True]), np.concatenate(value[False])).tolist()
        for value in (queries, documents)
    )
    measured = {normalize(texts[row]) for row in np.concatenate(queries[False]).tolist()}
    own = [*(passages[row] for row in own_documents), *(texts[row] for row in own_queries)]
    return [text for text in own if normalize(text) not in measured]


def is_held_out(text: str) -> bool:
    """Return True for a text that is measured and never trained on."""
    return int.from_bytes(hashlib.sha256(normalize(text).encode()).digest()[:8]) % HELD_OUT == 0


def pack(texts: Sequence[str], tokenizer: Any, length: int) -> Tensor:
    """Return the tokens of all texts in sequences without padding, `[sequences, length]`.

    Each text has its special tokens. The last sequence repeats tokens of the one before it, so that no token is lost.

    Raises:
        DataError: the texts do not fill one sequence.
    """
    rows = (tokenizer(list(texts[at : at + 1000]))["input_ids"] for at in range(0, len(texts), 1000))
    tokens = np.concatenate([np.zeros(0, np.int32), *(np.array(row, np.int32) for block in rows for row in block)])
    if len(tokens) < length:
        raise DataError(f"{len(texts)} texts have {len(tokens)} tokens; {length} are needed", remedy="give more texts")
    whole = len(tokens) // length
    sequences = tokens[: whole * length].reshape(whole, length)
    if len(tokens) % length:
        sequences = np.concatenate([sequences, tokens[None, -length:]])
    return torch.from_numpy(sequences)
