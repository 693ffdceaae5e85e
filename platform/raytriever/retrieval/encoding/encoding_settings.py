"""Settings of encoding a data set. This module imports nothing heavy, because `--help` reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raytriever.core.setting_declarations import option


def pool_size(value: Any) -> str:
    """Check the size of an actor pool, `N` or `MIN:MAX`, from 1 to 9,999. Raises `ValueError` with the remedy."""
    fewest, colon, most = str(value).partition(":")
    sizes = [fewest, most if colon else fewest]
    if not all(size.isdecimal() and 1 <= int(size) <= 9_999 for size in sizes) or int(sizes[0]) > int(sizes[1]):
        raise ValueError("give N or MIN:MAX actors, from 1 to 9,999, with MIN at most MAX")
    return str(value)


@dataclass(frozen=True)
class EncodeConfig:
    """Settings of encoding: the side of the data set, the storage type, and the processes that encode."""

    side: str = option("passage", "texts to encode, and the tower that encodes them", choices=("passage", "query"))
    dtype: str = option(
        "fp32",
        "number format of the stored embeddings, 4, 2 or 1 bytes per component; see docs/how-to/encode.md",
        choices=("fp32", "fp16", "int8"),
    )
    batch_tokens: int | None = option(
        None,
        "tokens of a batch with padding; those of texts over 512 tokens count more (default: chosen for the device)",
        minimum=1,
    )
    actors: str | None = option(
        None,
        "number of Ray actors that encode, or the smallest and the largest number (default: one per GPU if there are "
        "several GPUs or a cluster, else none: this process encodes)",
        reads=pool_size,
        metavar="N|MIN:MAX",
    )
    actor_gpus: float | None = option(
        None,
        "GPUs of an actor, a fraction if several actors share one (default: 1 if there is a GPU)",
        minimum=0,
        maximum=1,
    )
    actor_cpus: int = option(1, "CPU cores of an actor, and its number of threads", minimum=1)
