"""Public API for search."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from raytriever.api.calls import checked, public, working
from raytriever.api.datasets import Dataset, data_settings
from raytriever.api.models import ModelLike, check_texts, loaded, path_of
from raytriever.core.errors import ConfigError
from raytriever.core.paths import DATASET
from raytriever.core.setting_declarations import check_changed
from raytriever.core.terminal import warn
from raytriever.core.unknown_names import check_known
from raytriever.retrieval.index.approximate.index_settings import INDEXES, IndexConfig

if TYPE_CHECKING:
    from pathlib import Path

    from raytriever.data.data_settings import DataConfig
    from raytriever.retrieval.search.exact_search import Hits, PassageIndex


class Index:
    """Searchable passages of a data set, made by `build_index`. The model and the embeddings stay in memory.

    An index never changes, and any number of threads may search it. If the passages change, build a new index: only new
    texts are encoded.

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
        # The first search computes norms and the order of ids. Search now, so that no search of the user waits.
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
            top_k: largest number of passages for each query, at least 1.
            threshold: lowest score of a returned passage; it replaces the threshold in `calibration.json`. `"kept"`
                means the threshold that was chosen for the target `kept`; `top_k` still limits the number of passages.

        Returns:
            For each query its `Hits`: a list, best first. There are fewer than `top_k` if the index has fewer passages,
            the threshold removes some, or a graph index (`hnsw`, `vamana`, `roargraph`) reaches fewer. If the
            model has a `calibration.json` for these passages, every hit has a `probability`. Then `answerable` says
            whether the confidence of the query reaches the threshold.

        Raises:
            ConfigError: `queries` is not a list of texts, a query is blank, or a number is out of range. Or `threshold`
                is `"kept"` and there is no calibration with this target.
            ModelError: the embedding of a query has NaN or infinity.
        """
        texts = check_texts(queries, "queries")
        for index, text in enumerate(texts):
            if not text.strip():
                raise ConfigError(f"query {index} is blank", "queries", "give a few words")
        if top_k < 1:
            raise ConfigError(f"{top_k} is out of range", "top_k", "give at least 1")
        if isinstance(threshold, str) and threshold != "kept":
            raise ConfigError(f"unknown threshold {threshold!r}", "threshold", "give a score, or 'kept'")
        if isinstance(threshold, float) and math.isnan(threshold):
            raise ConfigError("is not a number", "threshold", "give a score, such as 0.5")
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
    """Encode the passages of a data set for search. The embeddings are cached, and the next call reuses them.

    Args:
        model: the encoder.
        data: the data set whose passages are searched.
        kind: `exact`, or an approximate index: `flat`, `ivf`, `ivfpq`, `hnsw`, `vamana` or `roargraph`.
        output: directory of an approximate index. An index that exists there is opened, or built again if the passages
            have changed.
        seed: seed of the random numbers of an approximate index.
        calibration: `calibration.json` of this model and data set; by default the one in the model's directory.
        settings: settings of an approximate index, which `raytriever index --help` explains: `nprobe`, `ef_search`,
            `lists`, `code_bytes`, `m`, `ef_construction`, `nearest`, `training_split`.

    Raises:
        ConfigError: the kind is unknown or has no such setting, or the calibration belongs to another model.
        DataError: the data set cannot be opened.
        ModelError: the model cannot be loaded, or an embedding has NaN or infinity.
        StorageError: the cache or `output` cannot be written, or `output` holds another index.

    Examples:
        >>> index = rt.build_index(encoder, data)
        >>> hits = index.search(["what is abc", "what is jih"], top_k=3)
        >>> [len(each) for each in hits]
        [3, 3]
    """
    source, encoder = data_settings(data), loaded(model)
    decides = None if calibration is None else path_of(calibration, "calibration")
    DATASET.check(source.dataset, "dataset")
    if kind == "exact":
        unused = [name for name, value in [("output", output), *settings.items()] if value is not None]
        if unused:
            raise ConfigError("has no effect on an exact index", unused[0], "leave it out, or give another kind")
        from raytriever.data.prepare.open_dataset import open_dataset
        from raytriever.data.prepare.prepare_dataset import in_processes
        from raytriever.retrieval.search.exact_search import ExactIndex

        with working("build_index"):
            dataset = open_dataset(source.dataset, [], max_bad_rows=source.max_bad_rows, run=in_processes, log=warn)
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
    check_known("kind", kind, INDEXES, "kind", "exact")
    names = [name for name in vars(IndexConfig()) if name != "index"]
    for name in settings:
        check_known("setting", name, names, "build_index")
    if output is None:
        raise ConfigError("an approximate index needs a directory", "output", "give output='indexes/mine'")
    config = checked(IndexConfig(index=kind, **settings))
    check_changed(config)
    folder = path_of(output)

    from raytriever.retrieval.search.approximate_search import run_index

    with working("build_index", None if folder.exists() else folder):
        opened = run_index(
            config, model.config, data, folder, warn, precision=model.precision, seed=seed, calibration=calibration
        )
        return Index(kind, opened)
