"""Mine hard negatives once with the encoder in training: encode, search, filter, commit. Imports no Ray.

negatives/rounds.json           state of each round (the refresh ledger)
negatives/round-0001/           table of a round, as long as a run might resume with it
negatives/embeddings/KEY/       embeddings of the running round; kept between rounds where it is rolling"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch

from raytriever.cluster.train.mining_table import RoundOfMining
from raytriever.config import Config
from raytriever.data.combine import combine
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives import NegativesTable, write_negatives
from raytriever.data.prepare.open import fetched, open_dataset
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
from raytriever.training.refresh.ledger import remove_tables, round_path
from raytriever.training.refresh.plan import Mined, rolling_rows

EMBEDDINGS, CHECKPOINTS = "embeddings", "checkpoints"


@dataclass(frozen=True)
class SnapshotLoader:
    """Loads the encoder of a snapshot; sent to whoever encodes.

    Args:
        model: the settings that training began with.
        seed: of the run.
        precision: of encoding; None for what the device is fastest at.
    """

    model: ModelConfig
    seed: int
    precision: str | None

    def __call__(self, snapshot: Snapshot) -> Retriever:
        """Onto a GPU where this process has one."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        retriever = load_retriever(self.model).to(device)
        prepare_for_training(retriever, self.model, self.seed)
        if choose_precision(self.precision, device) == "bf16":
            retriever.to(torch.bfloat16)
        load_snapshot(retriever, snapshot)
        retriever.eval()
        return speed_up(retriever) if device.type == "cpu" and not self.model.lora_rank else retriever


# Encodes the missing shards of a store of a data set that stands somewhere, wherever it likes.
Encode = Callable[[StoreWriter, SnapshotLoader, str, list[int]], None]


class MiningRounds:
    """All rounds of a run.

    Args:
        config: the experiment.
        places: where its data sets stand prepared.
        folder: of the rounds, beside that of the checkpoints.
        first: the table training began with, where rows of it stay in every round's.
    """

    def __init__(self, config: Config, places: list[str], folder: Path, first: NegativesTable | None) -> None:
        self._config, self._folder = config, folder
        self._load = SnapshotLoader(config.model, config.training.seed, config.training.precision)
        self._datasets = [_with_all_splits(place, config.data.train_split) for place in places]
        self._width = load_retriever(config.model).width
        refresh = config.refresh
        self._mining = RoundOfMining(
            self._datasets, config.data.train_split, refresh.mining, config.training.seed, first
        )

    def run(self, number: int, snapshot: Snapshot, encode: Encode) -> Mined:
        """Do one round, or the rest of it.

        Args:
            number: of the round; its table stands afterwards, in place of any other of that number.
            snapshot: the weights.
            encode: encodes shards with these weights.

        Raises:
            UserError: something a user can mend.
        """
        began = time.monotonic()
        remove_tables(self._folder, self._folder.parent / CHECKPOINTS)
        rolling = self._config.refresh.refresh_mode == ROLLING
        key = digest_of(snapshot)
        self._remove_but(ROLLING if rolling else "", key)
        embeddings, encoded = [], 0
        for place, dataset in enumerate(self._datasets):
            if rolling:
                self._roll(place, dataset, number)
            documents, count = self._store(place, dataset, "passage", ROLLING if rolling else key, encode)
            queries, more = self._store(place, dataset, "query", key, encode)
            wanted = dataset.positives(self._config.data.train_split).queries
            embeddings.append(Embeddings(queries.read(wanted), documents))
            encoded += count + more
        then = time.monotonic()
        table, told = self._mining.table(number, embeddings)
        write_negatives(round_path(self._folder, number), table, combine(self._datasets), replace=True)
        self._remove_but(ROLLING if rolling else "")
        told |= {"refresh_encoded": float(encoded), "refresh_encode_seconds": then - began}
        return Mined(told | {"refresh_mine_seconds": time.monotonic() - then})

    def _roll(self, place: int, dataset: RetrievalDataset, number: int) -> None:
        """Remove the shards whose turn it is, unless some are missing anyway: of the first round, or one cut short."""
        work = self._work(place, dataset, "passage", ROLLING)
        if not work.missing():
            for shard in rolling_rows(work.plan.shards, self._config.refresh.refresh_share, number - 1):
                shutil.rmtree(shard_folder(work.path, shard))

    def _store(
        self, place: int, dataset: RetrievalDataset, side: Side, key: str, encode: Encode
    ) -> tuple[EmbeddingStore, int]:
        """The embeddings of one side, and how many of them were encoded now."""
        work = self._work(place, dataset, side, key)
        work.begin()
        missing = work.missing()
        if missing:
            encode(work, self._load, str(dataset.place), missing)
        texts = dataset.passages() if side == "passage" else dataset.queries.texts
        return work.finish(dataset.name, texts), sum(len(work.plan.rows_of(shard)) for shard in missing)

    def _work(self, place: int, dataset: RetrievalDataset, side: Side, key: str) -> StoreWriter:
        model, texts = self._config.model, dataset.documents if side == "passage" else dataset.queries
        rows = shard_rows(len(texts))
        if key == ROLLING:  # so small that every turn has some
            rows = max(1, min(rows, int(len(texts) * self._config.refresh.refresh_share)))
        # Settings of reading texts are those of the run all through, and decide nothing within it.
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
        return StoreWriter(self._folder / EMBEDDINGS / key / f"{place}-{side}", plan)

    def _remove_but(self, *kept: str) -> None:
        """Remove the embeddings of rounds that are over, or were given up."""
        for there in (self._folder / EMBEDDINGS).glob("*"):
            if there.name not in kept:
                shutil.rmtree(there, ignore_errors=True)


def digest_of(snapshot: Snapshot) -> str:
    """Sixteen hexadecimal digits over the weights."""
    state = sha256()
    for name in sorted(snapshot):
        state.update(name.encode())
        state.update(snapshot[name].tobytes())
    return state.hexdigest()[:16]


def _with_all_splits(place: str, split: str) -> RetrievalDataset:
    """A prepared data set with the judgements of all its splits: they tell of false negatives."""
    return open_dataset(place, [split, *splits_of(fetched(place) or Path(place))])
