"""Opening of a data set by name, path or URI. If necessary, it is first prepared, and copied to this node from a store.

If a data set has no `dev` split, a tenth of the training queries (at most 1,000) becomes `dev`: those whose ids have
the smallest SHA-256. The same fraction of the queries without an answer is added. If `train` is opened together with
this `dev`, `train` lacks these queries; if `train` is opened without `dev`, it is complete.

Training reads documents in random order. So if a prepared data set is in an object store, every node has a complete
copy (`store.remote_folders`), instead of reading each document from the store."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy import ndarray

from raytriever.core.errors import DataError, setting
from raytriever.core.paths import expanded
from raytriever.core.store.commit import MANIFEST
from raytriever.core.store.object_stores import address_of
from raytriever.core.store.remote_folders import SCHEMES, copy_of, pull
from raytriever.data.dataset import RetrievalDataset, TextPrompts, Tokens
from raytriever.data.formats.train_dev_test import DEV, TRAIN, split_by_hash
from raytriever.data.prepare.corpus_tokenization import Tokenization
from raytriever.data.prepare.prepare_dataset import Log, Request, Runner, ignore_line, in_this_process, prepare
from raytriever.data.prepare.prepared import PreparedDirectory

_DEV_FRACTION, _DEV_QUERIES = 0.1, 1000


def open_dataset(
    name_or_path: str | Path,
    splits: Iterable[str],
    *,
    max_bad_rows: float = 0.01,
    bm25_language: str | None = None,
    tokenization: Tokenization | None = None,
    run: Runner = in_this_process,
    log: Log = ignore_line,
) -> RetrievalDataset:
    """Open a data set, after checking it and, if necessary, preparing it. Its `quarantine` lists the bad rows. Raise
    `DataError` if the data set or a split does not exist, a file is broken, or too many rows are bad.

    Args:
        name_or_path: `pydocs`, a path or a URI of any format, or the directory of a prepared data set.
        splits: splits whose judgements are read.
        max_bad_rows: allowed fraction of bad rows of each file, 0 to 1.
        bm25_language: see `Documents`.
        tokenization: tokenizer and prompts; None to open texts without tokens.
        log: function that gets progress lines of the preparation.
    """
    requested = list(splits)
    request = Request(str(name_or_path), tokenization, max_bad_rows=max_bad_rows, splits=_with_lender(requested))
    directory, location = _locate(request, run, log)
    return _read_splits(directory, requested, request, location, bm25_language)


def open_all_splits(
    name_or_path: str | Path,
    checked: Iterable[str] | None = None,
    *,
    max_bad_rows: float = 0.01,
    bm25_language: str | None = None,
    run: Runner = in_this_process,
    log: Log = ignore_line,
) -> RetrievalDataset:
    """Open a data set without tokens, with the judgements of all splits, because no positive may become a negative.

    The splits `checked` must exist, and their files are checked for bad rows; None checks the files of all splits. See
    `open_dataset` for the other arguments and the errors."""
    required = [] if checked is None else list(checked)
    splits = None if checked is None else _with_lender(required)
    request = Request(str(name_or_path), max_bad_rows=max_bad_rows, splits=splits)
    directory, location = _locate(request, run, log)
    return _read_splits(directory, [*required, *directory.splits], request, location, bm25_language)


def _with_lender(splits: list[str]) -> tuple[str, ...]:
    """Return the splits whose files are checked. `dev` also requires `train`, because `dev` may be held out from it."""
    return (*splits, TRAIN) if DEV in splits else tuple(splits)


def _read_splits(
    directory: PreparedDirectory, splits: list[str], request: Request, location: str, bm25_language: str | None
) -> RetrievalDataset:
    requested, there = list(dict.fromkeys(splits)), directory.splits
    lent = DEV in requested and DEV not in there and TRAIN in there
    directory.require_splits([split for split in requested if not (lent and split == DEV)], request.dataset)
    vocabulary = request.tokenization.vocabulary if request.tokenization else None
    dataset = directory.open([TRAIN, *requested] if lent else requested, vocabulary)
    if lent:
        dataset = with_lent_dev(dataset, request.dataset)
    if request.tokenization is not None and dataset.tokens is not None:
        dataset = replace(dataset, tokens=_with_prompts(dataset.tokens, dataset, request.tokenization))
    return replace(
        dataset,
        documents=replace(dataset.documents, bm25_language=bm25_language),
        judgements={split: dataset.judgements[split] for split in requested},
        absent={split: rows for split, rows in dataset.absent.items() if split in requested},
        unanswerable={split: rows for split, rows in dataset.unanswerable.items() if split in requested},
        location=location,
        has_lent_dev=lent,
    )


def _with_prompts(tokens: Tokens, dataset: RetrievalDataset, tokenization: Tokenization) -> Tokens:
    prompts = tokenization.for_dataset(dataset.name)
    return replace(
        tokens,
        tokenizer=tokenization.tokenizer_digest,
        query_prompts=TextPrompts(((len(dataset.queries), prompts.query_prompt),), dataset.prompts),
        document_prompts=TextPrompts(((len(dataset.documents), prompts.passage_prompt),)),
    )


def _locate(request: Request, run: Runner, log: Log) -> tuple[PreparedDirectory, str]:
    """Return the prepared directory (existing or new), and the path or URI with which other processes can open it."""
    is_stored = request.dataset.partition("://")[0] in SCHEMES
    folder = Path(copy_of(request.dataset)) if is_stored else expanded(request.dataset)
    if address_of(folder):  # the directory is in an object store; opening it downloads the large files
        pull(folder / MANIFEST)
        if PreparedDirectory.find(folder) is not None:
            pull(folder)
    directory = PreparedDirectory.find(folder) if os.path.isdir(folder) else None
    if directory is None:
        directory = prepare(request, run, log=log)
        return directory, str(directory.folder)
    wanted = request.tokenization and request.tokenization.for_dataset(directory.meta["name"])
    if wanted is not None and directory.meta["tokenisation"] != wanted.digest:
        tokens = "another tokenizer or prompt" if directory.meta["tokenisation"] else "no tokenizer"
        remedy = f"prepare it with the same {setting('model')}, or give its source"
        raise DataError(f"was prepared with {tokens}", str(folder), remedy)
    return directory, request.dataset if is_stored else os.path.abspath(folder)


def lent_dev_line(dataset: RetrievalDataset) -> str:
    """Return a line that says that `dev` was held out from `train`; empty if it was not."""
    if not dataset.has_lent_dev:
        return ""
    count = len(np.unique(dataset.judgements[DEV].queries))
    return f"{dataset.name}: has no dev split, so {count:,} of the training queries are held out as dev"


def with_lent_dev(dataset: RetrievalDataset, where: str) -> RetrievalDataset:
    """Return the data set after moving some queries from `train` to `dev`, chosen by the hashes of the query ids."""
    train = dataset.judgements[TRAIN]
    queries = np.unique(train.queries)
    if len(queries) < 2:
        raise DataError("has only one query, too few to hold out a dev split", where, "add judgements of a dev split")
    of_dev = _held_out(queries, dataset)
    is_dev = np.isin(train.queries, of_dev)
    judgements = {**dataset.judgements, TRAIN: train.where(~is_dev), DEV: train.where(is_dev)}
    absent, unanswerable = dict(dataset.absent), dict(dataset.unanswerable)
    if (lost := absent.pop(TRAIN, None)) is not None:
        is_dev = np.isin(lost.queries, of_dev)
        absent |= {split: lost.where(of) for split, of in ((TRAIN, ~is_dev), (DEV, is_dev)) if of.any()}
    if (without := unanswerable.pop(TRAIN, None)) is not None:
        is_dev = np.isin(without, _held_out(without, dataset))
        unanswerable |= {split: without[of] for split, of in ((TRAIN, ~is_dev), (DEV, is_dev)) if of.any()}
    return replace(dataset, judgements=judgements, absent=absent, unanswerable=unanswerable)


def _held_out(queries: ndarray, dataset: RetrievalDataset) -> list[int]:
    """Return the queries of `train` that become `dev`, by the hashes of their ids."""
    names: dict[int, str] = {query: dataset.queries.ids[query] for query in np.unique(queries).tolist()}
    count = min(_DEV_QUERIES, max(1, int(len(names) * _DEV_FRACTION)))
    return [query for query, split in split_by_hash(names, (0, count)).items() if split == DEV]
