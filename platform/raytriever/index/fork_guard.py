"""Refuse searches in a process that was forked after a search.

The threads of OpenMP do not survive a fork: FAISS and torch would hang there."""

from __future__ import annotations

import os

from raytriever.errors import ConfigError

_has_searched = _was_forked = False


def refuse_forked() -> None:
    """Check that this process may search; called before every search.

    Raises:
        ConfigError: this process was forked from a process that had searched.
    """
    global _has_searched
    if _was_forked:
        raise ConfigError(
            "this process was forked from a process that had searched, and lacks its threads",
            remedy='start processes that search with multiprocessing.get_context("spawn")',
        )
    _has_searched = True


def _record_fork() -> None:
    global _was_forked
    _was_forked = _has_searched


os.register_at_fork(after_in_child=_record_fork)
