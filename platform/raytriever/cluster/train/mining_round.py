"""One round of mining with the encoder in training: encode, search, filter, commit. Imports no Ray.

negatives/rounds.json           state of each round (the refresh ledger)
negatives/round-0001/           table of a round, while a run may resume with it
negatives/embeddings/KEY/       embeddings of the running round; a rolling refresh keeps them between rounds
negatives/embeddings/KEY/mined-0001/  finished blocks of its mining"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np

from raytriever.config import Config
from raytriever.data.combine import combine
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives import NegativesTable, write_negatives
from raytriever.data.prepare.open import open_all_splits
from raytriever.data.records import ORIGINS
from raytriever.encoding.loading import speed_up
from raytriever.encoding.shards import ShardEncoder, encode_in_process
from raytriever.encoding.store import EmbeddingStore, shard_folder
from raytriever.encoding.writer import EmbeddingPlan, StoreWriter, shard_rows, with_shard_rows_of
from raytriever.mining.filters import ExcludedDocuments
from raytriever.mining.finders import Embeddings, OpenCorpus, open_here
from raytriever.mining.miner import MiningResult, mine
from raytriever.models.config import ModelConfig
from raytriever.models.memory import move_to
from raytriever.models.precision import choose_precision, default_device, type_of
from raytriever.models.prepare import prepare_for_training
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.prompts import Side
from raytriever.store.commit import remove
from raytriever.training.config import ROLLING
from raytriever.training.parallel.model_state import Snapshot, load_snapshot
from raytriever.training.refresh import remove_tables, round_path

EMBEDDINGS, CHECKPOINTS = "embeddings", "checkpoints"


@dataclass(frozen=True)
class SnapshotLoader:
    """Loader of the encoder of a snapshot; sent to the encoders.

    Args:
        model: settings of the model at the start of training.
        precision: Precision of encoding; None for the fastest of the device.
    """

    model: ModelConfig
    seed: int
    precision: str | None

    def __call__(self, snapshot: Snapshot) -> Retriever:
        """Load the encoder on the GPU of this process, if it has one."""
        device = default_device()
        retriever = move_to(load_retriever(self.model, type_of(choose_precision(self.precision, device))), device)
        prepare_for_training(retriever, self.model, self.seed)
        load_snapshot(retriever, snapshot)
        retriever.eval()
        retriever.choose_packing(choose_precision(self.precision, device))
        return speed_up(retriever) if device.type == "cpu" and not self.model.lora_rank else retriever


# Encodes the missing shards of a store, of the data set at a path, on any process.
Encode = Callable[[StoreWriter, SnapshotLoader, str, list[int]], None]


def encode_here(snapshot: Snapshot, store: StoreWriter, load: SnapshotLoader, dataset: str, missing: list[int]) -> None:
    """Encode shards in this process; see `Encode`."""
    encode_in_process(ShardEncoder(store, partial(load, snapshot), dataset), missing, lambda texts: None)


class MiningRounds:
    """Rounds of mining of a run.

    Args:
        paths: paths or URIs of its prepared data sets.
        folder: Folder of the rounds, next to that of the checkpoints.
        first: the table that training began with, where every round keeps rows of it; otherwise None.
        on_gpu: whether GPUs encode, which have larger shards.
    """

    def __init__(
        self, config: Config, paths: list[str], folder: Path, first: NegativesTable | None, on_gpu: bool = False
    ) -> None:
        self._config, self._folder, self._on_gpu = config, folder, on_gpu
        self._load = SnapshotLoader(config.model, config.training.seed, config.training.precision)
        self._datasets = [open_all_splits(path, [config.data.train_split]) for path in paths]
        self._width = load_retriever(config.model).width
        self._combined = combine(self._datasets)
        split = config.data.train_split
        # For each data set, the documents that the judgements of this split alone exclude.
        self._excluded = [ExcludedDocuments.of_split(_with_split_alone(one, split), split) for one in self._datasets]
        self._first = first

    def run(
        self, number: int, snapshot: Snapshot, encode: Encode, open_corpus: OpenCorpus = open_here
    ) -> dict[str, float]:
        """Mine one round, or the rest of an interrupted one, and commit its table, replacing any table there.

        Args:
            open_corpus: makes the corpora that are searched; by default in this process.

        Returns:
            Metrics for the tracker.

        Raises:
            UserError: something that the user can correct.
        """
        began = time.monotonic()
        remove_tables(self._folder, self._folder.parent / CHECKPOINTS)
        rolling = self._config.refresh.refresh_mode == ROLLING
        key = digest_of(snapshot)
        self._remove_but(ROLLING if rolling else "", key)
        embeddings, encoded = [], 0
        finished = self._folder / EMBEDDINGS / key / f"mined-{number:04}"
        for index, dataset in enumerate(self._datasets):
            if rolling:
                self._roll(index, dataset, number)
            documents, count = self._store(index, dataset, "passage", ROLLING if rolling else key, encode)
            queries, more = self._store(index, dataset, "query", key, encode)
            trained_queries = dataset.positives(self._config.data.train_split).queries
            embeddings.append(Embeddings(queries.read(trained_queries), documents))
            encoded += count + more
        then = time.monotonic()
        table, metrics = self._table(number, embeddings, finished, open_corpus)
        write_negatives(round_path(self._folder, number), table, self._combined, replace=True)
        self._remove_but(ROLLING if rolling else "")
        metrics |= {"refresh_encoded": float(encoded), "refresh_encode_seconds": then - began}
        return metrics | {"refresh_mine_seconds": time.monotonic() - then}

    def _table(
        self, number: int, embeddings: Sequence[Embeddings], finished: Path, open_corpus: OpenCorpus
    ) -> tuple[NegativesTable, dict[str, float]]:
        """Return the table of a round, of all data sets in one, and its metrics for the tracker.

        The filters know only the judgements of the trained split. Documents that other splits judge relevant are
        removed afterwards; their share estimates the false negatives among the unjudged documents.
        """
        tables, counts, split, config = [], [], self._config.data.train_split, self._config
        relevant = judged = 0
        for index, (dataset, own, excluded) in enumerate(zip(self._datasets, embeddings, self._excluded, strict=True)):
            mined = mine(
                _with_split_alone(dataset, split),
                split,
                config.refresh.mining,
                embeddings=own,
                seed=config.training.seed,
                round=number,
                excluded=excluded,
                finished=finished / str(index),
                open_corpus=open_corpus,
            )
            rows = mined.table
            table = NegativesTable.of(
                dataset, rows.queries, rows.documents, rows.origins, rows.ranks, rows.scores, rows.rounds
            )
            tables.append(table)
            counts.append(mined)
            if _has_other_judgements(dataset, split, rows):
                relevant, judged = relevant + table.relevant, judged + len(rows)
        starts = [0, *itertools.accumulate(len(dataset.documents) for dataset in self._datasets[:-1])]
        table = tables[0] if len(tables) == 1 else NegativesTable.chained(tables, starts)
        metrics = _metrics(counts)
        if judged:
            metrics["refresh_true_positives"] = relevant / judged
        if self._first is not None:
            table = NegativesTable.merged(self._combined, [table, _without(self._first, config.refresh.mining.methods)])
        return table, metrics

    def _roll(self, index: int, dataset: RetrievalDataset, number: int) -> None:
        """Remove the shards whose turn it is, unless shards are missing, as in the first or an interrupted round."""
        work = self._work(index, dataset, "passage", ROLLING)
        if not work.missing():
            for shard in rolling_rows(work.plan.shards, self._config.refresh.refresh_share, number - 1):
                remove(shard_folder(work.path, shard), whole=True)

    def _store(
        self, index: int, dataset: RetrievalDataset, side: Side, key: str, encode: Encode
    ) -> tuple[EmbeddingStore, int]:
        """Return the embeddings of one side, and the number of them that this round encoded."""
        work = self._work(index, dataset, side, key)
        work.begin()
        missing = work.missing()
        if missing:
            encode(work, self._load, str(dataset.location), missing)
        return work.finish(), sum(len(work.plan.rows_of(shard)) for shard in missing)

    def _work(self, index: int, dataset: RetrievalDataset, side: Side, key: str) -> StoreWriter:
        model, texts = self._config.model, dataset.documents if side == "passage" else dataset.queries
        rows = shard_rows(len(texts), self._on_gpu)
        if key == ROLLING:  # small enough for every turn to have a shard
            rows = max(1, min(rows, int(len(texts) * self._config.refresh.refresh_share)))
        # Settings of reading texts are the same in the whole run, so the plan leaves them empty.
        plan = EmbeddingPlan(
            model=model.model,
            model_digest=key,
            dataset=dataset.name,
            data_digest=texts.digest,
            side=side,
            prefix="",
            length=0,
            pooling="",
            similarity="",
            precision=str(self._config.training.precision),
            dtype="fp32",
            rows=len(texts),
            width=self._width,
            shard_rows=rows,
        )
        path = self._folder / EMBEDDINGS / key / f"{index}-{side}"
        return StoreWriter(path, with_shard_rows_of(plan, path))

    def _remove_but(self, *names: str) -> None:
        """Remove the embeddings of all rounds but the kept ones."""
        for path in (self._folder / EMBEDDINGS).glob("*"):
            if path.name not in names:
                remove(path)


def digest_of(snapshot: Snapshot) -> str:
    """Return sixteen hexadecimal digits of the SHA-256 of the weights."""
    state = sha256()
    for name in sorted(snapshot):
        state.update(name.encode())
        state.update(snapshot[name].tobytes())
    return state.hexdigest()[:16]


def rolling_rows(documents: int, share: float, turn: int) -> range:
    """Return the documents of one turn of a rolling refresh: contiguous, and in `ceil(1 / share)` turns all of them.

    `share` is in (0, 1], and `turn` counts from 0.
    """
    turns = math.ceil(1 / share)
    index = turn % turns
    return range(index * documents // turns, (index + 1) * documents // turns)


def _with_split_alone(dataset: RetrievalDataset, split: str) -> RetrievalDataset:
    """Return the data set with the judgements of one split alone."""
    return replace(dataset, judgements={split: dataset.judgements[split]})


def _metrics(mined: Sequence[MiningResult]) -> dict[str, float]:
    """Return the shares of candidates by the reason of their removal, and of queries with too few negatives or none."""
    totals: dict[str, int] = {}
    for one in mined:
        for reasons in one.counts.values():
            for name, count in reasons.items():
                totals[name] = totals.get(name, 0) + count
    candidates = totals.pop("candidates", 0)
    shares = {f"refresh_share_{_metric_name(name)}": count / max(1, candidates) for name, count in totals.items()}
    counts = np.concatenate([one.counts_per_query for one in mined])
    shares["refresh_queries_short"] = float((counts < mined[0].wanted).mean())
    shares["refresh_queries_without"] = float((counts == 0).mean())
    return {"refresh_candidates": float(candidates), **shares}


def _has_other_judgements(dataset: RetrievalDataset, split: str, table: NegativesTable) -> bool:
    """Return whether another split judges a query that negatives were mined for."""
    others = [rows.queries for name, rows in dataset.judgements.items() if name != split]
    return bool(others) and bool(np.isin(table.queries, np.concatenate(others)).any())


def _without(table: NegativesTable, origins: Sequence[str]) -> NegativesTable:
    """Return the rows of a table that have other origins."""
    keep = ~np.isin(table.origins, [ORIGINS.index(name) for name in origins])
    before = np.concatenate([[0], np.cumsum(keep)])
    columns = {name: getattr(table, name)[keep] for name in ("documents", "origins", "ranks", "scores", "rounds")}
    return replace(table, offsets=before[table.offsets], **columns)


def _metric_name(reason: str) -> str:
    """Return the reason as a metric name."""
    return "".join(letter if letter.isalnum() else "_" for letter in reason.lower())
