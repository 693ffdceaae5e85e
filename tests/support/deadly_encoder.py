"""An encoder at which a process dies, in a module that child processes and actors can import."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from raytriever.models.model_settings import ModelConfig
from raytriever.models.packing import TokenBatch
from raytriever.models.prompts import Side
from raytriever.models.retriever import Retriever, load_retriever


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
    """Loads a tiny encoder that dies of a character."""

    model: str
    poison: str
    deaths: Path

    def __call__(self) -> Retriever:
        retriever = load_retriever(ModelConfig(self.model))
        retriever.__class__ = Deadly
        retriever.poison = retriever.tokenizer.convert_tokens_to_ids(self.poison)
        retriever.deaths = self.deaths
        return retriever
