"""A name or a path becomes a checked data set.

`pydocs` is built on the spot; everything else is a folder in BEIR layout. A data set without a `dev` split,
opened for `dev`, lends it from `train`: the tenth of the training queries (at most 1,000) whose ids have the
smallest SHA-256. Opened together with that `dev`, `train` is without them; opened alone, it is whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from raytriever.data.beir import read_documents, read_judgements, read_queries, splits_of
from raytriever.data.dataset import Judgements, RetrievalDataset
from raytriever.data.pydocs import pydocs_folder
from raytriever.data.quarantine import Quarantine
from raytriever.errors import DataError
from raytriever.options import did_you_mean

PYDOCS = "pydocs"
TRAIN, DEV = "train", "dev"
_DEV_SHARE, _DEV_QUERIES = 0.1, 1000


def open_dataset(name_or_path: str | Path, splits: Iterable[str], *, max_bad_rows: float = 0.01) -> RetrievalDataset:
    """Read and check a data set; nothing is written. What was left out is told by the data set's `quarantine`.

    Args:
        name_or_path: `pydocs`, or a folder in BEIR layout.
        splits: the splits whose judgements are read; texts are always read whole.
        max_bad_rows: the share of each file's rows, 0 to 1, that may be bad.

    Raises:
        DataError: no such data set or split, a broken file, or too many bad rows.
    """
    folder = _folder(str(name_or_path))
    wanted = list(dict.fromkeys(splits))
    files = splits_of(folder)
    lent = DEV in wanted and DEV not in files and TRAIN in files
    for split in wanted:
        if split not in files and not (lent and split == DEV):
            raise _missing(split, folder, files)

    quarantine = Quarantine(max_bad_rows)
    documents, queries = read_documents(folder, quarantine), read_queries(folder, quarantine)
    query_at = {name: position for position, name in enumerate(queries.ids)}
    document_at = {name: position for position, name in enumerate(documents.ids)}
    judgements = {
        split: read_judgements(files[split], query_at, document_at, quarantine)
        for split in ([TRAIN, *wanted] if lent else wanted)
        if split in files
    }
    if lent:
        rest, judgements[DEV] = hold_out(judgements[TRAIN], queries.ids, files[TRAIN])
        judgements[TRAIN] = rest
    return RetrievalDataset(
        name=PYDOCS if name_or_path == PYDOCS else folder.resolve().name,
        documents=documents,
        queries=queries,
        judgements={split: judgements[split] for split in wanted},
        quarantine=quarantine.report(),
    )


def hold_out(train: Judgements, query_ids: list[str], file: Path) -> tuple[Judgements, Judgements]:
    """Part `train` into what is trained on and a dev split, by the hash of the query ids alone.

    Returns:
        The rest, and the held-out queries' judgements.
    """
    queries = sorted(
        np.unique(train.queries).tolist(),
        key=lambda query: hashlib.sha256(query_ids[query].encode()).digest(),
    )
    size = min(_DEV_QUERIES, max(1, int(len(queries) * _DEV_SHARE)))
    if len(queries) < 2:
        raise DataError("one query only, too few to hold out a dev split", str(file), "add a qrels/dev.tsv or queries")
    held = np.isin(train.queries, queries[:size])
    return train.where(~held), train.where(held)


def _folder(name: str) -> Path:
    if name == PYDOCS:
        return pydocs_folder()
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise DataError("is a file", f"--dataset {name}", "give the folder that holds corpus.jsonl")
    known = [PYDOCS]
    if folder.parent.is_dir():
        known += [str(folder.parent / there.name) for there in folder.parent.iterdir() if there.is_dir()]
    hint = did_you_mean(name, known)
    raise DataError(
        "no data set of this name and no such folder",
        f"--dataset {name}",
        hint if hint.startswith("did") else f"give {PYDOCS!r} or the path of a folder in BEIR layout",
    )


def _missing(split: str, folder: Path, files: dict[str, Path]) -> DataError:
    there = ", ".join(files) or "none"
    remedy = f"choose from {there}" if files else "add qrels/<split>.tsv"
    if split == TRAIN:
        remedy = f"training needs one; {remedy}" if files else remedy
    return DataError(f"no split {split!r}; there are: {there}", str(folder / "qrels"), remedy)
