"""One round of mining with the encoder in training: encode, search, filter, commit. Imports no Ray.

negatives/rounds.json           state of each round (the refresh ledger)
negatives/round-0001/           table of a round, while a run may resume with it
negatives/embeddings/KEY/       embeddings of the running round; a rolling refresh keeps them between rounds"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch

from raytriever.cluster.train.mining_table import TableMiner
from raytriever.config import Config
from raytriever.data.combine import combine
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives import NegativesTable, write_negatives
from raytriever.data.prepare.open import fetch_dataset, open_dataset
from raytriever.data.prepare.prepared import splits_of
from raytriever.encoding.loading import speed_up
from raytriever.encoding.store import EmbeddingStore, shard_folder
from raytriever.encoding.writer import EmbeddingPlan, StoreWriter, shard_rows
from raytriever.mining.scorers import Embeddings
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision
from raytriever.models.prepare import prepare_for_training
from raytriever.models.retriever import Retriever, Side, load_retriever
from raytriever.training.parallel.model_state import Snapshot, load_snapshot
from raytriever.training.refresh.config import ROLLING
from raytriever.training.refresh.job import MiningResult
from raytriever.training.refresh.ledger import remove_tables, round_path

EMBEDDINGS, CHECKPOINTS = "embeddings", "checkpoints"


@dataclass(frozen=True)
class SnapshotLoader:
    """Loader of the encoder of a snapshot; sent to the encoders.

    Args:
        model: settings of the model at the start of training.
        seed: of the run.
        precision: of encoding; None for the fastest of the device.
    """

    model: ModelConfig
    seed: int
    precision: str | None

    def __call__(self, snapshot: Snapshot) -> Retriever:
        """Load the encoder on the GPU of this process, if it has one."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        retriever = load_retriever(self.model).to(device)
        prepare_for_training(retriever, self.model, self.seed)
        if choose_precision(self.precision, device) == "bf16":
            retriever.to(torch.bfloat16)
        load_snapshot(retriever, snapshot)
        retriever.eval()
        return speed_up(retriever) if device.type == "cpu" and not self.model.lora_rank else retriever


# Encodes the missing shards of a store, of the data set at a path, on any process.
Encode = Callable[[StoreWriter, SnapshotLoader, str, list[int]], None]


class MiningRounds:
    """Rounds of mining of a run.

    Args:
        config: of the experiment.
        paths: paths or URIs of its prepared data sets.
        folder: of the rounds, next to that of the checkpoints.
        first: the table that training began with, where every round keeps rows of it; otherwise None.
    """

    def __init__(self, config: Config, paths: list[str], folder: Path, first: NegativesTable | None) -> None:
        self._config, self._folder = config, folder
        self._load = SnapshotLoader(config.model, config.training.seed, config.training.precision)
        self._datasets = [_with_all_splits(path, config.data.train_split) for path in paths]
        self._width = load_retriever(config.model).width
        refresh = config.refresh
        self._mining = TableMiner(self._datasets, config.data.train_split, refresh.mining, config.training.seed, first)

    def run(self, number: int, snapshot: Snapshot, encode: Encode) -> MiningResult:
        """Mine one round, or the rest of an interrupted one, and commit its table, replacing any table there.

        Args:
            number: of the round.
            snapshot: the weights.
            encode: encodes shards with these weights.

        Raises:
            UserError: something that the user can correct.
        """
        began = time.monotonic()
        remove_tables(self._folder, self._folder.parent / CHECKPOINTS)
        rolling = self._config.refresh.refresh_mode == ROLLING
        key = digest_of(snapshot)
        self._remove_but(ROLLING if rolling else "", key)
        embeddings, encoded = [], 0
        for index, dataset in enumerate(self._datasets):
            if rolling:
                self._roll(index, dataset, number)
            documents, count = self._store(index, dataset, "passage", ROLLING if rolling else key, encode)
            queries, more = self._store(index, dataset, "query", key, encode)
            trained_queries = dataset.positives(self._config.data.train_split).queries
            embeddings.append(Embeddings(queries.read(trained_queries), documents))
            encoded += count + more
        then = time.monotonic()
        table, metrics = self._mining.table(number, embeddings)
        write_negatives(round_path(self._folder, number), table, combine(self._datasets), replace=True)
        self._remove_but(ROLLING if rolling else "")
        metrics |= {"refresh_encoded": float(encoded), "refresh_encode_seconds": then - began}
        return MiningResult(metrics | {"refresh_mine_seconds": time.monotonic() - then})

    def _roll(self, index: int, dataset: RetrievalDataset, number: int) -> None:
        """Remove the shards whose turn it is, unless shards are missing, as in the first or an interrupted round."""
        work = self._work(index, dataset, "passage", ROLLING)
        if not work.missing():
            for shard in rolling_rows(work.plan.shards, self._config.refresh.refresh_share, number - 1):
                shutil.rmtree(shard_folder(work.path, shard))

    def _store(
        self, index: int, dataset: RetrievalDataset, side: Side, key: str, encode: Encode
    ) -> tuple[EmbeddingStore, int]:
        """Return the embeddings of one side, and the number of them that this round encoded."""
        work = self._work(index, dataset, side, key)
        work.begin()
        missing = work.missing()
        if missing:
            encode(work, self._load, str(dataset.place), missing)
        texts = dataset.passages() if side == "passage" else dataset.queries.texts
        return work.finish(dataset.name, texts), sum(len(work.plan.rows_of(shard)) for shard in missing)

    def _work(self, index: int, dataset: RetrievalDataset, side: Side, key: str) -> StoreWriter:
        model, texts = self._config.model, dataset.documents if side == "passage" else dataset.queries
        rows = shard_rows(len(texts))
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
        return StoreWriter(self._folder / EMBEDDINGS / key / f"{index}-{side}", plan)

    def _remove_but(self, *kept: str) -> None:
        """Remove the embeddings of all rounds but the kept ones."""
        for path in (self._folder / EMBEDDINGS).glob("*"):
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


def digest_of(snapshot: Snapshot) -> str:
    """Return sixteen hexadecimal digits of the SHA-256 of the weights."""
    state = sha256()
    for name in sorted(snapshot):
        state.update(name.encode())
        state.update(snapshot[name].tobytes())
    return state.hexdigest()[:16]


def _with_all_splits(path: str, split: str) -> RetrievalDataset:
    """Return a prepared data set with the judgements of all its splits, which show false negatives."""
    return open_dataset(path, [split, *splits_of(fetch_dataset(path) or Path(path))])


def rolling_rows(documents: int, share: float, turn: int) -> range:
    """Return the documents of one turn of a rolling refresh: contiguous, and in `ceil(1 / share)` turns all of them.

    Args:
        documents: number of documents in the corpus.
        share: of the corpus in one turn, in (0, 1].
        turn: counted from 0.
    """
    turns = math.ceil(1 / share)
    index = turn % turns
    return range(index * documents // turns, (index + 1) * documents // turns)
