"""Finds the texts at which a tokenizer dies, when a first attempt has cost a process its life.

The texts are tried in a process of their own; where that dies the half of them is tried, down to the single
text. So one bad text among n costs about 2 log2(n) processes and no other text.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from raytriever.interruption import end_with_parent

Work = Callable[[Sequence[str]], Sequence[Any]]


def try_each(work: Work, texts: Sequence[str]) -> tuple[list[Any], dict[int, str]]:
    """What `work` makes of each text, and why it made nothing of some.

    Args:
        work: answers one value a text; sent to other processes.
        texts: in the order of the answers.

    Returns:
        The answers, None for a text that killed its process or raised; and by its place why.
    """
    found: list[Any] = [None] * len(texts)
    reasons: dict[int, str] = {}
    waiting = [range(len(texts))]
    while waiting:
        places = waiting.pop()
        if not len(places):
            continue
        answers, reason = _in_a_process(work, [texts[place] for place in places])
        if answers is not None:
            for place, answer in zip(places, answers, strict=True):
                found[place] = answer
        elif len(places) == 1:
            reasons[places[0]] = reason
        else:
            middle = len(places) // 2
            waiting += [places[middle:], places[:middle]]
    return found, reasons


def _in_a_process(work: Work, texts: Sequence[str]) -> tuple[Sequence[Any] | None, str]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, work, texts), daemon=True)
    process.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError:
        answer = None
    finally:
        ours.close()
        process.join()
    if answer is not None:
        return answer
    code = process.exitcode or 0
    return None, f"kills the tokenizer's process (signal {-code})" if code < 0 else f"ends it with code {code}"


def _child(connection: Connection, work: Work, texts: Sequence[str]) -> None:
    end_with_parent()
    try:
        answer: tuple[Sequence[Any] | None, str] = (work(texts), "")
    except BaseException as error:  # a panic of the tokenizer is no `Exception`
        answer = (None, f"cannot be tokenised ({type(error).__name__}: {str(error)[:120]})")
    connection.send(answer)
    connection.close()
