"""Functions and a tokenization at which a process dies, in a module that child processes can import."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from raytriever.data.prepare.corpus_tokenization import Tokenization

SKULL, STONE = "☠", "⛰"


class Deadly(Tokenization):
    """Tokenizes as ever, but is killed by a text with a skull and raises at one with a stone."""

    def encode(self, texts: Sequence[str], prompt: str) -> list[list[int]]:
        if any(SKULL in text for text in texts):
            die()
        if any(STONE in text for text in texts):
            raise BaseException("a panic, which is no Exception")
        return super().encode(texts, prompt)


def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(file: str) -> str:
    """Kill this process unless the file exists, which it creates; return its name."""
    if not os.path.exists(file):
        os.close(os.open(file, os.O_CREAT))
        die()
    return file


def die_of_zero(number: int) -> int:
    """Return the number; kill this process at 0."""
    if not number:
        die()
    return number


def path_of(_: int) -> list[str]:
    """Return the folders in which this process looks for modules."""
    return sys.path
