"""Refuse to search in a process that was forked from one that searched: OpenMP's threads do not survive a fork, so
faiss would hang there and compiled code would end the process."""

from __future__ import annotations

import os

from raytriever.errors import ConfigError

_searched = _forked = False


def refuse_forked() -> None:
    """Called before every search.

    Raises:
        ConfigError: this process was forked from one that searched.
    """
    global _searched
    if _forked:
        raise ConfigError(
            "this process was forked from one that has searched, whose threads it does not have",
            remedy='start processes that search with multiprocessing.get_context("spawn")',
        )
    _searched = True


def _note_fork() -> None:
    global _forked
    _forked = _searched


os.register_at_fork(after_in_child=_note_fork)
