"""Writer of approximate indexes that are in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raytriever.index.approximate.index import ApproximateIndex
from raytriever.index.approximate.store import save_index, write_embeddings
from raytriever.store.commit import committed_directory


def write_index(path: Path, index: ApproximateIndex, kind: str, meta: Mapping[str, Any]) -> None:
    content = dict(meta)
    with committed_directory(path, content) as folder:
        write_embeddings(folder, [index.embeddings], index.embeddings.shape)
        content |= save_index(folder, index, kind)
