"""Settings of training, of its validations by retrieval, and of the refresh of hard negatives.

This module imports nothing heavy, because the command line reads it for `--help`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from raytriever.core.errors import ConfigError, flag_of, setting
from raytriever.core.paths import DEV_DATASETS
from raytriever.core.setting_declarations import Need, check_changed, option
from raytriever.data.data_settings import DataConfig
from raytriever.data.records_and_bad_rows import ORIGINS
from raytriever.retrieval.mining.mining_settings import MiningConfig

PRECISIONS = ("fp32", "bf16", "int8")
DEV_LOSS = "dev_loss"
CHECKPOINT_MINUTES = 10  # maximum minutes between two checkpoints
BEHIND = 2  # maximum number of unfinished validations; with more, training waits
STRATEGIES = ("ddp", "fsdp2", "zero1", "zero2", "zero3")
# Settings that do not change what a run computes; a resumed run may change them.
MAY_CHANGE = (
    "num_workers",
    "strategy",
    "offload_optimizer",
    "grad_cache_chunk",
    "grad_cache_tokens",
    "checkpoint_steps",
    "keep",
    "wait_minutes",
    "refresh_pool",
    "allow_split_overlap",  # a setting of the data, only checked at the start
    "activation_checkpointing",  # a setting of the model; recomputed activations are equal
)


def worker_count(value: Any) -> int | str:
    """Read a number of workers, at least 1, or `MIN:MAX` if it may change during the run. Else raise `ValueError`."""
    ends = re.fullmatch(r"0*([1-9][0-9]{0,5})(?::0*([1-9][0-9]{0,5}))?", str(value))
    if ends is None or isinstance(value, bool) or (ends[2] and int(ends[1]) > int(ends[2])):
        raise ValueError("give a number of processes such as 4, or a minimum and a maximum such as 1:4")
    return int(ends[1]) if ends[2] in (None, ends[1]) else f"{ends[1]}:{ends[2]}"


def worker_range(value: int | str) -> tuple[int, int]:
    """Return the minimum and the maximum of a setting that `worker_count` has read."""
    fewest, _, most = str(worker_count(value)).partition(":")
    return int(fewest), int(most or fewest)


def metric_name(value: Any) -> str:
    """Read the name of a metric: `nDCG@10` is `ndcg_at_10`. Raise `ValueError` for an empty name."""
    name = str(value).strip().lower().replace("@", "_at_")
    if not name:
        raise ValueError("give dev_loss, or a metric such as ndcg_at_10")
    return name


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of a training run: its length, optimizer, workers, validation and checkpoints."""

    batch_size: int = option(64, "queries of one step, over all workers", minimum=1)
    max_steps: int | None = option(
        None, f"optimizer steps, instead of {flag_of('epochs')}; a file may have both", minimum=1
    )
    epochs: float | None = option(
        None, "passes over the training examples", above=0, needs=Need("max_steps", negated=True)
    )
    learning_rate: float = option(5e-5, "peak learning rate of AdamW", above=0)
    warmup_steps: int = option(
        10, "steps over which the learning rate rises linearly to its peak; it then falls linearly to 0", minimum=0
    )
    weight_decay: float = option(0.01, "weight decay of AdamW; biases and norms have none", minimum=0)
    max_grad_norm: float = option(1.0, "gradients with a larger norm are scaled down to this norm", above=0, flag=False)
    dropout: float = option(
        0.0,
        "dropout of the encoder during training; the dropout in the model's config.json is ignored",
        minimum=0,
        maximum=0.9,
    )
    precision: str | None = option(
        None, "number format (default: bf16 if supported); int8 is not for training", choices=PRECISIONS
    )
    num_workers: int | str = option(
        1, "training processes; MIN:MAX follows the cluster size", reads=worker_count, metavar="N|MIN:MAX"
    )
    strategy: str = option(
        "ddp",
        "distribution of the model: a copy on each worker (ddp), shards (fsdp2), or DeepSpeed ZeRO stage 1 to 3",
        choices=STRATEGIES,
    )
    offload_optimizer: bool = option(
        False,
        "keep the state of the optimizer in CPU memory, with zero1, zero2 or zero3",
        needs=Need("strategy", "zero1", "zero2", "zero3"),
        flag=False,
    )
    grad_cache_chunk: int | None = option(
        None, "texts encoded at a time, at full length (default: what fits a GPU)", minimum=1
    )
    grad_cache_tokens: int | None = option(
        None, "tokens encoded at a time, with padding: more short texts fit than long ones", minimum=1, flag=False
    )
    seed: int = option(0, "random seed of data order, sampling and dropout", minimum=0, maximum=2**32 - 1)
    eval_steps: int = option(20, "steps between two validations", minimum=1)
    dev_batches: int = option(4, "global batches of the dev split in one validation", minimum=1)
    best_metric: str = option(
        DEV_LOSS, "metric of the best checkpoint, such as ndcg_at_10", reads=metric_name, metavar="METRIC"
    )
    patience: int = option(
        5, f"stop training after this many validations without an improvement of {flag_of('best_metric')}", minimum=1
    )
    checkpoint_steps: int | None = option(
        None,
        "steps between two checkpoints (default: one at each validation); the best checkpoint is always written",
        minimum=1,
    )
    keep: int = option(1, "number of newest checkpoints to keep, besides the best one", minimum=1)
    wait_minutes: float = option(15.0, "maximum minutes to wait for workers that do not fit on the cluster", above=0)

    @property
    def workers(self) -> tuple[int, int]:
        """Minimum and maximum number of workers."""
        return worker_range(self.num_workers)

    def sharing(self, available: int) -> int:
        """Return how many of the available workers train: the largest number that divides the global batch size."""
        return max(size for size in range(1, available + 1) if self.batch_size % size == 0)


OWN = "own"
_EVALUATED = (Need("best_metric", DEV_LOSS, negated=True), "eval_datasets")


@dataclass(frozen=True)
class ValidationConfig:
    """Settings of validation by retrieval: the dev data that is searched every `--eval-steps` of training."""

    eval_datasets: str = option(
        "",
        "data sets to search at each validation, separated by commas: `own`, or a PATH; add #SPLIT for a split other "
        f"than {flag_of('dev_split')} (default: `own` if {flag_of('best_metric')} needs it)",
        reads=DEV_DATASETS,
        metavar="PATH#SPLIT",
    )
    eval_corpus: int | None = option(
        None,
        "documents to search besides the judged ones, half found by BM25 and half random (default: all)",
        minimum=0,
        needs=_EVALUATED,
    )

    def sources(self, best_metric: str, dev_split: str) -> tuple[tuple[str, str], ...]:
        """Return the data sets and their splits; empty if no validation by retrieval takes place."""
        named = self.eval_datasets or ("" if best_metric == DEV_LOSS else OWN)
        parts = [part.strip().partition("#") for part in named.split(",") if part.strip()]
        return tuple((name, split or dev_split) for name, _, split in parts)


def check_validation(validation: ValidationConfig, training: TrainingConfig) -> None:
    """Raise `ConfigError` for settings that contradict each other."""
    check_changed(validation, training)
    if training.best_metric == DEV_LOSS and not validation.eval_datasets:
        return
    if not validation.sources(training.best_metric, "dev"):
        raise ConfigError(
            "names no data set", setting("eval_datasets", validation.eval_datasets), "give own, or a path"
        )


ASYNC, SYNC = "async", "sync"
METHOD = "dense"


@dataclass(frozen=True)
class RefreshConfig:
    """Settings of the refresh of hard negatives: its interval, its mining, and the processes that encode."""

    refresh_every: int | None = option(
        None, "steps between two refreshes of the hard negatives with the current encoder", minimum=1
    )
    refresh_mode: str = option(
        ASYNC,
        "async: training continues during a refresh; sync: training waits",
        choices=(ASYNC, SYNC),
        needs="refresh_every",
    )
    refresh_pool: int | str = option(
        1,
        "number of processes that encode and search, or its minimum and maximum",
        reads=worker_count,
        metavar="N|MIN:MAX",
        needs="refresh_every",
    )
    refresh_negatives: int = option(
        30,
        f"negatives that a refresh keeps for each query; each epoch samples {flag_of('negatives_per_query')} of them",
        minimum=1,
        needs="refresh_every",
    )
    refresh_relative_margin: float | None = option(
        None,
        "remove candidates that score too close to the positive: 0.05 keeps those up to 95 % of its score",
        minimum=0,
        needs="refresh_every",
    )

    @property
    def pool(self) -> tuple[int, int]:
        """Minimum and maximum number of processes that encode and search."""
        return worker_range(self.refresh_pool)

    @property
    def mining(self) -> MiningConfig:
        """Mining settings of each refresh."""
        return MiningConfig(
            method=METHOD, num_negatives=self.refresh_negatives, relative_margin=self.refresh_relative_margin
        )


def check_refresh(refresh: RefreshConfig, data: DataConfig, total_steps: int | None) -> None:
    """Raise `ConfigError` for settings that contradict each other."""
    check_changed(refresh)
    every = refresh.refresh_every
    if every is None:
        return
    if not data.negatives_per_query:
        what = "there are no hard negatives to refresh"
        raise ConfigError(what, setting("refresh_every"), f"also give {setting('negatives_per_query')}, such as 5")
    if total_steps is not None and every >= total_steps:
        what = f"no steps are left after the first refresh, at step {every} of {total_steps}"
        raise ConfigError(what, setting("refresh_every"), f"give less than {total_steps}, or train longer")
    from raytriever.data.sampling.training_examples import parse_mix  # imports numpy, which `--help` does not need

    local_batches = parse_mix(data.negatives_mix)
    if local_batches is not None and not local_batches[ORIGINS.index(METHOD)]:
        what = f"the mix {data.negatives_mix} has no fraction of refreshed negatives"
        raise ConfigError(what, setting("negatives_mix"), "add dense, as in dense=0.5")
