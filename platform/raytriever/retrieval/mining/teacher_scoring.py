"""Teacher scoring job: it checks all inputs, scores the pairs piece by piece, and commits the result.

Each query of a split is scored with its positives and its candidates: the rows of a negatives table and the best
documents of a TREC run. If neither is passed, the candidates are the hard negatives of the data set. Scores are the
cross-encoder's logits, before any activation. The cache keeps finished pieces, so after an interruption the same
command continues and writes the same bytes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int64
from numpy import ndarray

from raytriever.core.errors import ConfigError, DataError, ModelError, StorageError, setting
from raytriever.core.progress import Progress
from raytriever.core.reading.arrays import read_array
from raytriever.core.store.commit import MANIFEST, committed_directory, read_manifest, remove
from raytriever.core.store.disk import check_writable, has_content
from raytriever.core.store.unfinished_pieces import Pieces, folder_of_blocks
from raytriever.data.data_settings import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.formats.trec_runs import read_run
from raytriever.data.hard_negatives import read_negatives, write_pairs
from raytriever.data.prepare.open_dataset import open_all_splits
from raytriever.data.prepare.prepare_dataset import in_processes
from raytriever.data.sampling.teacher_scores import KIND, identity, read_scores
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.models.device_and_precision import choose_precision, default_device
from raytriever.models.resolve_model import commit_of, resolve_model
from raytriever.retrieval.mining.mining_settings import ScoreConfig

_SCORES = "scores.npy"
# Number of pairs in a piece. A small cross-encoder scores a piece in a few minutes on two cores, in 2 s on a GPU.
PIECE_PAIRS = 8_192
# For each value of the manifest, what an error message says about scores whose manifest has another value.
_DIFFERENCES = {
    "model_digest": "by another model",
    "queries": "of other queries",
    "documents": "of other documents",
    "pairs_digest": "of other pairs",
    "length": "of pairs cut at another length",
    "precision": "in another precision",
}


@dataclass(frozen=True, kw_only=True)
class ScoringResult:
    """Result of a scoring job."""

    queries: int
    # `positives`, `candidates`: scores of the positives and of the candidates.
    positives: Float32[ndarray, " positives"]
    candidates: Float32[ndarray, " candidates"]
    above: float  # fraction of candidates that score above their query's lowest positive: likely false negatives
    activation: str  # activation that sentence-transformers would apply to the scores
    # `scored`, `seconds`: number of pairs that this call scored, and its duration.
    scored: int
    seconds: float
    quarantined: str | None  # a line about quarantined rows, if there are any


def run_scoring(
    config: ScoreConfig,
    data: DataConfig,
    output: Path,
    log: Callable[[str], None],
    *,
    split: str = "train",
    precision: str | None = None,
    piece: int = PIECE_PAIRS,
) -> ScoringResult:
    """Score the pairs and commit the scores to `output`. If it already has these scores, read them.

    Args:
        split: split whose queries are scored.
        precision: precision of the cross-encoder; None for the fastest on this hardware.
        piece: number of pairs that are committed together.
    """
    if not config.model:
        raise ConfigError("is missing", setting("model"), "name a cross-encoder: a directory, or a hub name")
    check_writable(output)
    device = default_device()
    chosen = choose_precision(precision, device)
    commit = commit_of(config.model, config.revision)
    teacher = CrossEncoder(resolve_model(config.model, commit or config.revision), device, chosen, config.max_length)
    dataset = open_all_splits(data.dataset, [split], max_bad_rows=data.max_bad_rows, run=in_processes, log=log)
    pairs = collect_pairs(dataset, split, config)
    decides = {
        "model_digest": teacher.digest(),
        **identity(dataset),
        "pairs_digest": pairs.digest,
        "length": teacher.length,
        "precision": chosen,
        "piece": piece,
    }
    started, scored = time.monotonic(), 0
    if has_content(output):
        _check_same(output, decides)
        log(f"{output} already has these scores: nothing is scored again")
        scores = read_scores(output, dataset).of_pairs(pairs.queries, pairs.documents)
    else:
        log(f"{dataset.name}: scoring {len(pairs):,} pairs with {config.model} ({chosen} on {device})")
        finished = folder_of_blocks([*decides.values()], dataset)
        scores, scored = _score(Pieces(finished, optional="a scoring"), piece, teacher, dataset, pairs)
        names = {"model": config.model, "revision": commit, "dataset": dataset.name, "split": split}
        meta = {"kind": KIND, **names, **decides, "pairs": len(pairs), "activation": teacher.activation}
        with committed_directory(output, meta) as folder:
            write_pairs(folder, dataset, pairs.queries, pairs.documents, {"score": scores})
        remove(finished)
    return ScoringResult(
        queries=len(np.unique(pairs.queries)),
        positives=scores[pairs.positive],
        candidates=scores[~pairs.positive],
        above=_share_above_positives(pairs, scores),
        activation=teacher.activation,
        scored=scored,
        seconds=time.monotonic() - started,
        quarantined=str(dataset.quarantine) if dataset.quarantine.total else None,
    )


def _check_same(output: Path, decides: Mapping[str, Any]) -> None:
    """Raise `StorageError` unless a directory has scores whose manifest has these values."""
    stored = read_manifest(output)["meta"] if (output / MANIFEST).exists() else {}
    if all(stored.get(name) == value for name, value in decides.items()):
        return
    is_ours = stored.get("kind") == KIND
    differences = [text for name, text in _DIFFERENCES.items() if is_ours and stored.get(name) != decides[name]]
    reason = f"holds scores {', '.join(differences)}" if differences else "does not hold the scores of this command"
    raise StorageError(reason, str(output), f"give another {setting('output')}, or remove this one")


def _score(
    finished: Pieces, piece: int, teacher: CrossEncoder, dataset: RetrievalDataset, pairs: Pairs
) -> tuple[Float32[ndarray, " pairs"], int]:
    scores, passages, missing = np.empty(len(pairs), np.float32), dataset.passages(), dict[str, slice]()
    for start in range(0, len(pairs), piece):
        rows, name = slice(start, min(len(pairs), start + piece)), f"piece-{start // piece:06d}"
        if (read := finished.read(name, partial(_load, rows.stop - start))) is None:
            missing[name] = rows
        else:
            scores[rows] = read
    total = sum(rows.stop - rows.start for rows in missing.values())
    with Progress("score", total, "pair") as progress:
        for name, rows in missing.items():
            queries, documents = pairs.queries[rows].tolist(), pairs.documents[rows].tolist()
            some = teacher.logits([dataset.queries.texts[q] for q in queries], [passages[d] for d in documents])
            bad = np.flatnonzero(~np.isfinite(some))
            if len(bad):
                query, document = dataset.queries.ids[queries[bad[0]]], dataset.documents.ids[documents[bad[0]]]
                what = f"{len(bad)} of {len(some)} scores are not finite"
                what += f", the first is of query {query!r} and document {document!r}"
                remedy = f"try {setting('precision')} fp32, or another cross-encoder"
                raise ModelError(what, str(teacher.directory), remedy)
            scores[rows] = some
            finished.write(name, partial(_save, some))
            progress.advance(len(some))
    return scores, total


def _save(scores: ndarray, folder: Path) -> None:
    np.save(folder / _SCORES, scores)


def _load(count: int, folder: Path, meta: object) -> ndarray:
    return read_array(folder / _SCORES, ["float32"], (count,), "score again")


def _share_above_positives(pairs: Pairs, scores: Float32[ndarray, " pairs"]) -> float:
    rows = np.unique(pairs.queries, return_inverse=True)[1]
    lowest = np.full(rows.max() + 1, np.inf, dtype=np.float32)
    np.minimum.at(lowest, rows[pairs.positive], scores[pairs.positive])
    others = ~pairs.positive
    return float((scores[others] > lowest[rows[others]]).mean()) if others.any() else 0.0


@dataclass(frozen=True)
class Pairs:
    """Distinct pairs of positions, sorted by query and then by document. `positive` marks relevant documents."""

    queries: Int64[ndarray, " pairs"]
    documents: Int64[ndarray, " pairs"]
    positive: Bool[ndarray, " pairs"]

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def digest(self) -> str:
        """SHA-256 over the positions."""
        return hashlib.sha256(np.stack([self.queries, self.documents]).astype("<i8").tobytes()).hexdigest()


def collect_pairs(dataset: RetrievalDataset, split: str, config: ScoreConfig) -> Pairs:
    """Collect the pairs of a split."""
    positives = dataset.positives(split)
    if not len(positives):
        raise DataError(f"split {split!r} has no judgement above 0", dataset.name, "choose another split")
    owners = np.repeat(positives.queries, np.diff(positives.offsets))
    candidates = _candidates(dataset, positives.queries, config)
    if not np.isin(np.concatenate([queries for queries, _ in candidates]), positives.queries).any():
        what = f"none of the {len(positives):,} queries of split {split!r} has a candidate"
        raise DataError(what, config.negatives or config.run or dataset.name, "give the negatives of this split")
    size = len(dataset.documents)
    rows = [(owners, positives.documents), *candidates]
    keys = np.unique(np.concatenate([queries * size + documents for queries, documents in rows]))
    keys = keys[np.isin(keys // size, positives.queries)]
    return Pairs(keys // size, keys % size, np.isin(keys, owners * size + positives.documents))


def _candidates(
    dataset: RetrievalDataset, queries: Int64[ndarray, " queries"], config: ScoreConfig
) -> list[tuple[ndarray, ndarray]]:
    candidates = []
    if config.negatives:
        table = read_negatives(config.negatives, dataset)
        candidates.append((table.queries, table.documents))
    if config.run:
        ranking = read_run(config.run, dataset, queries.tolist(), config.depth)
        rows, ranks = np.nonzero(ranking >= 0)
        candidates.append((queries[rows], ranking[rows, ranks]))
    if not candidates:
        if dataset.negatives is None or not len(dataset.negatives.queries):
            remedy = f"give a table that `raytriever mine` wrote, or give a TREC run as {setting('run')}"
            raise ConfigError(f"{dataset.name} has no hard negatives", setting("negatives"), remedy)
        candidates.append((dataset.negatives.queries, dataset.negatives.documents))
    return candidates
