"""A name or a path becomes a checked data set, prepared if it was not yet.

A data set without a `dev` split, opened for `dev`, lends it from `train`: the tenth of the training queries (at most
1,000) whose ids have the smallest SHA-256. Opened together with that `dev`, `train` is without them; opened alone,
it is whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from raytriever.data.dataset import Judgements, RetrievalDataset
from raytriever.data.prepare import Request, Runner, Say, in_this_process, prepare, quietly
from raytriever.data.prepared import prepared_meta, read_prepared, require_splits, splits_of
from raytriever.data.remote import fetched
from raytriever.data.tokenise import Tokenisation
from raytriever.errors import DataError
from raytriever.paths import expanded

TRAIN, DEV = "train", "dev"
_DEV_SHARE, _DEV_QUERIES = 0.1, 1000


def open_dataset(
    name_or_path: str | Path,
    splits: Iterable[str],
    *,
    max_bad_rows: float = 0.01,
    tokenisation: Tokenisation | None = None,
    run: Runner = in_this_process,
    say: Say = quietly,
) -> RetrievalDataset:
    """Check and prepare a data set, or find it prepared, and open it; what was left out its `quarantine` tells.

    Args:
        name_or_path: `pydocs`, a path or a URI of any format, or the directory of a prepared data set.
        splits: whose judgements are read.
        max_bad_rows: the share of each file's rows, 0 to 1, that may be bad.
        tokenisation: how texts become tokens; None where only texts are wanted.
        run: how shards are made, where they must be.
        say: hears whether they must.

    Raises:
        DataError: no such data set or split, a broken file, or too many bad rows.
        StorageError: a prepared data set is damaged, or cannot be written.
    """
    wanted = list(dict.fromkeys(splits))
    matter = (*wanted, TRAIN) if DEV in wanted else tuple(wanted)
    request = Request(str(name_or_path), tokenisation, max_bad_rows=max_bad_rows, splits=matter)
    place, reachable = _locate(request, run, say)
    there = splits_of(place)
    lent = DEV in wanted and DEV not in there and TRAIN in there
    require_splits(place, [split for split in wanted if not (lent and split == DEV)], request.dataset)
    vocabulary = tokenisation.vocabulary if tokenisation else None
    dataset = read_prepared(place, [TRAIN, *wanted] if lent else wanted, vocabulary)
    if lent:
        dataset = with_lent_dev(dataset, request.dataset)
    judgements = {split: dataset.judgements[split] for split in wanted}
    absent = {split: rows for split, rows in dataset.absent.items() if split in wanted}
    return replace(dataset, judgements=judgements, absent=absent, place=reachable)


def _locate(request: Request, run: Runner, say: Say) -> tuple[Path, str]:
    """The directory of the prepared data set, the one the request names or the one `prepare` finds or makes; and from
    where any process opens it: another node fetches for itself what was fetched here."""
    stored = fetched(request.dataset)
    place = stored or expanded(request.dataset)
    meta = prepared_meta(place) if os.path.isdir(place) else None
    if meta is None:
        place = prepare(request, run, say=say)
        return place, str(place)
    if request.tokenisation is not None and meta["tokenisation"] != request.tokenisation.digest:
        tokens = "another tokenizer or prefix" if meta["tokenisation"] else "no tokenizer"
        raise DataError(
            f"was prepared with {tokens}", str(place), "prepare it with --model as it is trained, or name its source"
        )
    return place, request.dataset if stored else os.path.abspath(place)


def with_lent_dev(dataset: RetrievalDataset, where: str) -> RetrievalDataset:
    """Return the data set with `train` divided into `train` and `dev`, see `hold_out`."""
    train, dev = hold_out(dataset.judgements[TRAIN], dataset, where)
    absent = dict(dataset.absent)
    if TRAIN in absent:
        lost = absent.pop(TRAIN)
        held = np.isin(lost.queries, dev.queries)
        absent |= {split: rows for split, rows in ((TRAIN, lost.where(~held)), (DEV, lost.where(held))) if len(rows)}
    return replace(dataset, judgements={**dataset.judgements, TRAIN: train, DEV: dev}, absent=absent)


def hold_out(train: Judgements, dataset: RetrievalDataset, where: str) -> tuple[Judgements, Judgements]:
    """Part `train` into what is trained on and a dev split, by the hash of the query ids alone.

    Returns:
        The rest, and the held-out queries' judgements.
    """
    queries = np.unique(train.queries)
    if len(queries) < 2:
        raise DataError("one query only, too few to hold out a dev split", where, "add judgements of a dev split")
    names = {int(query): dataset.queries.ids[int(query)] for query in queries}
    ordered = sorted(names, key=lambda query: hashlib.sha256(names[query].encode()).digest())
    size = min(_DEV_QUERIES, max(1, int(len(ordered) * _DEV_SHARE)))
    held = np.isin(train.queries, ordered[:size])
    return train.where(~held), train.where(held)
