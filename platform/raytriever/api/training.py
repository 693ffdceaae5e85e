"""Public API for hard negatives and training."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytriever.api.calls import checked, public, working
from raytriever.api.datasets import Dataset, data_settings, source_of
from raytriever.api.evaluation import metrics_of
from raytriever.api.models import ModelLike, Run, path_of, precision_of, settings_of
from raytriever.api.tables_in_memory import require_package
from raytriever.core.errors import ConfigError
from raytriever.core.paths import runs_folder
from raytriever.core.store.cache import cache_folder, hold
from raytriever.core.store.commit import read_manifest, sha256_of
from raytriever.core.store.disk import files_below
from raytriever.core.store.unfinished_pieces import make_once
from raytriever.core.terminal import warn
from raytriever.experiments.recipes import base_config
from raytriever.experiments.run.start_run import check_run, start_run
from raytriever.losses.user_loss_file import loss_setting
from raytriever.models.model_settings import READING
from raytriever.retrieval.mining.mining_settings import MiningConfig
from raytriever.tracking.tracker_names import read_trackers
from raytriever.training.run_config import from_dict

if TYPE_CHECKING:
    import pandas

    from raytriever.data.data_settings import DataConfig
    from raytriever.models.model_settings import ModelConfig

# Default of `negatives_per_query` if at least that many were mined: the number that `raytriever mine` recommends.
MOST_SAMPLED = 5


class HardNegatives:
    """Table of hard negatives, made by `mine_hard_negatives`.

    Attributes:
        path: directory of the table's Parquet files, which `raytriever train --negatives-table` also reads.
        settings: the settings of the mining.

    Examples:
        >>> hard = rt.mine_hard_negatives(data, encoder, num_negatives=2)
        >>> len(hard)
        192
        >>> hard.settings["method"]
        'dense'
    """

    def __init__(self, path: Path, meta: dict[str, Any]) -> None:
        self.path = path
        self.settings: dict[str, Any] = dict(meta.get("settings") or {})

    def __len__(self) -> int:
        """Number of pairs of a query and a negative."""
        return len(self._rows)

    @cached_property
    def _rows(self) -> Any:
        from raytriever.data.hard_negatives import read_ids

        return read_ids(self.path)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the pairs as a frame: ids of query and document, origin, rank (from 0), score and round of mining.

        Raises:
            ConfigError: pandas is not installed.
        """
        require_package("pandas", "to_pandas")
        return self._rows.to_pandas()

    def __repr__(self) -> str:
        return f"HardNegatives({str(self.path)!r})"


@public
def mine_hard_negatives(
    data: Dataset | str | os.PathLike[str],
    model: ModelLike | None = None,
    *,
    method: str | None = None,
    num_negatives: int = 10,
    range_min: int = 0,
    range_max: int | None = None,
    max_score: float | None = None,
    absolute_margin: float | None = None,
    relative_margin: float | None = None,
    sampling_strategy: str = "top",
    drop_answers: bool = False,
    judge: str = "",
    split: str = "train",
    precision: str | None = None,
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
) -> HardNegatives:
    """Find hard negatives: passages that a retriever ranks high for a query although they are not relevant.

    The settings have the names and meanings of sentence-transformers' `mine_hard_negatives`.

    Args:
        data: the data set.
        model: the encoder of the methods `dense` and `cross-query`.
        method: `bm25`, `dense`, `cross-query`, `gold` or `random`, or several, separated by commas; by default `dense`
            if there is a model, else `bm25`.
        num_negatives: largest number of negatives that each method keeps for a query.
        range_min: first rank that is used; rank 0 is the best passage that is not known to be relevant.
        range_max: first rank that is not used.
        max_score: candidates that score higher are removed.
        absolute_margin: smallest difference between the lowest score of a positive and the score of a candidate.
        relative_margin: this difference as a fraction of the positive's score: 0.05 keeps candidates up to 95 % of it.
        sampling_strategy: which of the remaining candidates are kept: `top` or `random`.
        drop_answers: whether candidates that hold an answer of the query are removed.
        judge: directory or hub name of a cross-encoder whose scores the margins use.
        split: the split whose queries get negatives.
        precision: precision of encoding, `fp32`, `bf16` or `int8`; by default the precision passed to `load_model`, or
            the faster of `fp32` and `bf16`.
        seed: seed of the random numbers.
        output: directory to write; by default a directory of the cache, so that the same call reuses it.

    Raises:
        ConfigError: settings contradict each other.
        DataError: the data set has no such split, or no negative is left.
        ModelError: the model cannot be loaded.
        StorageError: `output` exists, or cannot be written.

    Examples:
        >>> hard = rt.mine_hard_negatives(data, encoder, num_negatives=2)
        >>> sorted(hard.to_pandas()["origin"].unique())
        ['dense']
    """
    from raytriever.models.model_settings import ModelConfig
    from raytriever.retrieval.mining.mining_job import run_mining

    mining = MiningConfig(
        method=method or ("bm25" if model is None else "dense"),
        num_negatives=num_negatives,
        range_min=range_min,
        range_max=range_max,
        max_score=max_score,
        absolute_margin=absolute_margin,
        relative_margin=relative_margin,
        sampling_strategy=sampling_strategy,
        drop_answers=drop_answers,
        judge=judge,
    )
    checked(mining)
    config = ModelConfig() if model is None else settings_of(model)
    by_encoder = any(method in ("dense", "cross-query") for method in mining.methods)
    if model is None and by_encoder:
        raise ConfigError(f"{mining.method!r} needs an encoder", "model", "give one, such as load_model('minilm')")
    arithmetic = precision_of(precision, [model])
    source = data_settings(data)
    if output is not None:
        folder = path_of(output)
    else:
        decides = [split, dataclasses.asdict(mining), seed, arithmetic]
        name = data.name if isinstance(data, Dataset) else None
        folder = _cached_negatives(source, name, config if by_encoder else None, mining.judge, decides)

    def mine() -> None:
        run_mining(mining, config, source, folder, warn, split=split, precision=arithmetic, seed=seed)

    with working("mine_hard_negatives", folder if output is not None else None):
        if output is not None:
            mine()
        else:
            make_once(folder, mine)
    negatives = HardNegatives(folder, read_manifest(folder, verify=None)["meta"])
    hold(folder, negatives)
    return negatives


@public
def train(
    data: Dataset | str | os.PathLike[str],
    model: ModelLike = "minilm",
    loss: str | Callable[..., Any] = "mw",
    *,
    hard_negatives: HardNegatives | str | os.PathLike[str] | None = None,
    max_steps: int | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    temperature: float | None = None,
    num_workers: int | str | None = None,
    seed: int | None = None,
    output: str | os.PathLike[str] | None = None,
    run_name: str | None = None,
    recipe: str | None = None,
    fresh: bool = False,
    tracker: str = "mlflow",
    **settings: Any,
) -> Run:
    """Train an encoder with Ray Train. Evaluate BM25, and the encoder before and after training, on the test split.

    Ray runs on this machine during the call, unless the process is already connected to a cluster or `RAY_ADDRESS`
    names one. The run is recorded by MLflow (`MLFLOW_TRACKING_URI`, or `mlflow.db` in the working directory). Repeat an
    interrupted call to continue from the newest checkpoint. Repeating a finished call returns its result at once.

    Args:
        data: the data set. It needs a split `train`; `test` is for evaluation, and `dev` for validation and early
            stopping.
        model: the encoder to begin from.
        loss: its name, such as `mw`, `infonce` or `lsepair`. For a loss of your own, pass `FILE.py:NAME` or a function
            of an imported file (docs/tutorials/own-loss.md).
        hard_negatives: the result of `mine_hard_negatives`, or the directory of a table. Each query trains with
            `negatives_per_query` of them, by default up to 5.
        max_steps: number of optimizer steps.
        epochs: number of passes over the training examples if `max_steps` is not given; by default 1.
        batch_size: number of queries of one step, over all workers.
        learning_rate: AdamW's highest learning rate.
        temperature: divisor of the scores in the loss.
        num_workers: number of training processes; `"1:4"` adapts it to the size of the cluster.
        seed: seed of the order of the data, of dropout and of all other random numbers.
        output: the run directory; by default `runs/RUN-NAME`.
        run_name: the run's name at the tracker; by default it is made from the data set, model, loss, seed and the
            settings passed.
        recipe: named settings to start from: `pydocs`, `minilm`, `xlmr-base` or `xlmr-large`.
        fresh: whether to remove an earlier run in `output`.
        tracker: where the run is logged: `mlflow`, `wandb`, `tensorboard`, `trackio`, several of them separated by
            commas, or `none`.
        settings: any other setting of `raytriever train --help-all`, with `_` for `-`, such as `negatives_per_query`.

    Raises:
        ConfigError: a setting is unknown, is out of range, has no effect, or contradicts another; or `output` holds
            another run.
        DataError: the data set lacks a split, or is broken.
        ModelError: the model cannot be loaded.
        StorageError: a file cannot be written, or another process writes `output`.

    Examples:
        >>> hard = rt.mine_hard_negatives(data, model)  # doctest: +SKIP
        >>> run = rt.train(data, model, loss="mw", hard_negatives=hard, max_steps=500)  # doctest: +SKIP
    """
    explicit = {
        name: value
        for name, value in {
            "max_steps": max_steps,
            "epochs": epochs,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "temperature": temperature,
            "num_workers": num_workers,
            "seed": seed,
        }.items()
        if value is not None
    }
    explicit |= {"dataset": source_of(data), "loss": loss_setting(loss), **settings}
    if isinstance(data, Dataset):
        explicit.setdefault("max_bad_rows", data.max_bad_rows)
    config = settings_of(model)
    explicit |= {name: value for name in READING if (value := getattr(config, name)) is not None}
    if hard_negatives is not None:
        explicit |= _sampled(hard_negatives, settings)
    base = base_config(recipe, str(explicit["dataset"]))
    laid = from_dict({}, "train", base, explicit)
    name = check_run(laid, set(explicit) - {"max_bad_rows"}, run_name)
    trackers = read_trackers(tracker)
    folder = runs_folder() / name if output is None else path_of(output)
    with working("train", folder):
        finished = start_run(laid, base, folder, run_name, fresh, warn, trackers)
    metrics = metrics_of(finished.results)  # the run evaluates a single data set
    return Run(finished.path, {name: row for name, sets in metrics.items() for row in sets.values()})


def _sampled(hard_negatives: HardNegatives | str | os.PathLike[str], settings: dict[str, Any]) -> dict[str, Any]:
    if isinstance(hard_negatives, HardNegatives):
        mined = int(hard_negatives.settings.get("num_negatives") or MOST_SAMPLED)
        path = str(hard_negatives.path)
    elif isinstance(hard_negatives, str | os.PathLike):
        mined, path = MOST_SAMPLED, os.fspath(hard_negatives)
    else:
        raise ConfigError(
            f"has the type {type(hard_negatives).__name__}", "hard_negatives", "give a HardNegatives object or a path"
        )
    return {
        "negatives_table": path,
        "negatives_per_query": settings.get("negatives_per_query", min(mined, MOST_SAMPLED)),
    }


def _cached_negatives(
    data: DataConfig, name: str | None, model: ModelConfig | None, judge: str, decides: list[Any]
) -> Path:
    """Return the cache path of a table. It contains a digest of all that decides the table: data, encoder (if a method
    uses one), judge, and the settings in `decides`. `name` replaces the name of the data set in the path."""
    from raytriever.data.prepare.open_dataset import open_all_splits
    from raytriever.data.prepare.prepare_dataset import in_processes
    from raytriever.models.resolve_model import resolve_model

    opened = open_all_splits(data.dataset, max_bad_rows=data.max_bad_rows, run=in_processes)
    revisions = ({model.model: model.revision} if model else {}) | ({judge: None} if judge else {})
    weights: dict[str, str] = {}
    for encoder, revision in revisions.items():
        directory = resolve_model(encoder, revision)
        files = [file for file in files_below(directory) if file.suffix in (".safetensors", ".json", ".txt")]
        weights |= {f"{encoder}/{file.relative_to(directory)}": sha256_of(file) for file in files}
    decides = [opened.digest, *decides, weights, dataclasses.asdict(model) if model else None]
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    return cache_folder() / "negatives" / f"{name or opened.name}-{key[:16]}"
