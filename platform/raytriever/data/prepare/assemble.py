"""Assembly of shards to a data set: ids become positions, and repeated ids are resolved.

1. Of rows with the same id the first counts. A row with the same content is skipped; one with other content is a bad
   row.
2. A pair that names an unknown query or document, or contradicts an earlier judgement of the pair, is a bad row. A
   relevant unknown document of a known query is also stored for metrics (`absent/`): the query has this relevant
   document, although no search can find it. A query without an answer (`unanswerable/`) that has a relevant document in
   the same split is a bad row.
3. The keys of all ids (`keys`, 16 bytes each, and as many for the contents) and the pairs are in memory; texts are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.activity import activity
from raytriever.data.columns import FILE, PREPARE_AGAIN, PROMPTS, gather, write_table
from raytriever.data.keys import Copies, KeyIndex, digest_of, key_of, keys_of
from raytriever.data.prepare.prepared import (
    ABSENT,
    ABSENT_COLUMNS,
    DOCUMENT_COLUMNS,
    DOCUMENTS,
    FORMS,
    JUDGEMENTS,
    NEGATIVES,
    PAIR_COLUMNS,
    QUERIES,
    QUERY_COLUMNS,
    UNANSWERABLE,
)
from raytriever.data.prepare.shards import WORK, ShardReport
from raytriever.data.records import NO_ANSWER
from raytriever.reading.arrays import read_arrays, read_arrow

# Reason and content of each bad row, by part and number; a row with several errors is bad once.
BadRows = dict[tuple[int, int], tuple[str, bytes]]
# Arrays of the work files of shards, with their types and shapes.
_KEYS = {name: (["uint64"], (None, 2)) for name in ("keys", "contents")} | {
    "forms": (["uint64"], (None,)),
    "rows": (["int64"], (None,)),
    "repeated": (["int64"], ()),
}
_PAIRS = {name: (["uint64"], (None, 2)) for name in ("queries", "documents")} | {
    "scores": (["int64", "float64"], (None,)),
    "splits": (["str"], (None,)),
    **{name: (["int64"], (None,)) for name in ("ranks", "kinds", "rows")},
}


@dataclass(frozen=True)
class AssembledSide:
    """Documents or queries of all shards.

    Args:
        index: index of rows by the key of their id.
        live: rows that count, ascending.
        meta: figures for the manifest, see `prepared.SideMeta`.
    """

    index: KeyIndex
    live: Int64[ndarray, " positions"]
    meta: dict[str, Any]

    def positions(self, keys: ndarray) -> Int64[ndarray, " asked"]:
        """Return the position of each key, -1 for an unknown one."""
        rows = self.index.find(keys)
        return np.where(rows >= 0, np.searchsorted(self.live, rows), -1)


@activity("assembling the prepared shards")
def assemble(folder: Path, reports: Sequence[ShardReport]) -> tuple[dict[str, AssembledSide], BadRows]:
    """Write `live` and the pairs' tables into the folder of the shards; return documents and queries, and the bad rows
    that only the whole data set reveals."""
    bad: BadRows = {}
    sides = {name: _settle(folder, name, reports, bad) for name in (DOCUMENTS, QUERIES)}
    for name, side in sides.items():
        if len(side.live) < side.meta["rows"]:
            np.save(folder / f"{name}.live.npy", side.live)
    _judgements(folder, reports, sides, bad)
    _negatives(folder, reports, sides, bad)
    stems = [report.stem for report in reports]
    for name in (FILE, PROMPTS):
        gather(folder / WORK, stems, sides[QUERIES].positions, folder / name)
    return sides, bad


def _settle(folder: Path, name: str, reports: Sequence[ShardReport], bad: BadRows) -> AssembledSide:
    loaded = [read_arrays(folder / WORK / f"{report.stem}.{name}.npz", _KEYS, PREPARE_AGAIN) for report in reports]
    lengths = [len(shard["rows"]) for shard in loaded]
    within = sum(int(shard["repeated"]) for shard in loaded)
    # Column by column, and each is released from its shard: millions of rows are not in memory twice.
    keys, contents, forms, rows = (
        np.concatenate([shard.pop(column) for shard in loaded]) for column in ("keys", "contents", "forms", "rows")
    )
    parts = np.repeat([report.part for report in reports], lengths)
    index = KeyIndex(keys)
    first = index.first()
    repeated = first != np.arange(len(first))
    again = np.flatnonzero(repeated)
    other = again[(contents[again] != contents[first[again]]).any(axis=1)]
    for row in other:
        other_id = _id_at(folder / name, reports, lengths, int(row))
        reason = f"id {other_id!r} was used before with a different text"
        bad.setdefault((int(parts[row]), int(rows[row])), (reason, other_id.encode()))
    live = np.flatnonzero(~repeated)
    if len(again):
        keys, contents, forms = keys[live], contents[live], forms[live]
    digest = digest_of([keys], [contents])
    np.save(folder / f"{name}.{FORMS}", forms)
    repeated_rows, same_text = within + len(again) - len(other), len(Copies.of(forms))
    meta = {"rows": len(first), "live": len(live), "digest": digest, "repeated": repeated_rows, "same_text": same_text}
    return AssembledSide(index, live, meta)


def _judgements(folder: Path, reports: Sequence[ShardReport], sides: dict[str, AssembledSide], bad: BadRows) -> None:
    tables: dict[str, list[ndarray]] = {}
    absent: dict[str, dict[tuple[int, bytes], tuple[int, str]]] = {}
    unanswerable: dict[str, list[ndarray]] = {}
    no_answer = keys_of([key_of(NO_ANSWER)])
    for report, pairs, queries, documents in _resolved(folder, JUDGEMENTS, reports, sides, bad):
        # Of equal pairs the first row counts.
        has_none = (pairs["documents"] == no_answer).all(axis=1)
        lost = np.flatnonzero((queries >= 0) & (documents < 0) & (pairs["scores"] > 0) & ~has_none)
        of_ids = folder / WORK / f"{report.stem}.{JUDGEMENTS}.arrow"
        ids = read_arrow(of_ids, PAIR_COLUMNS, PREPARE_AGAIN)["document"] if len(lost) else ()
        for row in lost.tolist():
            pair = int(queries[row]), pairs["documents"][row].tobytes()
            judged = int(pairs["scores"][row]), ids[row].as_py()
            absent.setdefault(str(pairs["splits"][row]), {}).setdefault(pair, judged)
        others = (pairs[name] for name in ("scores", "kinds", "ranks", "rows"))
        columns = np.stack([queries, documents, *others, np.full(len(queries), report.part)]).astype(np.int64)
        for split in np.unique(pairs["splits"]):
            exist = (queries >= 0) & (documents >= 0)
            tables.setdefault(str(split), []).append(columns[:, (pairs["splits"] == split) & exist])
            if (rows := (pairs["splits"] == split) & has_none & (queries >= 0)).any():
                unanswerable.setdefault(str(split), []).append(columns[:, rows][[0, 5, 6]])
    (folder / JUDGEMENTS).mkdir()
    for split, parts in tables.items():
        table = np.concatenate(parts, axis=1)
        order = np.lexsort((table[1], table[0]))  # stable: of equal pairs the first row leads
        table = table[:, order]
        again = np.zeros(len(order), dtype=bool)
        again[1:] = (table[:2, 1:] == table[:2, :-1]).all(axis=0)
        leader = np.maximum.accumulate(np.where(again, 0, np.arange(len(order))))
        for index in np.flatnonzero(again & (table[2] != table[2][leader])):
            reason = f"the pair was judged {table[2][leader[index]]} before and is {table[2][index]} here"
            bad.setdefault((int(table[6][index]), int(table[5][index])), (reason, b""))
        table = table[:, ~again]
        np.save(folder / JUDGEMENTS / f"{split}.npy", np.ascontiguousarray(table[:5]))
        if split in unanswerable:
            answered = {*table[0][table[2] > 0].tolist(), *(query for query, _ in absent.get(split, ()))}
            _write_unanswerable(folder, split, np.concatenate(unanswerable[split], axis=1), answered, bad)
    if absent:
        (folder / ABSENT).mkdir()
    for split, rows in absent.items():
        _write_absent(folder / ABSENT / f"{split}.arrow", rows)


def _write_unanswerable(folder: Path, split: str, rows: ndarray, answered: set[int], bad: BadRows) -> None:
    """Write the positions of the queries without an answer, given as rows of query, row and part. The row of a query
    that has a relevant document is bad."""
    is_answered = np.isin(rows[0], list(answered))
    for _, row, part in rows[:, is_answered].T.tolist():
        reason = f"conflicting: a query without an answer that has a relevant document in split {split!r}"
        bad.setdefault((part, row), (reason, b""))
    if not is_answered.all():
        (folder / UNANSWERABLE).mkdir(exist_ok=True)
        np.save(folder / UNANSWERABLE / f"{split}.npy", np.unique(rows[0, ~is_answered]))


def _write_absent(file: Path, rows: Mapping[tuple[int, bytes], tuple[int, str]]) -> None:
    """Write query positions, document ids and grades, sorted by query and then by id."""
    import pyarrow as pa

    table = sorted((query, document, score) for (query, _), (score, document) in rows.items())
    types = (pa.int64(), pa.large_string(), pa.int64())
    columns = map(pa.array, zip(*table, strict=True), types)
    write_table(file, dict(zip(ABSENT_COLUMNS, columns, strict=True)))


def _negatives(folder: Path, reports: Sequence[ShardReport], sides: dict[str, AssembledSide], bad: BadRows) -> None:
    rows, scores = [], []
    for _, pairs, queries, documents in _resolved(folder, NEGATIVES, reports, sides, bad):
        there = (queries >= 0) & (documents >= 0)
        rows.append(np.stack([queries, documents, pairs["kinds"], pairs["ranks"]])[:, there])
        scores.append(pairs["scores"][there].astype(np.float32))
    if rows:
        np.save(folder / f"{NEGATIVES}.npy", np.ascontiguousarray(np.concatenate(rows, axis=1)))
        np.save(folder / f"{NEGATIVES}.scores.npy", np.concatenate(scores))


def _resolved(
    folder: Path, name: str, reports: Sequence[ShardReport], sides: dict[str, AssembledSide], bad: BadRows
) -> Iterator[tuple[ShardReport, dict[str, ndarray], ndarray, ndarray]]:
    """Yield the pairs of each shard with the positions of query and document, -1 for an unknown one."""
    import pyarrow as pa

    for report in reports:
        file = folder / WORK / f"{report.stem}.{name}.npz"
        if not file.exists():
            continue
        pairs = read_arrays(file, _PAIRS, PREPARE_AGAIN)
        queries = sides[QUERIES].positions(pairs["queries"])
        documents = sides[DOCUMENTS].positions(pairs["documents"])
        unknown = (queries < 0) | (documents < 0)
        ids = read_arrow(file.with_suffix(".arrow"), PAIR_COLUMNS, PREPARE_AGAIN) if unknown.any() else pa.table({})
        for index in np.flatnonzero(unknown):
            end = "query" if queries[index] < 0 else "document"
            unknown_id = ids[end][int(index)].as_py()
            if end == "document" and unknown_id == NO_ANSWER:
                continue
            reason = f"unknown {end} id {unknown_id!r}"  # see `records.UNKNOWN_DOCUMENT`
            bad.setdefault((report.part, int(pairs["rows"][index])), (reason, unknown_id.encode()))
        yield report, pairs, queries, documents


def _id_at(folder: Path, reports: Sequence[ShardReport], lengths: Sequence[int], index: int) -> str:
    """Return the id of a row, counted over all shards."""
    for report, length in zip(reports, lengths, strict=True):
        if index < length:
            columns = DOCUMENT_COLUMNS if folder.name == DOCUMENTS else QUERY_COLUMNS
            return str(read_arrow(folder / f"{report.stem}.arrow", columns, PREPARE_AGAIN)["id"][index].as_py())
        index -= length
    raise IndexError(index)
