"""Mine hard negatives with a checkpoint for one refresh round: encode, search, filter and commit the table.

negatives/rounds.json           ended rounds (the refresh ledger)
negatives/round-0001/           table of a round, kept while a run may resume with it
negatives/embeddings/step-500/  embeddings of the running round, and finished blocks of its mining

A round that was killed starts again with the same checkpoint, so it reuses the committed shards and blocks."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from raytriever.cluster.actor_pool import ActorPool, PooledCorpus
from raytriever.core.store.commit import remove
from raytriever.data.combine_datasets import combine
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.hard_negatives import NegativesTable, write_negatives
from raytriever.data.prepare.open_dataset import open_all_splits
from raytriever.data.records_and_bad_rows import ORIGINS
from raytriever.models.device_and_precision import choose_precision, default_device
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prompts import SIDES, Side
from raytriever.models.retriever import Retriever
from raytriever.retrieval.encoding.embed_corpus import encode_store, plan_embeddings
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
from raytriever.retrieval.encoding.shard_encoder import encode_in_process
from raytriever.retrieval.encoding.write_or_reuse_embeddings import StoreWriter
from raytriever.retrieval.mining.candidate_search import Embeddings, open_here
from raytriever.retrieval.mining.miner import MiningResult, mine
from raytriever.training.negative_refresh import remove_tables, round_path
from raytriever.training.run_config import Config

EMBEDDINGS, CHECKPOINTS = "embeddings", "checkpoints"


class MiningRounds:
    """Mining rounds of a run.

    Args:
        first: the first table of hard negatives if every round keeps some of its rows, else None.
        choose_pool: returns the pool that encodes and searches in a round; None if this process does that.
    """

    def __init__(
        self,
        config: Config,
        paths: list[str],
        folder: Path,
        first: NegativesTable | None = None,
        choose_pool: Callable[[], ActorPool | None] = lambda: None,
    ) -> None:
        self._config, self._paths, self._folder, self._first = config, paths, folder, first
        self._choose_pool = choose_pool

    def run(self, number: int, checkpoint: Path) -> dict[str, float]:
        """Mine one round, or the rest of an interrupted round, and commit its table.

        Returns:
            Metrics for the tracker.

        Raises:
            UserError: the mining fails for a reason that the user can correct.
        """
        began = time.monotonic()
        remove_tables(self._folder, self._folder.parent / CHECKPOINTS)
        for path in (self._folder / EMBEDDINGS).glob("*"):
            if path.name != checkpoint.name:
                remove(path)
        folder, config = self._folder / EMBEDDINGS / checkpoint.name, self._config
        pool = self._choose_pool()
        device, model = default_device(), ModelConfig(str(checkpoint))
        precision = config.training.precision or ("bf16" if pool and pool.gpus else choose_precision(None, device))
        retriever = load_for_encoding(model, precision, device)
        split, mined = config.data.train_split, list[MiningResult]()
        encoded, encode_seconds = 0, 0.0
        for index, dataset in enumerate(self._datasets):
            then = time.monotonic()
            stores = {
                side: _encode(folder / f"{index}-{side}", model, retriever, dataset, side, pool) for side in SIDES
            }
            encoded += sum(map(len, stores.values()))
            encode_seconds += time.monotonic() - then
            queries = stores["query"].read(dataset.positives(split).queries)
            mined.append(
                mine(
                    dataset,
                    split,
                    config.refresh.mining,
                    embeddings=Embeddings(
                        queries, stores["passage"], partial(PooledCorpus, pool) if pool else open_here
                    ),
                    seed=config.training.seed,
                    round=number,
                    finished=folder / f"mined-{index}",
                )
            )
        table = self._table(mined)
        write_negatives(round_path(self._folder, number), table, combine(self._datasets), replace=True)
        remove(folder)
        seconds = {"encode": encode_seconds, "mine": time.monotonic() - began - encode_seconds}
        times = {f"refresh_{name}_seconds": value for name, value in seconds.items()}
        return _metrics(mined) | {"refresh_encoded": float(encoded), **times}

    @cached_property
    def _datasets(self) -> list[RetrievalDataset]:
        return [open_all_splits(path, [self._config.data.train_split]) for path in self._paths]

    def _table(self, mined: Sequence[MiningResult]) -> NegativesTable:
        starts = [0, *itertools.accumulate(len(dataset.documents) for dataset in self._datasets[:-1])]
        tables = [block.table for block in mined]
        table = tables[0] if len(tables) == 1 else NegativesTable.chained(tables, starts)
        if self._first is None:
            return table
        first, combined = self._first, combine(self._datasets)
        kept = ~np.isin(first.origins, [ORIGINS.index(name) for name in self._config.refresh.mining.methods])
        columns = (first.queries, first.documents, first.origins, first.ranks, first.scores, first.rounds)
        others = NegativesTable.of(combined, *(column[kept] for column in columns))
        return NegativesTable.merged(combined, [table, others])


def _encode(
    path: Path, model: ModelConfig, retriever: Retriever, dataset: RetrievalDataset, side: Side, pool: ActorPool | None
) -> EmbeddingStore:
    plan = plan_embeddings(model, retriever, dataset, side, "fp32")
    run = pool.encode if pool else encode_in_process
    return encode_store(StoreWriter(path, plan, is_temporary=True), model, retriever, dataset, run)


def _metrics(mined: Sequence[MiningResult]) -> dict[str, float]:
    """Return the fraction of candidates removed for each reason, and of queries with too few and with no negatives."""
    totals: dict[str, int] = {}
    for block in mined:
        for reasons in block.counts.values():
            for name, count in reasons.items():
                totals[name] = totals.get(name, 0) + count
    candidates = totals.pop("candidates", 0)
    names = {reason: f"refresh_fraction_{re.sub('[^a-z]', '_', reason)}" for reason in totals}
    fractions = {names[reason]: count / max(1, candidates) for reason, count in totals.items()}
    counts = np.concatenate([block.counts_per_query for block in mined])
    fractions["refresh_queries_short"] = float((counts < mined[0].wanted).mean())
    fractions["refresh_queries_without"] = float((counts == 0).mean())
    return {"refresh_candidates": float(candidates), **fractions}
