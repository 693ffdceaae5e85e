"""An encoder at which a process dies, in a module that child processes and actors can import."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from raytriever.models.config import ModelConfig
from raytriever.models.packing import TokenBatch
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.prompts import Side


class Deadly(Retriever):
    """Encodes as ever, but is killed by a text with the token `poison`; each death is noted in a file."""

    poison: int
    deaths: Path

    def encode(self, tokens: TokenBatch, side: Side) -> Tensor:
        if (tokens["input_ids"] == self.poison).any():
            with self.deaths.open("a") as stream:
                stream.write("died\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(tokens, side)


@dataclass(frozen=True)
class LoadDeadly:
    """Loads a tiny encoder that dies of a character, and takes some time for a batch; notes in a file in which
    process."""

    model: str
    poison: str
    deaths: Path
    seconds: float = 0.0

    def __call__(self) -> Retriever:
        with self.deaths.with_suffix(".loaded").open("a") as stream:
            stream.write(f"{os.getpid()}\n")
        retriever = load_retriever(ModelConfig(self.model))
        retriever.__class__ = Slow if self.seconds else Deadly
        retriever.poison = retriever.tokenizer.convert_tokens_to_ids(self.poison)
        retriever.deaths = self.deaths
        retriever.seconds = self.seconds
        return retriever


class Slow(Deadly):
    """Takes some time for a batch, too."""

    seconds: float

    def encode(self, tokens: TokenBatch, side: Side) -> Tensor:
        time.sleep(self.seconds)
        return super().encode(tokens, side)
