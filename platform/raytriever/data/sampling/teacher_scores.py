"""Teacher scores, or graded relevance, of pairs of a query and a document: a table by position, and Parquet files.

In memory, a pair and its score take twelve bytes. On disk, a table is a committed directory (`store`) of files
`part-00000.parquet`, .... The manifest identifies the queries and documents. A single Parquet file with the same
columns is also read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.core.errors import DataError, setting
from raytriever.core.paths import SCORES
from raytriever.core.reading.arrays import NUMBER, TEXT, positions_of
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.hard_negatives import id_array, read_pairs
from raytriever.data.sampling.training_examples import Examples


@dataclass(frozen=True)
class TeacherTable:
    """Teacher scores of pairs."""

    pairs: Int64[ndarray, " pairs"]  # query position * number of documents + document position; ascending and distinct
    scores: Float32[ndarray, " pairs"]  # finite scores; higher is more relevant
    documents: int

    @classmethod
    def of(
        cls, dataset: RetrievalDataset, queries: ndarray, documents: ndarray, scores: ndarray, where: str
    ) -> TeacherTable:
        """Build a table from pairs of positions and their scores, in any order. Messages name the path `where`. Raise
        `DataError` if there is no pair, if a score is not finite, or if a pair has two scores."""
        if not len(scores):
            raise DataError("has no scores", where, "score some pairs first")
        with np.errstate(over="ignore"):
            scores = np.asarray(scores).astype(np.float32)
        bad = np.flatnonzero(~np.isfinite(scores))
        if len(bad):
            names = dataset.queries.ids[int(queries[bad[0]])], dataset.documents.ids[int(documents[bad[0]])]
            example = f"the first is of query {names[0]!r} and document {names[1]!r}"
            what = f"{len(bad)} of {len(scores)} scores are not finite, {example}"
            raise DataError(what, where, "score them again, or leave those pairs out")
        pairs = np.asarray(queries, dtype=np.int64) * len(dataset.documents) + documents
        order = np.argsort(pairs, kind="stable")
        pairs, scores = pairs[order], scores[order]
        again = pairs[1:] == pairs[:-1]
        contrary = pairs[1:][again & (scores[1:] != scores[:-1])]
        if len(contrary):
            at = divmod(int(contrary[0]), len(dataset.documents))
            names = dataset.queries.ids[at[0]], dataset.documents.ids[at[1]]
            what = f"query {names[0]!r} and document {names[1]!r} have two scores"
            raise DataError(what, where, "give each pair one score")
        first = np.append(True, ~again)
        return cls(pairs[first], scores[first], len(dataset.documents))

    @classmethod
    def of_grades(cls, dataset: RetrievalDataset, split: str) -> TeacherTable:
        """Build a table of those labels of a split that are above 0. If these labels are all equal, the table is empty.

        The label of a pair is that in the data (0 to 1), else its grade divided by the highest grade of the split."""
        rows = dataset.judgements[split]
        labels = np.where(np.isnan(rows.labels), rows.scores / rows.scores.max(initial=1), rows.labels)
        rows, labels = rows.where(labels > 0), labels[labels > 0]
        if len(np.unique(labels)) < 2:
            return cls.none(dataset)
        return cls.of(dataset, rows.queries, rows.documents, labels, f"{dataset.name} {split}")

    @classmethod
    def none(cls, dataset: RetrievalDataset) -> TeacherTable:
        """Return a table without scores."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.float32), len(dataset.documents))

    @classmethod
    def chained(cls, tables: Sequence[TeacherTable], query_starts: ndarray, document_starts: ndarray) -> TeacherTable:
        """Concatenate the tables of several data sets into one for the combined data set; see `starts_of`."""
        total = int(document_starts[-1])
        pairs = [
            (table.pairs // table.documents + query_start) * total + table.pairs % table.documents + document_start
            for table, query_start, document_start in zip(tables, query_starts, document_starts, strict=False)
        ]
        return cls(np.concatenate(pairs), np.concatenate([table.scores for table in tables]), total)

    def __len__(self) -> int:
        return len(self.pairs)

    def of_groups(
        self, queries: Int64[ndarray, " batch"], documents: Int64[ndarray, "batch group"]
    ) -> Float32[ndarray, "batch group"]:
        """Return the score of each document for the query of the document's row; NaN if there is no score."""
        return self.of_pairs(np.broadcast_to(queries[:, None], documents.shape), documents)

    def of_pairs(
        self, queries: Int64[ndarray, "*shape"], documents: Int64[ndarray, "*shape"]
    ) -> Float32[ndarray, "*shape"]:
        """Return the score of each pair; NaN if there is no score."""
        if not len(self):
            return np.full(documents.shape, np.nan, dtype=np.float32)
        pairs = queries * self.documents + documents
        rows = np.minimum(np.searchsorted(self.pairs, pairs), len(self) - 1)
        return np.where(self.pairs[rows] == pairs, self.scores[rows], np.float32(np.nan))

    @property
    def digest(self) -> str:
        """SHA-256 of pairs and scores."""
        state = hashlib.sha256(self.pairs.astype("<i8").tobytes())
        state.update(self.scores.astype("<f4").tobytes())
        return state.hexdigest()


@dataclass(frozen=True)
class Coverage:
    """Numbers of positives and of hard negatives for training, and how many of both the teacher has scored."""

    positives: int
    scored_positives: int
    negatives: int
    scored_negatives: int

    @classmethod
    def of(cls, table: TeacherTable, examples: Examples) -> Coverage:
        """Count the examples' positives and hard negatives, and those with a score."""
        counts = []
        for sampled in examples.sampled:
            owners = np.repeat(sampled.queries, np.diff(sampled.offsets))
            counts.append((len(owners), int(np.isfinite(table.of_pairs(owners, sampled.documents)).sum())))
        negatives = scored = 0
        if examples.negatives is not None:
            asks = np.zeros(len(examples.negatives.offsets) - 1, dtype=bool)
            asks[examples.positives.queries] = True
            owners = examples.negatives.queries
            mine = asks[owners]
            scores = table.of_pairs(owners[mine], examples.negatives.documents[mine])
            negatives, scored = int(mine.sum()), int(np.isfinite(scores).sum())
        return cls(sum(total for total, _ in counts), sum(there for _, there in counts), negatives, scored)

    def check(self, where: str) -> None:
        """Raise `DataError` if no positive or no hard negative has a score."""
        positives = "positives", self.positives, self.scored_positives
        for name, total, scored in (positives, ("hard negatives", self.negatives, self.scored_negatives)):
            if total and not scored:
                table = f"{setting('negatives')} the table of {setting('negatives_table')}"
                remedy = f"score them with `raytriever score`, and give {table}"
                raise DataError(f"has no score for any of the {total:,} {name} that are trained on", where, remedy)

    def __str__(self) -> str:
        missing = self.positives + self.negatives - self.scored_positives - self.scored_negatives
        line = (
            f"scores of {self.scored_positives:,} of {self.positives:,} positives and of {self.scored_negatives:,} of "
            f"{self.negatives:,} hard negatives"
        )
        return line + (f"; {missing:,} passages have no score and are left out" if missing else "")


KIND = "teacher scores"
_KINDS = {"query": TEXT, "document": TEXT, "score": NUMBER}


def identity(dataset: RetrievalDataset) -> dict[str, str]:
    """Return the digests of a data set's queries and documents. They do not depend on the opened splits."""
    return {"queries": dataset.queries.digest, "documents": dataset.documents.digest}


def read_scores(path: Path | str, dataset: RetrievalDataset) -> TeacherTable:
    """Read scores of a directory that `raytriever score` wrote, or of one Parquet file, for a data set. Raise
    `DataError` if the path does not exist or has scores of other texts, if a column is missing or has another type, or
    if an id is unknown, a score is not finite, or a pair has two scores."""

    def check(meta: Mapping[str, Any]) -> None:
        if meta.get("kind") != KIND:
            what = f"holds {meta.get('kind') or 'other data'} instead of teacher scores"
            raise DataError(what, str(path), SCORES.remedy)
        for name, digest in identity(dataset).items():
            if meta.get(name) != digest:
                of = f"those of {meta.get('dataset')} when scored, not of {dataset.name} now"
                raise DataError(
                    f"has scores of other {name}: {of}", str(path), "score this data set with `raytriever score`"
                )

    table = read_pairs(Path(path), SCORES, _KINDS, SCORES.remedy, check=check)
    query, document = (
        positions_of(table[name], id_array(ids), name, Path(path), lambda first: "give the scores of this data set")
        for name, ids in (("query", dataset.queries.ids), ("document", dataset.documents.ids))
    )
    return TeacherTable.of(dataset, query, document, table["score"].to_numpy(), str(path))
