"""Search of the public API."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from raytriever.api.calls import checked, public, working
from raytriever.api.datasets import Dataset, data_settings
from raytriever.api.models import ModelLike, check_texts, loaded, path_of
from raytriever.core.errors import ConfigError
from raytriever.core.options import check_changed, did_you_mean
from raytriever.core.paths import DATASET
from raytriever.core.terminal import warn
from raytriever.retrieval.index.approximate.index_settings import INDEXES, IndexConfig

if TYPE_CHECKING:
    from pathlib import Path

    from raytriever.data.data_settings import DataConfig
    from raytriever.retrieval.search.exact_search import Hits, PassageIndex


class Index:
    """Searchable passages of a data set, made by `build_index`. Model and embeddings stay loaded.

    An index never changes, and any number of threads may search it. For other passages build a new one: only new texts
    are encoded.

    Attributes:
        kind: `exact`, or the kind of the approximate index.

    Examples:
        >>> index = rt.build_index(encoder, data)
        >>> [[best]] = index.search(["what is abc"], top_k=1)
        >>> isinstance(best, rt.Hit)
        True
    """

    def __init__(self, kind: str, searcher: PassageIndex) -> None:
        self.kind, self._searcher = kind, searcher
        # No search of the program waits for norms or for the order of ids.
        searcher.search(["warm up"], 1)

    def __len__(self) -> int:
        """Number of passages."""
        return len(self._searcher.documents)

    @public
    def search(
        self, queries: Sequence[str], *, top_k: int = 5, threshold: float | Literal["kept"] | None = None
    ) -> list[Hits]:
        """Find the passages with the highest scores for each query.

        Args:
            queries: the questions, none of them blank.
            top_k: how many passages, at least 1.
            threshold: lowest score that is returned; it decides instead of the one of `calibration.json`. With `"kept"`
                it is the score of the passages to keep, by `calibration.json`, of which `top_k=100` returns all.

        Returns:
            For each query its `Hits`: a list, best first. There are fewer than `top_k` where the index has fewer
            passages, the threshold removes some, or a graph (`hnsw`, `vamana`, `roargraph`) does not reach them. If the
            model has a `calibration.json` for these passages, every hit has a `probability`, and `answerable` says
            whether the confidence reaches the threshold.

        Raises:
            ConfigError: `queries` is no list of texts, a query is blank, or a number is out of range, or no
                calibration has passages to keep.
            ModelError: the embedding of a query is not finite.
        """
        texts = check_texts(queries, "queries")
        for index, text in enumerate(texts):
            if not text.strip():
                raise ConfigError(f"query {index} is empty", "queries", "give a few words")
        if top_k < 1:
            raise ConfigError(f"{top_k} is out of range", "top_k", "give at least 1")
        if isinstance(threshold, str) and threshold != "kept":
            raise ConfigError(f"unknown threshold {threshold!r}", "threshold", "give a score, or 'kept'")
        if isinstance(threshold, float) and math.isnan(threshold):
            raise ConfigError("is no number", "threshold", "give a score, such as 0.5")
        with working("search"):
            return self._searcher.search(texts, top_k, threshold) if texts else []

    def __repr__(self) -> str:
        return f"Index({self.kind!r}, {len(self):,} passages)"


@public
def build_index(
    model: ModelLike,
    data: Dataset | str | os.PathLike[str],
    *,
    kind: str = "exact",
    output: str | os.PathLike[str] | None = None,
    seed: int = 0,
    calibration: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Index:
    """Encode the passages of a data set for search; embeddings are kept in the cache, and found there again.

    Args:
        model: the encoder.
        data: whose passages are searched.
        kind: `exact`, or an approximate index: `flat`, `ivf`, `ivfpq`, `hnsw`, `vamana` or `roargraph`.
        output: directory of an approximate index: written there, or opened if it exists. If the passages have changed
            since, it is built again.
        seed: fixes what an approximate index draws.
        calibration: `calibration.json` of this model and data set; by default that of the model's directory.
        settings: of an approximate index, as `raytriever index --help` lists them: `effort`, `lists`, `code_bytes`,
            `degree`, `build_beam`, `nearest`, `training_split`.

    Raises:
        ConfigError: an unknown kind, a setting that it does not have, or a calibration of another model.
        DataError: the data set cannot be opened.
        ModelError: the model cannot be loaded, or an embedding is not finite.
        StorageError: the cache or `output` cannot be written, or `output` holds another index.

    Examples:
        >>> index = rt.build_index(encoder, data)
        >>> hits = index.search(["what is abc", "what is jih"], top_k=3)
        >>> [len(each) for each in hits]
        [3, 3]
    """
    source, encoder = data_settings(data), loaded(model)
    decides = None if calibration is None else path_of(calibration)
    DATASET.check(source.dataset, "dataset")
    if kind == "exact":
        unused = [name for name, value in [("output", output), *settings.items()] if value is not None]
        if unused:
            raise ConfigError("has no effect on an exact index", unused[0], "leave it out, or give another kind")
        from raytriever.data.prepare.open_dataset import open_dataset
        from raytriever.data.prepare.prepare_dataset import in_processes
        from raytriever.retrieval.search.exact_search import ExactIndex

        with working("build_index"):
            dataset = open_dataset(source.dataset, [], max_bad_rows=source.max_bad_rows, run=in_processes, report=warn)
            return Index(kind, ExactIndex.build(encoder.config, encoder.retriever, dataset, decides))
    return _approximate(encoder, source, kind, output, seed, decides, settings)


def _approximate(
    model: Any,
    data: DataConfig,
    kind: str,
    output: str | os.PathLike[str] | None,
    seed: int,
    calibration: Path | None,
    settings: Any,
) -> Index:
    if kind not in INDEXES:
        raise ConfigError(f"unknown kind {kind!r}", "kind", did_you_mean(kind, ("exact", *INDEXES)))
    names = [name for name in vars(IndexConfig()) if name != "index"]
    for name in settings:
        if name not in names:
            raise ConfigError(f"unknown setting {name!r}", "build_index", did_you_mean(name, names))
    if output is None:
        raise ConfigError("an approximate index is kept in a directory", "output", "give output='indexes/mine'")
    config = checked(IndexConfig(index=kind, **settings))
    check_changed(config)
    folder = path_of(output)

    from raytriever.retrieval.search.approximate_search import run_index

    with working("build_index", None if folder.exists() else folder):
        opened = run_index(
            config, model.config, data, folder, warn, precision=model.precision, seed=seed, calibration=calibration
        )
        return Index(kind, opened)
