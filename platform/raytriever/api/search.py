"""Search of the public API."""

from __future__ import annotations

import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from raytriever.api.calls import public, working
from raytriever.api.datasets import Dataset, Texts, source_of
from raytriever.api.models import ModelLike, check_texts, loaded, path_of
from raytriever.errors import ConfigError
from raytriever.index.approximate.config import INDEXES, IndexConfig
from raytriever.options import check_changed, check_options, did_you_mean
from raytriever.paths import DATASET
from raytriever.terminal import warn

if TYPE_CHECKING:
    from jaxtyping import Int64
    from numpy import ndarray

    from raytriever.data.dataset import Documents
    from raytriever.search.exact import Hits


class Searcher(Protocol):
    """Index in memory that answers queries; it never changes."""

    @property
    def documents(self) -> Documents:
        """Passages that are searched."""

    def search(self, queries: Sequence[str], top: int, threshold: float | None = None) -> list[Hits]:
        """Return the best passages of each query."""

    def edited(self, keep: Int64[ndarray, " kept"], added: Documents) -> Searcher:
        """Return the index of some of the passages, by ascending positions, and of others, which are encoded."""


class Index:
    """Searchable passages of a data set, made by `build_index`. Model and embeddings stay loaded.

    Any number of threads may search while one changes the passages: a search sees all of a change, or nothing of it.
    Changes are in this program alone. They encode only new passages.

    Attributes:
        kind: `exact`, or the kind of the approximate index.

    Examples:
        >>> index = rt.build_index(encoder, data)
        >>> [[best]] = index.search(["what is abc"], top_k=1)
        >>> isinstance(best, rt.Hit)
        True
    """

    def __init__(self, kind: str, load: Callable[[], Searcher]) -> None:
        self.kind, self._load = kind, load
        self._changing = threading.Lock()
        self._current: Searcher | None = load()
        self._warm_up(self._searcher)

    def __len__(self) -> int:
        """Number of passages."""
        return len(self._searcher.documents)

    @public
    def search(self, queries: Sequence[str], *, top_k: int = 5, threshold: float | None = None) -> list[Hits]:
        """Find the passages with the highest scores for each query.

        Args:
            queries: the questions, none of them blank.
            top_k: how many passages, at least 1.
            threshold: lowest score that is returned; it decides instead of the one of `calibration.json`.

        Returns:
            For each query its `Hits`: a list, best first. There are fewer than `top_k` where the index has fewer
            passages or the threshold removes some. If the model has a `calibration.json` for these passages, every
            hit has a `probability`, and `answerable` says whether the confidence reaches the threshold.

        Raises:
            ConfigError: `queries` is no list of texts, a query is blank, a number is out of range, or the index is
                closed.
            ModelError: the embedding of a query is not finite.
        """
        texts = check_texts(queries, "queries")
        for index, text in enumerate(texts):
            if not text.strip():
                raise ConfigError(f"query {index} is empty", "queries", "give a few words")
        if top_k < 1:
            raise ConfigError(f"{top_k} is out of range", "top_k", "give at least 1")
        if threshold is not None and math.isnan(threshold):
            raise ConfigError("is no number", "threshold", "give a score, such as 0.5")
        searcher = self._searcher
        with working("search"):
            return searcher.search(texts, top_k, threshold) if texts else []

    @public
    def add(self, passages: Texts) -> None:
        """Add passages; the next search finds them. The data set on the disk does not change.

        Args:
            passages: `{id: text}` or `{id: {"title": ..., "text": ...}}`, with ids that the index does not have.

        Raises:
            ConfigError: a passage is empty or no text, an id is in the index, the kind of index cannot be changed, more
                than a fifth of an approximate index would have changed, or the index is closed.
            ModelError: an embedding is not finite.

        Examples:
            >>> index = rt.build_index(encoder, data)
            >>> index.add({"new": {"title": "Vienna", "text": "It lies on the Danube."}})
            >>> [[best]] = index.search(["vienna danube"], top_k=1)
            >>> best.document_id
            'new'
        """
        with self._change("add") as searcher:
            ids, titles, texts = _columns(passages)
            there = set(ids).intersection(searcher.documents.ids)
            if there:
                first = next(each for each in ids if each in there)
                raise ConfigError(
                    f"the index has a passage {first!r}", "passages", "remove it first, or give another id"
                )
            if ids:
                self._edit(range(len(searcher.documents)), ids, titles, texts)

    @public
    def remove(self, ids: Sequence[str]) -> None:
        """Remove passages; the next search does not find them. The data set on the disk does not change.

        Args:
            ids: ids of passages of the index, each once.

        Raises:
            ConfigError: an id is repeated or unknown, the kind of index cannot be changed, more than a fifth of an
                approximate index would have changed, or the index is closed.

        Examples:
            >>> index = rt.build_index(encoder, data)
            >>> [[best]] = index.search(["what is abc"], top_k=1)
            >>> index.remove([best.document_id])
            >>> len(index)
            159
        """
        with self._change("remove") as searcher:
            names = check_texts(ids, "ids")
            [repeated] = Counter(names).most_common(1) or [("", 1)]
            if repeated[1] > 1:
                raise ConfigError(f"{repeated[0]!r} is repeated", "ids", "give each id once")
            places = {name: place for place, name in enumerate(searcher.documents.ids)}
            unknown = next((name for name in names if name not in places), None)
            if unknown is not None:
                raise ConfigError(f"the index has no passage {unknown!r}", "ids", "give ids of its passages")
            if names:
                removed = {places[name] for name in names}
                self._edit([place for place in places.values() if place not in removed], [], [], [])

    @public
    def refresh(self) -> None:
        """Read the data set again, and search its passages of now; texts that were encoded before are not encoded.

        Changes by `add` and `remove` that the data set does not have are lost. An approximate index is updated in its
        directory, or built again, as by `build_index`.

        Raises:
            UserError: an error of `build_index`, such as a data set that is gone, or the index is closed. After it
                the index is as before.
        """
        with self._change("refresh"):
            self._replace(self._load())

    def close(self) -> None:
        """Free the memory of the index; later calls raise `ConfigError`."""
        with self._changing:
            self._current = None

    @property
    def _searcher(self) -> Searcher:
        searcher = self._current
        if searcher is None:
            raise ConfigError("the index is closed", remedy="build it again with build_index")
        return searcher

    @contextmanager
    def _change(self, name: str) -> Iterator[Searcher]:
        """Do one change at a time."""
        with self._changing, working(name):
            yield self._searcher

    def _edit(self, keep: Sequence[int], ids: list[str], titles: list[str], texts: list[str]) -> None:
        import numpy as np

        from raytriever.data.dataset import Documents

        self._replace(self._searcher.edited(np.array(keep, np.int64), Documents(ids, titles, texts)))

    def _replace(self, searcher: Searcher) -> None:
        self._warm_up(searcher)
        self._current = searcher

    def _warm_up(self, searcher: Searcher) -> None:
        """Search once, so that no search of the program waits for compiling, for norms or for the order of ids."""
        from raytriever.index.score import compile_scores

        compile_scores()
        searcher.search(["warm up"], 1)

    def __repr__(self) -> str:
        return f"Index({self.kind!r}, {len(self):,} passages)" if self._current else f"Index({self.kind!r}, closed)"


def _columns(passages: Texts) -> tuple[list[str], list[str], list[str]]:
    """Return the ids, titles and texts of passages; raises `ConfigError`."""
    if not isinstance(passages, Mapping):
        raise ConfigError("is no dictionary", "passages", "give {id: text}")
    from raytriever.data.keys import as_utf8

    columns: tuple[list[str], list[str], list[str]] = [], [], []
    for name, passage in passages.items():
        row = passage if isinstance(passage, Mapping) else {"text": passage}
        title, text = row.get("title", ""), row.get("text")
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"the id {name!r} is no text, or empty", "passages", "give {id: text}")
        if not isinstance(title, str) or not isinstance(text, str):
            raise ConfigError(f"the passage {name!r} is no text", "passages", 'give a text, or {"title", "text"}')
        if not (title.strip() or text.strip()):
            raise ConfigError(f"the passage {name!r} is empty", "passages", "give its title or text, or leave it out")
        for column, value in zip(columns, (name, title, text), strict=True):
            column.append(as_utf8(value))
    return columns


@public
def build_index(
    model: ModelLike,
    data: Dataset | str | os.PathLike[str],
    *,
    kind: str = "exact",
    output: str | os.PathLike[str] | None = None,
    seed: int = 0,
    **settings: Any,
) -> Index:
    """Encode the passages of a data set for search; embeddings are kept in the cache, and found there again.

    Args:
        model: the encoder.
        data: whose passages are searched.
        kind: `exact`, or an approximate index: `flat`, `ivf`, `ivfpq`, `hnsw`, `vamana` or `roargraph`.
        output: directory of an approximate index: written there, or opened if it exists.
        seed: fixes what an approximate index draws.
        settings: of an approximate index, as `raytriever index --help` lists them: `effort`, `lists`, `code_bytes`,
            `degree`, `build_beam`, `nearest`, `training_split`.

    Raises:
        ConfigError: an unknown kind, or a setting that it does not have.
        DataError: the data set cannot be opened.
        ModelError: the model cannot be loaded, or an embedding is not finite.
        StorageError: the cache or `output` cannot be written, or `output` holds another index.

    Examples:
        >>> index = rt.build_index(encoder, data)
        >>> hits = index.search(["what is abc", "what is jih"], top_k=3)
        >>> [len(each) for each in hits]
        [3, 3]
    """
    source, encoder = source_of(data), loaded(model)
    rate = data.max_bad_rows if isinstance(data, Dataset) else 0.01
    DATASET.check(source, "dataset")
    if kind == "exact":
        unused = [name for name, value in [("output", output), *settings.items()] if value is not None]
        if unused:
            raise ConfigError("has no effect on an exact index", unused[0], "leave it out, or give another kind")
        from raytriever.data.prepare.open import open_dataset
        from raytriever.data.prepare.pipeline import in_processes
        from raytriever.search.exact import ExactIndex

        def load() -> ExactIndex:
            dataset = open_dataset(source, [], max_bad_rows=rate, run=in_processes, report=warn)
            return ExactIndex.build(encoder.config, encoder.retriever, dataset)

        with working("build_index"):
            return Index(kind, load)
    return _approximate(encoder, source, kind, output, seed, rate, settings)


def _approximate(
    model: Any, source: str, kind: str, output: str | os.PathLike[str] | None, seed: int, rate: float, settings: Any
) -> Index:
    if kind not in INDEXES:
        raise ConfigError(f"unknown kind {kind!r}", "kind", did_you_mean(kind, ("exact", *INDEXES)))
    names = [name for name in vars(IndexConfig()) if name != "index"]
    for name in settings:
        if name not in names:
            raise ConfigError(f"unknown setting {name!r}", "build_index", did_you_mean(name, names))
    if output is None:
        raise ConfigError("an approximate index is kept in a directory", "output", "give output='indexes/mine'")
    config = IndexConfig(index=kind, **settings)
    check_options(config)
    check_changed(config)
    folder = path_of(output)

    from raytriever.search.approximate import IndexJob, run_index

    job = IndexJob(
        dataset=source, config=config, model=model.config, precision=model.precision, max_bad_rows=rate, seed=seed
    )
    with working("build_index", None if folder.exists() else folder):
        return Index(kind, lambda: run_index(job, folder, warn))
