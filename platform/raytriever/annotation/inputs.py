"""Inputs of a job: the data set with all its splits, the queries to annotate, the key, and earlier costs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from urllib.parse import urlsplit

import numpy as np

from raytriever.annotation.answer_log import AnswerLog
from raytriever.annotation.budget import TokenCounts, TokenEstimator
from raytriever.annotation.config import LOCAL, ServiceConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_all_splits
from raytriever.data.prepare.pipeline import in_processes
from raytriever.errors import ConfigError, DataError, setting


def open_checked(
    name: str, max_bad_rows: float, bm25_language: str | None, report: Callable[[str], None]
) -> RetrievalDataset:
    """Open a data set with the judgements of all its splits, because the output contains all of them.

    Raises:
        DataError: the data set cannot be read, or has no documents or no queries.
    """
    dataset = open_all_splits(
        name, [], max_bad_rows=max_bad_rows, bm25_language=bm25_language, run=in_processes, report=report
    )
    for kind, rows in (("documents", dataset.documents), ("queries", dataset.queries)):
        if not len(rows):
            raise DataError(f"contains no {kind}", name, f"give a data set with {kind}")
    return dataset


def choose_queries(dataset: RetrievalDataset, split: str, most: int | None) -> list[int]:
    """Choose the queries to annotate: those with judgements in a split, or for a new split those without judgements.

    Returns:
        Positions of at most `most` queries, ordered by the SHA-256 of their ids. So a larger job begins with the
        queries of a smaller one.

    Raises:
        DataError: no query qualifies.
    """
    if split in dataset.judgements:
        chosen = np.unique(dataset.judgements[split].queries).tolist()
    else:
        everything = np.arange(len(dataset.queries))
        judged = [everything[:0], *(rows.queries for rows in dataset.judgements.values())]
        chosen = np.setdiff1d(everything, np.concatenate(judged)).tolist()
    if not chosen:
        splits = ", ".join(dataset.judgements) or "none"
        raise DataError(
            f"has no split {split!r} and no query without judgements",
            dataset.name,
            f"choose one of its splits: {splits}",
        )
    ids = dataset.queries.ids
    return sorted(chosen, key=lambda query: hashlib.sha256(ids[query].encode()).digest())[:most]


def read_costs(log: AnswerLog, llm: str) -> tuple[dict[str, TokenCounts], TokenEstimator]:
    """Return the tokens that each job paid, and a token estimator fitted to the answers of a model."""
    paid: dict[str, TokenCounts] = {}
    estimator = TokenEstimator()
    for entry in log.entries():
        tokens = paid.setdefault(entry["job"], TokenCounts())
        tokens.read += entry["read"]
        tokens.written += entry["written"]
        if entry["llm"] == llm and not entry["guessed"]:
            estimator.record(entry["bytes"], entry["read"])
    return paid, estimator


def read_service_key(config: ServiceConfig, report: Callable[[str], None]) -> str | None:
    """Return the key from the environment, None if the default variable is not set.

    Raises:
        ConfigError: another variable is named but not set, or its value cannot be sent.
    """
    key = os.environ.get(config.key_variable, "").strip()
    if not key:
        if config.key_variable != ServiceConfig().key_variable:
            raise ConfigError(
                "names an environment variable that is not set", setting("key_variable"), "export it, or name another"
            )
        return None
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            "names a variable with a character that is invalid in a key",
            setting("key_variable"),
            "set it to the key alone",
        )
    address = urlsplit(config.base)
    if address.scheme == "http" and address.hostname not in LOCAL:
        report(f"The key is sent to {address.hostname} without encryption. Use https in an untrusted network.")
    return key
