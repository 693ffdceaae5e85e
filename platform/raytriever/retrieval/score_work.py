"""A teacher's scores in the making: parts of so many pairs, each committed when it is scored.

A part's scores depend on the plan and its number alone, and what stands is never scored again; so whoever is
interrupted gives the same command again and gets the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from raytriever.errors import StorageError
from raytriever.reading.arrays import read_array
from raytriever.reading.structured import read_json
from raytriever.storage import MANIFEST, committed_directory, disk_errors, read_manifest, write_atomically

PLAN, PARTS, _SCORES = "plan.json", "parts", "scores.npy"
# Some minutes of a small cross-encoder on two cores, a second or two of a GPU.
PART_PAIRS = 8_192
VERSION = 1
# How a directory that stands there differs from what is asked for.
_SAID = {
    "model_digest": "by another model",
    "queries": "of other queries",
    "documents": "of other documents",
    "pairs_digest": "of other pairs",
    "length": "of pairs cut at another length",
    "precision": "in another precision",
}


@dataclass(frozen=True)
class ScorePlan:
    """What decides the scores; names are for people.

    Args:
        model: as it was named.
        revision: the commit of a hub model.
        model_digest: SHA-256 over the files that decide a score.
        dataset: its name.
        split: whose queries.
        queries, documents: digests of ids and texts.
        pairs_digest: SHA-256 over the positions of the pairs.
        pairs: how many.
        length: tokens of a pair.
        precision: `fp32` or `bf16`.
        part: pairs of a part.
    """

    model: str
    revision: str | None
    model_digest: str
    dataset: str
    split: str
    queries: str
    documents: str
    pairs_digest: str
    pairs: int
    length: int
    precision: str
    part: int = PART_PAIRS

    @property
    def key(self) -> str:
        """SHA-256 over all that decides a byte."""
        decides = {k: v for k, v in asdict(self).items() if k not in ("model", "revision", "dataset", "split")}
        return hashlib.sha256(json.dumps([VERSION, decides], sort_keys=True).encode()).hexdigest()

    @property
    def parts(self) -> int:
        """How many there are."""
        return -(-self.pairs // self.part)

    def rows_of(self, number: int) -> slice:
        """The pairs of a part."""
        return slice(number * self.part, min(self.pairs, (number + 1) * self.part))


@dataclass(frozen=True)
class ScoreWork:
    """The directory of scores that are being made."""

    path: Path
    plan: ScorePlan

    def begin(self) -> bool:
        """Make the directory, or find it as an earlier attempt left it; whether all is done already.

        Raises:
            StorageError: it holds something else.
        """
        with disk_errors(self.path, reading=True):
            there = self.path.is_dir() and any(self.path.iterdir())
        if not there:
            with disk_errors(self.path):
                (self.path / PARTS).mkdir(parents=True, exist_ok=True)
            write_atomically(self.path / PLAN, json.dumps({"key": self.plan.key, **asdict(self.plan)}, indent=1))
            return False
        finished = (self.path / MANIFEST).exists()
        told: Mapping[str, Any] = read_manifest(self.path)["meta"] if finished else plan_of(self.path)
        if told.get("key") != self.plan.key:
            own = asdict(self.plan)
            ours = told.keys() >= _SAID.keys()
            other = [said for name, said in _SAID.items() if ours and told[name] != own[name]]
            holds = f"holds scores {', '.join(other)}" if other else "holds something else than these scores"
            raise StorageError(holds, str(self.path), "give another --output, or remove it")
        return finished

    def missing(self) -> list[int]:
        """The parts that are not there, or not whole."""
        return [number for number in range(self.plan.parts) if self.read(number) is None]

    def write(self, number: int, scores: Float32[ndarray, " pairs"]) -> None:
        """Commit a part."""
        with committed_directory(self._part(number), {"key": self.plan.key}, replace=True) as aside:
            np.save(aside / _SCORES, scores)

    def read(self, number: int) -> Float32[ndarray, " pairs"] | None:
        """A part's scores, None where it does not stand, every byte as it was written."""
        rows = self.plan.rows_of(number)
        with suppress(StorageError, OSError):
            if read_manifest(self._part(number))["meta"].get("key") == self.plan.key:
                return read_array(self._part(number) / _SCORES, ["float32"], (rows.stop - rows.start,), "score again")
        return None

    def _part(self, number: int) -> Path:
        return self.path / PARTS / f"part-{number:06d}"


def plan_of(path: Path) -> Mapping[str, Any]:
    """The plan of scores that are being made in a directory; empty where none are."""
    with suppress(OSError, StorageError):
        return read_json(path / PLAN, dict[str, Any], "score again")
    return {}
