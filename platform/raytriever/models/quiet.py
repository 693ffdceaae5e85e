"""transformers without what it prints by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_transformers(warnings: bool = True) -> Iterator[None]:
    """Without transformers' progress bars: they would tear the one of the run.

    Args:
        warnings: whether it may still warn; not where what it warns of is an error of ours.
    """
    from transformers.utils import logging as transformers_logging

    verbosity, was_enabled = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    if not warnings:
        transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if was_enabled:
            transformers_logging.enable_progress_bar()
