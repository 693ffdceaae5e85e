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
    from transformers.utils import logging

    verbosity, was_enabled = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    if not warnings:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if was_enabled:
            logging.enable_progress_bar()
