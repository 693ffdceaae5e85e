"""A tokenisation at which a process dies, in a module that child processes can import."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from raytriever.data.prepare.tokenisation import Tokenisation

SKULL, STONE = "☠", "⛰"


class Deadly(Tokenisation):
    """Tokenises as ever, but is killed by a text with a skull and raises at one with a stone."""

    def encode(self, texts: Sequence[str], prompt: str) -> list[list[int]]:
        if any(SKULL in text for text in texts):
            os.kill(os.getpid(), signal.SIGKILL)
        if any(STONE in text for text in texts):
            raise BaseException("a panic, which is no Exception")
        return super().encode(texts, prompt)
