"""Shards made by Ray Data: files are read in one task each and stream, chunk by chunk, to tasks that write shards.

1. What travels is chunks of raw rows; Ray Data holds readers back when writers are behind, so that the object store
   holds a few chunks whatever the corpus. Shards go from the task that made them straight to the folder.
2. A task is given again by Ray when its process dies; the writer sees the mark the first attempt left and finds the
   row that did it (`data.shards`), so no row can make it die twice.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import ray.data
from ray.data import DataContext

from raytriever.cluster.job_gauges import watched_ingest
from raytriever.cluster.mistakes import mistake_of, told
from raytriever.cluster.session import ray_session
from raytriever.data.chunks import Chunk, read_chunks
from raytriever.data.formats.plan import Part
from raytriever.data.prepare import Runner, chunk_bytes
from raytriever.data.processes import in_processes
from raytriever.data.shards import ShardReport, ShardWriter
from raytriever.errors import UserError

# A reader only unpacks: so little is asked for it that every core still has a writer. That the two ask for different
# shares keeps them tasks of their own.
_READER_CPUS, _WRITER_CPUS = 0.05, 0.95
# A session and its first data set take some 15 s to start, in which two cores prepare 40 MB of gzipped JSON.
RAY_FROM = 64 << 20


def by_size(num_workers: int) -> Runner:
    """The runner for a job: processes of this machine where they are done before Ray Data has begun, else Ray tasks.

    Args:
        num_workers: training processes that the session, if one must be started, will be asked for.
    """

    def run(writer: ShardWriter, total_bytes: int) -> Iterator[ShardReport]:
        if total_bytes < RAY_FROM:
            yield from in_processes(writer, total_bytes)
        else:
            with ray_session(num_workers):
                yield from watched_ingest(writer, in_ray_tasks(writer, total_bytes))

    return run


def in_ray_tasks(writer: ShardWriter, total_bytes: int) -> Iterator[ShardReport]:
    """The runner for `data.prepare` inside a Ray session; reports come in the order in which shards are done."""
    size = chunk_bytes(total_bytes)
    # Each chunk is a block of its own, or one task would be given many.
    with quiet_context(target_max_block_size=size // 2):
        parts = [{"part": index} for index in range(len(writer.parts))]
        shards = (
            ray.data.from_items(parts, override_num_blocks=len(parts))
            .flat_map(_Reader(writer.parts, size), num_cpus=_READER_CPUS)
            .map_batches(_Writer(writer), batch_size=1, batch_format="pyarrow", num_cpus=_WRITER_CPUS)
        )
        for row in shards.iter_rows():
            if row["mistake"]:
                raise mistake_of(row["mistake"])
            report = json.loads(row["report"])
            yield ShardReport(**{**report, "bad": tuple(report["bad"])})


@contextmanager
def quiet_context(**settings: Any) -> Iterator[None]:
    """Settings of Ray Data for the length of a block, and without what it tells of itself."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = DataContext.get_current()
    settings |= {"enable_progress_bars": False, "print_on_execution_start": False}
    before = {name: getattr(context, name) for name in settings}
    for name, value in settings.items():
        setattr(context, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)


@dataclass(frozen=True)
class _Reader:
    """A part to its chunks, or to the mistake that stands in the way of reading it."""

    parts: tuple[Part, ...]
    chunk_bytes: int

    def __call__(self, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            for chunk in read_chunks(self.parts[row["part"]], row["part"], self.chunk_bytes):
                yield {**vars(chunk), "mistake": ""}
        except UserError as mistake:
            yield {**vars(Chunk(row["part"], -1, -1, b"")), "mistake": told(mistake)}


@dataclass(frozen=True)
class _Writer:
    """A chunk to the report on its shard. Mistakes travel as values: raised, Ray would wrap and retry them."""

    writer: ShardWriter

    def __call__(self, batch: pa.Table) -> pa.Table:
        # Every core has a task; a tokenizer with threads of its own would only get in the others' way.
        os.environ.setdefault("RAYON_NUM_THREADS", "1")
        reports, mistakes = [], []
        for row in batch.to_pylist():
            report, mistake = "", row.pop("mistake")
            if not mistake:
                try:
                    report = json.dumps(asdict(self.writer(Chunk(**row))))
                except UserError as error:
                    mistake = told(error)
            reports.append(report)
            mistakes.append(mistake)
        return pa.table({"report": pa.array(reports, pa.large_string()), "mistake": pa.array(mistakes, pa.string())})
