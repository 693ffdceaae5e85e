"""Inputs of a job: the data set with all its splits, the queries to annotate, the key, and earlier costs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from raytriever.annotation.answer_log import AnswerLog
from raytriever.annotation.budget import Gauge, Tokens
from raytriever.annotation.config import LOCAL, ServiceConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import fetch_dataset, open_dataset
from raytriever.data.prepare.pipeline import in_processes
from raytriever.data.prepare.prepared import splits_of
from raytriever.errors import ConfigError, DataError


def open_whole(name: str, max_bad_rows: float, say: Callable[[str], None]) -> RetrievalDataset:
    """A data set with the judgements of all its splits, for all of them are written again.

    Raises:
        DataError: it cannot be read, or holds no documents or no queries.
    """
    dataset = open_dataset(name, [], max_bad_rows=max_bad_rows, run=in_processes, report=say)
    place = str(dataset.place)
    dataset = open_dataset(place, splits_of(fetch_dataset(place) or Path(place)))
    for what, there in (("documents", dataset.documents), ("queries", dataset.queries)):
        if not len(there):
            raise DataError(f"holds no {what}", name, "give a data set that does")
    return dataset


def choose_queries(dataset: RetrievalDataset, split: str, most: int | None) -> list[int]:
    """The queries to annotate: those that a split judges, or, for a split that is not there, those that none judges.

    Returns:
        Positions, ordered by the SHA-256 of the ids; so the first thousand of a job are the first thousand of a larger.

    Raises:
        DataError: there are none.
    """
    if split in dataset.judgements:
        found = np.unique(dataset.judgements[split].queries).tolist()
    else:
        everything = np.arange(len(dataset.queries))
        judged = [everything[:0], *(rows.queries for rows in dataset.judgements.values())]
        found = np.setdiff1d(everything, np.concatenate(judged)).tolist()
    if not found:
        there = ", ".join(dataset.judgements) or "none"
        raise DataError(
            f"no query of split {split!r}, and none that no split judges", dataset.name, f"its splits are: {there}"
        )
    ids = dataset.queries.ids
    return sorted(found, key=lambda query: hashlib.sha256(ids[query].encode()).digest())[:most]


def paid_before(log: AnswerLog, llm: str) -> tuple[dict[str, Tokens], Gauge]:
    """Return the tokens that each job paid, and the bytes of a prompt per token of a model, measured on its answers."""
    paid: dict[str, Tokens] = {}
    gauge = Gauge()
    for entry in log.entries():
        tokens = paid.setdefault(entry["job"], Tokens())
        tokens.read += entry["read"]
        tokens.written += entry["written"]
        if entry["llm"] == llm and not entry["guessed"]:
            gauge.learn(entry["bytes"], entry["read"])
    return paid, gauge


def key_of_service(config: ServiceConfig, say: Callable[[str], None]) -> str | None:
    """The key that the environment holds; None where its usual variable is not set.

    Raises:
        ConfigError: another variable is named and not set, or what it holds cannot be sent.
    """
    key = os.environ.get(config.key_variable, "").strip()
    if not key:
        if config.key_variable != ServiceConfig().key_variable:
            raise ConfigError("the variable it names is not set", "--key-variable", "export it, or name another")
        return None
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            "the variable it names holds a character that no key has", "--key-variable", "set it to the key alone"
        )
    address = urlsplit(config.base)
    if address.scheme == "http" and address.hostname not in LOCAL:
        say(f"the key goes to {address.hostname} in clear: use https where others may listen")
    return key
