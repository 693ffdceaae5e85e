"""Scoring by a teacher as a job: open and check everything, score part by part, commit the whole.

Scores are the cross-encoder's logits, before any activation: margins and softmaxes over them mean what the papers mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.open import open_dataset
from raytriever.data.prepared import splits_of
from raytriever.data.processes import in_processes
from raytriever.data.remote import fetched
from raytriever.data.teacher_file import KIND, identity, read_scores, write_scores
from raytriever.errors import ConfigError, ModelError
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.models.precision import choose_precision
from raytriever.models.source import commit_of, resolve_model
from raytriever.retrieval.score_config import ScoreConfig
from raytriever.retrieval.score_pairs import Pairs, pairs_of
from raytriever.retrieval.score_work import PART_PAIRS, ScorePlan, ScoreWork, plan_of
from raytriever.storage import check_writable, committed_directory
from raytriever.tracking.progress import Progress


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
class ScoringDone:
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


def run_scoring(job: ScoringJob, output: Path, say: Callable[[str], None]) -> ScoringDone:
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
    pairs = pairs_of(dataset, job.split, job.config)
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
    work = ScoreWork(output, plan)
    began, scored = time.monotonic(), 0
    if work.begin():
        say(f"{output} is finished: nothing is scored again")
        scores = read_scores(output, dataset).of_pairs(pairs.queries, pairs.documents)
    else:
        say(f"{dataset.name}: {len(pairs):,} pairs by {job.config.model} ({precision} on {device})")
        scored = _score(work, teacher, dataset, pairs)
        scores = _finish(work, dataset, pairs, teacher.activation)
    above = _above(pairs, scores)
    return ScoringDone(
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
    plan = plan_of(output)
    return plan.get("revision") if plan.get("model") == model else None


def _open(job: ScoringJob, say: Callable[[str], None]) -> RetrievalDataset:
    """The data set with the judgements of all its splits, as mining opens it: a table is held to all of them."""
    dataset = open_dataset(job.dataset, [job.split], max_bad_rows=job.max_bad_rows, run=in_processes, say=say)
    place = str(dataset.place)
    return open_dataset(place, [job.split, *splits_of(fetched(place) or Path(place))])


def _score(work: ScoreWork, teacher: CrossEncoder, dataset: RetrievalDataset, pairs: Pairs) -> int:
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


def _finish(work: ScoreWork, dataset: RetrievalDataset, pairs: Pairs, activation: str) -> Float32[ndarray, " pairs"]:
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
