"""Embeddings in memory as a system, and the folder of vectors that another program would write of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raytriever.data.dataset import RetrievalDataset
from raytriever.evaluation.systems import EmbeddedSystem
from raytriever.retrieval.encoding.vectors_of_others import PASSAGES, QUERIES


def embedded(dataset: RetrievalDataset, vectors: dict[str, np.ndarray]) -> EmbeddedSystem:
    return EmbeddedSystem(dataset, np.arange(len(dataset.queries)), vectors[QUERIES], vectors[PASSAGES])


class Prepared(EmbeddedSystem):
    """Embeddings as a part of other systems."""

    def prepare(self) -> None: ...


def write(folder: Path, vectors: dict[str, np.ndarray], dataset: RetrievalDataset, form: str, kind: Any) -> Path:
    """Write vectors as another program would: in another order, with more passages than the data set has."""
    folder.mkdir()
    for side, ids in ((PASSAGES, dataset.documents.ids), (QUERIES, dataset.queries.ids)):
        names, rows = [*list(ids)[::-1], "of another data set"], [*vectors[side][::-1], vectors[side][0]]
        values = np.array(rows, kind)
        if form == "npy":
            half = len(names) // 2
            for number, part in enumerate((slice(half), slice(half, None))):
                np.save(folder / f"{side}-{number}.npy", values[part])
                (folder / f"{side}-{number}.ids.txt").write_text("".join(f"{name}\n" for name in names[part]))
        elif form == "parquet":
            lists = pa.array(list(values), pa.list_(pa.from_numpy_dtype(kind)))
            pq.write_table(pa.table({"id": names, "embedding": lists}), folder / f"{side}.parquet")
        else:
            lines = ({"id": name, "embedding": row.tolist()} for name, row in zip(names, values, strict=True))
            (folder / f"{side}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
