"""Finds the texts at which an encoder's process dies, when a batch has cost one its life.

A process of its own encodes them one by one and tells of each. Where it dies, another begins with the text at hand;
one that has killed two, after the one that died over the batch, has had its three tries. So each costs two processes.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from numpy import ndarray

from raytriever.errors import ModelError
from raytriever.interruption import end_with_parent
from raytriever.models.retriever import Retriever, Side
from raytriever.retrieval.encode import encode_contents

_DEATHS = 2  # of these processes, by one text
MOST = 16  # what kills more often than this is not the texts


def find_killers(load: Callable[[], Retriever], contents: Sequence[ndarray], side: Side) -> dict[int, str]:
    """The places of the texts that kill, and how.

    Args:
        load: loads the encoder; sent to the processes.
        contents: see `Retriever.contents`.
        side: which tower.

    Raises:
        ModelError: more than `MOST` do, or a process dies before it has an encoder.
    """
    killers: dict[int, str] = {}
    first = died_here = 0
    while first < len(contents):
        process, ours = _start(load, contents[first:], side)
        told = -1  # how many texts are done; -1 while it loads
        try:
            while told < len(contents) - first:
                told = ours.recv()
        except EOFError:
            pass
        finally:
            ours.close()
            process.join()
        if told < 0:
            raise ModelError(f"its process ends with code {process.exitcode}", "loading the encoder", "free memory")
        if told == len(contents) - first:
            break
        died_here = died_here + 1 if told == 0 else 1
        first += told
        if died_here == _DEATHS:
            code = process.exitcode or 0
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            killers[first] = f"kills the encoder's process ({how})"
            first, died_here = first + 1, 0
        if len(killers) > MOST:
            raise ModelError(
                f"{len(killers)} texts of one shard kill its process",
                "the encoder",
                "look at its first death, and mend it",
            )
    return killers


def _start(load: Callable[[], Retriever], contents: Sequence[ndarray], side: Side) -> tuple[BaseProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, load, list(contents), side), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _child(connection: Connection, load: Callable[[], Retriever], contents: list[ndarray], side: Side) -> None:
    end_with_parent()
    retriever = load()
    connection.send(0)
    for done, content in enumerate(contents, 1):
        encode_contents(retriever, [content], side)
        connection.send(done)
    connection.close()
