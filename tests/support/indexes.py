"""Writer of approximate indexes that are in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raytriever.core.store.commit import committed_directory
from raytriever.retrieval.index.approximate.ann_index import ApproximateIndex
from raytriever.retrieval.index.approximate.stored_index import save_index, write_embeddings


def write_index(path: Path, index: ApproximateIndex, kind: str, meta: Mapping[str, Any]) -> None:
    content = dict(meta)
    with committed_directory(path, content) as folder:
        write_embeddings(folder, [index.embeddings], index.embeddings.shape)
        content |= save_index(folder, index, kind)
