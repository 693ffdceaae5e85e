"""Writer of approximate indexes that are in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raytriever.index.approximate.index import ApproximateIndex
from raytriever.index.approximate.store import index_directory


def write_index(path: Path, index: ApproximateIndex, kind: str, meta: Mapping[str, Any]) -> None:
    with index_directory(path) as unfinished:
        unfinished.write_embeddings([index.embeddings], index.embeddings.shape)
        unfinished.save(index, kind, meta)
