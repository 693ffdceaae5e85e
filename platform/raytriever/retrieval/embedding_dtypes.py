"""How embeddings are kept: as they are, in half the bytes, or in a quarter.

1. `fp32`: 4 bytes a component, memory-mapped when read.
2. `fp16`: 2 bytes, 11 significant bits; components beyond 65,504 cannot be kept.
3. `int8`: 1 byte and 4 a row: each row is divided by its largest component over 127 and rounded, so that a component
   is wrong by at most 1/254 of the row's largest.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from raytriever.errors import ModelError
from raytriever.reading.arrays import Shape, read_array

EMBEDDINGS, SCALES = "embeddings.npy", "scales.npy"
_REMEDY = "encode again"
_LEVELS = 127
_HALF_MAX = 65_504.0


def write_embeddings(folder: Path, embeddings: Float32[ndarray, "rows width"], dtype: str) -> None:
    """Write rows into a folder.

    Args:
        folder: exists and holds none yet.
        embeddings: finite.
        dtype: `fp32`, `fp16` or `int8`.

    Raises:
        ModelError: `fp16` cannot hold them.
    """
    if dtype == "fp32":
        np.save(folder / EMBEDDINGS, embeddings)
    elif dtype == "fp16":
        if (largest := float(np.abs(embeddings).max(initial=0))) > _HALF_MAX:
            raise ModelError(f"a component of {largest:.6g} is beyond fp16", "--dtype fp16", "store fp32 or int8")
        np.save(folder / EMBEDDINGS, embeddings.astype(np.float16))
    else:
        scales = np.abs(embeddings).max(axis=1, initial=0) / np.float32(_LEVELS)
        rounded = np.rint(embeddings / np.where(scales > 0, scales, 1)[:, None])
        np.save(folder / EMBEDDINGS, rounded.astype(np.int8))
        np.save(folder / SCALES, scales.astype(np.float32))


def read_embeddings(
    folder: Path, shape: Shape = (None, None), rows: slice | ndarray = slice(None)
) -> Float32[ndarray, "rows width"]:
    """What `write_embeddings` wrote, or some rows of it; a slice of `fp32` is memory-mapped, not read.

    The mapping is copy-on-write: torch complains of arrays it may not write to.

    Args:
        folder: holds them.
        shape: rows and width that there must be, where they are known.
        rows: which are wanted.

    Raises:
        StorageError: a file has another type or shape.
    """
    whole = read_array(folder / EMBEDDINGS, ["float32", "float16", "int8"], shape, _REMEDY, mapped="c")
    kept = whole[rows]
    if kept.dtype == np.int8:
        scales = read_array(folder / SCALES, ["float32"], (len(whole),), _REMEDY)[rows]
        return kept.astype(np.float32) * scales[:, None]
    return kept if kept.dtype == np.float32 else kept.astype(np.float32)
