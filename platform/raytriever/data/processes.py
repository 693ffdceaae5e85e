"""Shards made by processes of this machine: for data sets too small to start Ray Data for.

The chunks are read here and written there, one process a core. A process that dies, by a text at which the tokenizer
dies or by a lack of memory, costs no more than itself: its chunk is given to another, which finds the text (`shards`).
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from raytriever.data.chunks import Chunk, read_chunks
from raytriever.data.prepare import chunk_bytes
from raytriever.data.shards import ShardReport, ShardWriter
from raytriever.errors import DataError
from raytriever.interruption import end_with_parent

TRIES = 3


def in_processes(writer: ShardWriter, total_bytes: int) -> Iterator[ShardReport]:
    """The runner of the jobs for small data sets; reports come in the order in which shards are done.

    Raises:
        DataError: a file is broken, or `TRIES` times processes died with one chunk at hand.
    """
    size = chunk_bytes(total_bytes)
    chunks = (chunk for index, part in enumerate(writer.parts) for chunk in read_chunks(part, index, size))
    workers = len(os.sched_getaffinity(0))
    losses: Counter[tuple[int, int]] = Counter()
    lost: list[Chunk] = []
    while True:
        with _pool(writer, workers) as pool:
            waiting: dict[Future[ShardReport], Chunk] = {}
            try:
                while True:
                    while len(waiting) < 2 * workers and (chunk := lost.pop() if lost else next(chunks, None)):
                        waiting[pool.submit(_write, chunk)] = chunk
                    if not waiting:
                        return
                    for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                        report = done.result()
                        del waiting[done]
                        yield report
            except BrokenProcessPool:
                # The pool is gone with all it had at hand; each chunk but the one that did it is as good as new.
                lost += waiting.values()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        for chunk in lost:
            losses[chunk.part, chunk.number] += 1
            if losses[chunk.part, chunk.number] == TRIES:
                where = f"{writer.parts[chunk.part].where} row {chunk.first_row}"
                raise DataError(f"{TRIES} processes died over it or beside it", where, "free memory, or mend the rows")


def _pool(writer: ShardWriter, workers: int) -> ProcessPoolExecutor:
    # Forked from a server that holds nothing: this process may have threads, and spawning is slow.
    context = get_context("forkserver")
    context.set_forkserver_preload(["raytriever.data.shards"])
    return ProcessPoolExecutor(workers, context, _begin, (writer,))


_writers: list[ShardWriter] = []


def _begin(writer: ShardWriter) -> None:
    end_with_parent()
    # Ctrl-C is the parent's to deal with; and every core has a process, so a tokenizer needs no threads of its own.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["RAYON_NUM_THREADS"] = "1"
    _writers.append(writer)


def _write(chunk: Chunk) -> ShardReport:
    return _writers[0](chunk)
