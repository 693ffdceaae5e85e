"""BM25 indexes of the corpora that one call meets, each made once, when it is first asked for."""

from __future__ import annotations

from raytriever.data.dataset import RetrievalDataset
from raytriever.negatives.bm25 import Bm25Index


class LexicalIndexes:
    """Kept by what the corpus holds, so that data sets over the same one share an index."""

    def __init__(self) -> None:
        self._made: dict[str, Bm25Index] = {}

    def of(self, dataset: RetrievalDataset) -> Bm25Index:
        """The index of a data set's passages."""
        digest = dataset.documents.digest
        if digest not in self._made:
            self._made[digest] = Bm25Index(dataset.passages())
        return self._made[digest]
