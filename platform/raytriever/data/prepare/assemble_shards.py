"""Assembly of shards into a data set: positions replace ids, and each repeated id gets one position.

1. If several rows have the same id, the first is used. A later row with the same content is skipped; a later row with
   different content is a bad row.
2. A pair is a bad row if it has an unknown query or document, or if it contradicts an earlier judgement of the pair. If
   only a relevant document is unknown, the pair is also stored for metrics (`absent/`): the document counts as
   relevant, although no search can find it. If a query without an answer (`unanswerable/`) has a relevant document in
   the same split, its row is a bad row.
3. Memory holds the pairs, and the hashes of all ids and contents (`hashed_ids`, 16 bytes each), but no texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.core.progress import activity
from raytriever.core.reading.arrays import Shape, read_arrays, read_arrow
from raytriever.data.columns import FILE, PREPARE_AGAIN, PROMPTS, write_table
from raytriever.data.hashed_ids import Copies, KeyIndex, digest_of
from raytriever.data.prepare import prepared
from raytriever.data.prepare.text_shards import WORK, ShardSummary, texts_of
from raytriever.data.records_and_bad_rows import RELEVANT_FROM

# Reason and raw content of each bad row, by part and row number. A row with several errors has only one entry.
BadRows = dict[tuple[int, int], tuple[str, bytes]]
_KEY: tuple[list[str], Shape] = (["uint64"], (None, 2))
_NUMBER: tuple[list[str], Shape] = (["int64"], (None,))
_BYTES: tuple[list[str], Shape] = (["uint8"], (None,))
# Types and shapes of the arrays in a work file: for documents or queries, for pairs, and for answers or prompts.
_ROWS = {"keys": _KEY, "contents": _KEY, "hashes": (["uint64"], (None,)), "rows": _NUMBER, "repeated": (["int64"], ())}
_PAIRS = {
    "queries": _KEY,
    "documents": _KEY,
    "scores": (["int64", "float64"], (None,)),
    "splits": (["str"], (None,)),
    **dict.fromkeys(("ranks", "kinds", "rows", "query.offsets", "document.offsets"), _NUMBER),
    "query.bytes": _BYTES,
    "document.bytes": _BYTES,
}
_TEXTS = {"queries": _KEY, "text.bytes": _BYTES, "text.offsets": _NUMBER}
_STORED = ("query", "document", "score", "kind", "rank")
_PAIR = np.dtype([*((name, np.int64) for name in (*_STORED, "row", "part")), ("label", np.float32)])


@dataclass(frozen=True)
class AssembledSide:
    """Documents or queries of all shards."""

    index: KeyIndex
    live: Int64[ndarray, " positions"]  # ascending numbers of the rows that have a position, see `columns.Rows`
    meta: dict[str, Any]  # statistics for the manifest, see `prepared.SideMeta`

    def positions(self, keys: ndarray) -> Int64[ndarray, " asked"]:
        """Return the position of each key; -1 for an unknown key."""
        rows = self.index.find(keys)
        return np.where(rows >= 0, np.searchsorted(self.live, rows), -1)


@activity("assembling the prepared shards")
def assemble(folder: Path, summaries: Sequence[ShardSummary]) -> tuple[dict[str, AssembledSide], BadRows]:
    """Write `live` and the tables of pairs into the folder of the shards. Return documents and queries, and those bad
    rows that only a comparison of all shards can find."""
    bad: BadRows = {}
    sides = {name: _resolve_ids(folder, name, summaries, bad) for name in (prepared.DOCUMENTS, prepared.QUERIES)}
    for name, side in sides.items():
        if len(side.live) < side.meta["rows"]:
            np.save(folder / f"{name}.live.npy", side.live)
    _write_judgements(folder, summaries, sides, bad)
    _write_negatives(folder, summaries, sides, bad)
    for name in (FILE, PROMPTS):
        _write_query_texts(folder, name, summaries, sides[prepared.QUERIES])
    return sides, bad


def _arrays(
    folder: Path, summary: ShardSummary, name: str, kinds: Mapping[str, tuple[Sequence[str], Shape]]
) -> dict[str, ndarray]:
    """Read the arrays of a work file whose names begin with `name`; return them by the rest of their names."""
    wanted = {f"{name}.{column}": kind for column, kind in kinds.items()}
    arrays = read_arrays(folder / WORK / f"{summary.stem}.npz", wanted, PREPARE_AGAIN)
    return {column: arrays[f"{name}.{column}"] for column in kinds}


def _resolve_ids(folder: Path, name: str, summaries: Sequence[ShardSummary], bad: BadRows) -> AssembledSide:
    loaded = [_arrays(folder, summary, name, _ROWS) for summary in summaries]
    lengths = [len(shard["rows"]) for shard in loaded]
    within = sum(int(shard["repeated"]) for shard in loaded)
    # `pop` releases each column of a shard, so that millions of rows are not in memory twice.
    keys, contents, hashes, rows = (
        np.concatenate([shard.pop(column) for shard in loaded]) for column in ("keys", "contents", "hashes", "rows")
    )
    parts = np.repeat([summary.part for summary in summaries], lengths)
    index = KeyIndex(keys)
    first = index.first()
    repeated = first != np.arange(len(first))
    again = np.flatnonzero(repeated)
    other = again[(contents[again] != contents[first[again]]).any(axis=1)]
    for row in other:
        other_id = _id_at(folder / name, summaries, lengths, int(row))
        reason = f"id {other_id!r} was used before with a different text"
        bad.setdefault((int(parts[row]), int(rows[row])), (reason, other_id.encode()))
    live = np.flatnonzero(~repeated)
    if len(again):
        keys, contents, hashes = keys[live], contents[live], hashes[live]
    digest = digest_of([keys], [contents])
    np.save(folder / f"{name}.{prepared.HASHES}", hashes)
    repeated_rows, same_text = within + len(again) - len(other), len(Copies.of(hashes))
    meta = {"rows": len(first), "live": len(live), "digest": digest, "repeated": repeated_rows, "same_text": same_text}
    return AssembledSide(index, live, meta)


def _id_at(folder: Path, summaries: Sequence[ShardSummary], lengths: Sequence[int], index: int) -> str:
    shard = int(np.searchsorted(np.cumsum(lengths), index, side="right"))
    columns = prepared.DOCUMENT_COLUMNS if folder.name == prepared.DOCUMENTS else prepared.QUERY_COLUMNS
    ids = read_arrow(folder / f"{summaries[shard].stem}.arrow", columns, PREPARE_AGAIN)["id"]
    return str(ids[index - sum(lengths[:shard])].as_py())


def _resolved(
    folder: Path, name: str, summaries: Sequence[ShardSummary], sides: dict[str, AssembledSide], bad: BadRows
) -> Iterator[tuple[ndarray, ndarray, ndarray, Any]]:
    """Yield the pairs of each shard with pairs, as positions; and the pairs' splits, scores and document ids. An
    unknown query or document has the position -1, and the pair's row is a bad row."""
    for summary in summaries:
        arrays = _arrays(folder, summary, name, _PAIRS)
        if not len(arrays["rows"]):
            continue
        rows = np.empty(len(arrays["rows"]), _PAIR)
        rows["query"] = sides[prepared.QUERIES].positions(arrays["queries"])
        rows["document"] = sides[prepared.DOCUMENTS].positions(arrays["documents"])
        for name_of_field in ("kind", "rank", "row"):
            rows[name_of_field] = arrays[f"{name_of_field}s"]
        scores, rows["part"] = arrays["scores"] if name == prepared.JUDGEMENTS else 0, summary.part
        is_label = scores != np.trunc(scores)
        rows["score"] = np.where(is_label, scores >= RELEVANT_FROM, scores)
        rows["label"] = np.where(is_label, scores, np.nan)
        ids = {end: texts_of(arrays, end) for end in ("query", "document")}
        has_document = np.diff(arrays["document.offsets"]) > 0  # an empty id means no document, see `NO_ANSWER`
        for index in np.flatnonzero((rows["query"] < 0) | ((rows["document"] < 0) & has_document)):
            end = "query" if rows["query"][index] < 0 else "document"
            unknown = ids[end][int(index)].as_py()
            reason = f"unknown {end} id {unknown!r}"  # see `UNKNOWN_DOCUMENT`
            bad.setdefault((summary.part, int(rows["row"][index])), (reason, unknown.encode()))
        yield rows, arrays["splits"], arrays["scores"], ids["document"]


def _write_judgements(
    folder: Path, summaries: Sequence[ShardSummary], sides: dict[str, AssembledSide], bad: BadRows
) -> None:
    judged, without = defaultdict[str, list[ndarray]](list), defaultdict[str, list[ndarray]](list)
    absent: dict[str, dict[tuple[int, str], int]] = defaultdict(dict)
    for pairs, splits, _, documents in _resolved(folder, prepared.JUDGEMENTS, summaries, sides, bad):
        for split in map(str, np.unique(splits)):
            is_of_split = (splits == split) & (pairs["query"] >= 0)
            judged[split].append(pairs[is_of_split & (pairs["document"] >= 0)])
            for index in np.flatnonzero(is_of_split & (pairs["document"] < 0) & (pairs["score"] > 0)):
                row, name = pairs[index], documents[int(index)].as_py()
                if name:
                    absent[split].setdefault((int(row["query"]), name), int(row["score"]))
                else:
                    without[split].append(pairs[index : index + 1])
    (folder / prepared.JUDGEMENTS).mkdir(exist_ok=True)
    for split, tables in judged.items():
        table = np.concatenate(tables)
        table = table[np.lexsort((table["document"], table["query"]))]  # stable: equal pairs stay in their rows' order
        is_first = np.ones(len(table), bool)
        is_first[1:] = (np.diff(table["query"]) != 0) | (np.diff(table["document"]) != 0)
        first = table[np.maximum.accumulate(np.where(is_first, np.arange(len(table)), 0))]
        is_contrary = table["score"] != first["score"]
        for row, score in zip(table[is_contrary], first["score"][is_contrary], strict=True):
            reason = f"the pair was judged {score} before and is {row['score']} here"
            bad.setdefault((int(row["part"]), int(row["row"])), (reason, b""))
        table = table[is_first]
        np.save(folder / prepared.JUDGEMENTS / f"{split}.npy", np.stack([table[name] for name in _STORED]))
        if not np.isnan(table["label"]).all():
            (folder / prepared.LABELS).mkdir(exist_ok=True)
            np.save(folder / prepared.LABELS / f"{split}.npy", table["label"])
        if split in without:
            answered = {*table["query"][table["score"] > 0].tolist(), *(query for query, _ in absent.get(split, ()))}
            _write_unanswerable(folder, split, np.concatenate(without[split]), answered, bad)
    for split, rows in absent.items():
        _write_absent(folder, split, rows)


def _write_unanswerable(folder: Path, split: str, rows: ndarray, answered: set[int], bad: BadRows) -> None:
    is_answered = np.isin(rows["query"], list(answered))
    for row in rows[is_answered]:
        reason = f"conflicting: the query has no answer, but it has a relevant document in split {split!r}"
        bad.setdefault((int(row["part"]), int(row["row"])), (reason, b""))
    if not is_answered.all():
        (folder / prepared.UNANSWERABLE).mkdir(exist_ok=True)
        np.save(folder / prepared.UNANSWERABLE / f"{split}.npy", np.unique(rows["query"][~is_answered]))


def _write_absent(folder: Path, split: str, rows: Mapping[tuple[int, str], int]) -> None:
    import pyarrow as pa

    (folder / prepared.ABSENT).mkdir(exist_ok=True)
    queries, documents, scores = zip(*((*pair, rows[pair]) for pair in sorted(rows)), strict=True)
    columns = pa.array(queries, pa.int64()), pa.array(documents, pa.large_string()), pa.array(scores, pa.int64())
    write_table(folder / prepared.ABSENT / f"{split}.arrow", dict(zip(prepared.ABSENT_COLUMNS, columns, strict=True)))


def _write_negatives(
    folder: Path, summaries: Sequence[ShardSummary], sides: dict[str, AssembledSide], bad: BadRows
) -> None:
    rows, scores = [], []
    for pairs, _, of_pairs, _ in _resolved(folder, prepared.NEGATIVES, summaries, sides, bad):
        exist = (pairs["query"] >= 0) & (pairs["document"] >= 0)
        rows.append(np.stack([pairs[name][exist] for name in ("query", "document", "kind", "rank")]))
        scores.append(of_pairs[exist].astype(np.float32))
    if rows:
        np.save(folder / f"{prepared.NEGATIVES}.npy", np.concatenate(rows, axis=1))
        np.save(folder / f"{prepared.NEGATIVES}.scores.npy", np.concatenate(scores))


def _write_query_texts(folder: Path, name: str, summaries: Sequence[ShardSummary], queries: AssembledSide) -> None:
    """Write the answers or prompts of all shards to the file `name`, ordered by query. Skip unknown queries."""
    import pyarrow as pa

    loaded = [_arrays(folder, summary, name, _TEXTS) for summary in summaries]
    positions = queries.positions(
        np.concatenate([np.zeros((0, 2), np.uint64), *(shard["queries"] for shard in loaded)])
    )
    order = np.argsort(positions, kind="stable")
    order = order[positions[order] >= 0]
    if name == PROMPTS:  # a query has one prompt; a row with a different prompt is a bad row
        order = order[np.unique(positions[order], return_index=True)[1]]
    if len(order):
        texts = pa.chunked_array([texts_of(shard, "text") for shard in loaded]).combine_chunks()
        write_table(folder / name, {"query": positions[order], "text": texts.take(pa.array(order)).cast(pa.string())})
