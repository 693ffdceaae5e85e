"""Scoring by a teacher as a job: open and check everything, score block by block, commit the whole.

Scores are the cross-encoder's logits, before any activation. A block's scores depend on the plan and its number
alone, and committed blocks are never scored again: after an interruption the same command continues and produces
the same bytes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from jaxtyping import Float32
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import fetched, open_dataset
from raytriever.data.prepare.pipeline import in_processes
from raytriever.data.prepare.prepared import splits_of
from raytriever.data.sampling.teacher import KIND, identity, read_scores, write_scores
from raytriever.errors import ConfigError, ModelError, StorageError
from raytriever.mining.config import ScoreConfig
from raytriever.mining.teacher.pairs import Pairs, collect_pairs
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.models.precision import choose_precision
from raytriever.models.source import commit_of, resolve_model
from raytriever.progress import Progress
from raytriever.reading.arrays import read_array
from raytriever.reading.structured import read_json
from raytriever.storage import (
    MANIFEST,
    check_writable,
    committed_directory,
    disk_errors,
    read_manifest,
    write_atomically,
)

PLAN, PARTS, _SCORES = "plan.json", "parts", "scores.npy"
# Some minutes of a small cross-encoder on two cores, a second or two of a GPU.
PART_PAIRS = 8_192
VERSION = 1
_OTHER_OUTPUT = "give another --output, or remove it"
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


class _Plan(TypedDict, total=False):
    """The keys of `plan.json` that are read one by one."""

    key: str
    model: str
    revision: str | None


@dataclass(frozen=True)
class ScoreWriter:
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
        told: Mapping[str, Any] = read_manifest(self.path)["meta"] if finished else read_plan(self.path)
        if told.get("key") != self.plan.key:
            own = asdict(self.plan)
            ours = told.keys() >= _SAID.keys()
            other = [said for name, said in _SAID.items() if ours and told[name] != own[name]]
            holds = f"holds scores {', '.join(other)}" if other else "holds something else than these scores"
            raise StorageError(holds, str(self.path), _OTHER_OUTPUT)
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


def read_plan(path: Path) -> Mapping[str, Any]:
    """The plan of scores that are being made in a directory; empty where none are.

    Raises:
        StorageError: it is not as it was written, or cannot be read.
    """
    try:
        with disk_errors(path / PLAN, reading=True):
            return read_json(path / PLAN, _Plan, _OTHER_OUTPUT)
    except (FileNotFoundError, NotADirectoryError):
        return {}


@dataclass(frozen=True)
class ScoringJob:
    """What is scored, and by whom.

    Args:
        dataset: path, URI or name.
        split: whose queries are asked about.
        config: the settings.
        precision: of the cross-encoder; None for what the hardware is fastest at.
        max_bad_rows: the share of each file's rows that may be bad.
        part: pairs that are committed together.
    """

    dataset: str
    split: str
    config: ScoreConfig
    precision: str | None
    max_bad_rows: float
    part: int = PART_PAIRS


@dataclass(frozen=True)
class ScoringResult:
    """What a person is told.

    Args:
        queries: how many were asked about.
        positives, candidates: scores of the positives, and of the others.
        above: the share of candidates that score above their query's lowest positive: likely false negatives.
        activation: what sentence-transformers would put the scores through.
        scored, seconds: pairs that this call has scored, and how long that took.
        quarantined: a line on rows that were left out, if any.
    """

    queries: int
    positives: Float32[ndarray, " positives"]
    candidates: Float32[ndarray, " candidates"]
    above: float
    activation: str
    scored: int
    seconds: float
    quarantined: str | None


def run_scoring(job: ScoringJob, output: Path, say: Callable[[str], None]) -> ScoringResult:
    """Score, and commit the scores to `output`; called again it goes on where it was interrupted.

    Raises:
        UserError: something a user can mend.
    """
    if not job.config.model:
        raise ConfigError("is not given", "--model", "name a cross-encoder: a directory, or a hub name")
    check_writable(output)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = choose_precision(job.precision, device)
    commit = commit_of(job.config.model, job.config.revision or _recorded(output, job.config.model))
    directory = resolve_model(job.config.model, commit or job.config.revision)
    teacher = CrossEncoder(directory, device, precision, job.config.max_length)
    dataset = _open(job, say)
    pairs = collect_pairs(dataset, job.split, job.config)
    plan = ScorePlan(
        model=job.config.model,
        revision=commit,
        model_digest=teacher.digest(),
        dataset=dataset.name,
        split=job.split,
        pairs_digest=pairs.digest,
        pairs=len(pairs),
        length=teacher.length,
        precision=precision,
        part=job.part,
        **identity(dataset),
    )
    work = ScoreWriter(output, plan)
    began, scored = time.monotonic(), 0
    if work.begin():
        say(f"{output} is finished: nothing is scored again")
        scores = read_scores(output, dataset).of_pairs(pairs.queries, pairs.documents)
    else:
        say(f"{dataset.name}: {len(pairs):,} pairs by {job.config.model} ({precision} on {device})")
        scored = _score(work, teacher, dataset, pairs)
        scores = _finish(work, dataset, pairs, teacher.activation)
    above = _above(pairs, scores)
    return ScoringResult(
        len(np.unique(pairs.queries)),
        scores[pairs.positive],
        scores[~pairs.positive],
        above,
        teacher.activation,
        scored,
        time.monotonic() - began,
        str(dataset.quarantine) if dataset.quarantine.total else None,
    )


def _recorded(output: Path, model: str) -> str | None:
    """The commit of a hub model that an interrupted call has begun with."""
    plan = read_plan(output)
    return plan.get("revision") if plan.get("model") == model else None


def _open(job: ScoringJob, say: Callable[[str], None]) -> RetrievalDataset:
    """The data set with the judgements of all its splits, as mining opens it: a table is held to all of them."""
    dataset = open_dataset(job.dataset, [job.split], max_bad_rows=job.max_bad_rows, run=in_processes, say=say)
    place = str(dataset.place)
    return open_dataset(place, [job.split, *splits_of(fetched(place) or Path(place))])


def _score(work: ScoreWriter, teacher: CrossEncoder, dataset: RetrievalDataset, pairs: Pairs) -> int:
    """Score what is missing; how many pairs that were."""
    missing, passages, scored = work.missing(), dataset.passages(), 0
    with Progress("score", sum(_length(work.plan.rows_of(number)) for number in missing), "pair") as progress:
        for number in missing:
            rows = work.plan.rows_of(number)
            queries, documents = pairs.queries[rows].tolist(), pairs.documents[rows].tolist()
            scores = teacher.logits([dataset.queries.texts[q] for q in queries], [passages[d] for d in documents])
            bad = np.flatnonzero(~np.isfinite(scores))
            if len(bad):
                first = dataset.queries.ids[queries[bad[0]]], dataset.documents.ids[documents[bad[0]]]
                raise ModelError(
                    f"{len(bad)} of {len(scores)} scores are not finite, the first of query {first[0]!r} and document "
                    f"{first[1]!r}",
                    str(teacher.directory),
                    "try --precision fp32, or another cross-encoder",
                )
            work.write(number, scores)
            scored += len(scores)
            progress.advance(len(scores))
    return scored


def _finish(work: ScoreWriter, dataset: RetrievalDataset, pairs: Pairs, activation: str) -> Float32[ndarray, " pairs"]:
    """Put the parts together, and commit them in place of the directory they were made in."""
    parts = [work.read(number) for number in range(work.plan.parts)]
    scores = np.concatenate([part for part in parts if part is not None])
    meta = {"kind": KIND, "key": work.plan.key, **asdict(work.plan), "activation": activation}
    with committed_directory(work.path, meta, replace=True) as aside:
        write_scores(aside, dataset, pairs.queries, pairs.documents, scores)
    return scores


def _above(pairs: Pairs, scores: Float32[ndarray, " pairs"]) -> float:
    """The share of candidates that score above the lowest positive of their query."""
    rows = np.unique(pairs.queries, return_inverse=True)[1]
    lowest = np.full(rows.max() + 1, np.inf, dtype=np.float32)
    np.minimum.at(lowest, rows[pairs.positive], scores[pairs.positive])
    others = ~pairs.positive
    return float((scores[others] > lowest[rows[others]]).mean()) if others.any() else 0.0


def _length(rows: slice) -> int:
    return int(rows.stop - rows.start)
