"""The largest chunk whose activations fit into the memory that is free, found once and remembered.

1. The activations of two small parts are measured: their difference is what a text takes.
2. As many texts as that promises are tried; as long as memory runs out, half of them are.
3. What was found is kept in the cache folder, under all that it depends on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from raytriever.errors import ConfigError, StorageError
from raytriever.losses.workers import Workers
from raytriever.models.precision import autocast
from raytriever.models.retriever import Retriever
from raytriever.parallel.dropout_state import DropoutState
from raytriever.parallel.memory import activations, free_memory, is_out_of_memory
from raytriever.reading.structured import read_json
from raytriever.storage import cache_folder, write_atomically

FILE = "chunks.json"
# Of what is free: the rest is for what a layer computes and drops again, the losses' panels and the allocator's waste.
SHARE = 0.7
PROBE = 2


@dataclass(frozen=True)
class Circumstances:
    """All that the chunk depends on.

    Args:
        model: what kind, and its parameters.
        length: of the longest text, in tokens.
        precision: `fp32` or `bf16`.
        device: its name and its memory.
        strategy: that shards gradients and moments, or does not.
        workers: in the group.
    """

    model: str
    length: int
    precision: str
    device: str
    strategy: str
    workers: int

    @property
    def key(self) -> str:
        """One line."""
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items())


def find_chunk(
    encode: Callable[[int], Tensor],
    parameters: Sequence[nn.Parameter],
    texts: int,
    device: torch.device,
    circumstances: Circumstances,
    reserve: int = 0,
) -> int | None:
    """How many texts one worker should encode at a time; nothing where all of them fit, and caching would only cost.

    Args:
        encode: embeddings of that many texts of the longest length, differentiable.
        parameters: trained ones behind it.
        texts: of a worker's share of a batch, both sides.
        device: of this worker.
        circumstances: under which the answer is remembered.
        reserve: bytes that training will hold besides: gradients and moments, where there are none yet.

    Raises:
        ConfigError: not even one text fits.
    """
    file = cache_folder() / FILE
    chunk, of = _remembered(file).get(circumstances.key, (0, 0))
    # What all texts were is a limit from below only.
    if not chunk or (chunk == of and texts > of):
        chunk = _estimate(encode, texts, free_memory(device) - reserve)
        chunk = _first_that_fits(encode, parameters, chunk, device, reserve)
        write_atomically(file, json.dumps({**_remembered(file), circumstances.key: (chunk, texts)}, indent=1))
    return None if chunk >= texts else chunk


def agreed(chunk: int | None, texts: int, workers: Workers, device: torch.device) -> int | None:
    """The smallest chunk that any worker found."""
    smallest = -int(workers.maximum(torch.tensor(-(chunk or texts), device=device)))
    return None if smallest >= texts else smallest


def trial(retriever: Retriever, length: int, precision: str, device: torch.device) -> Callable[[int], Tensor]:
    """`encode` of `find_chunk`: texts of the longest length, encoded by the tower of the passages."""

    def encode(texts: int) -> Tensor:
        state = DropoutState.now(device)
        ids = torch.zeros(texts, length, dtype=torch.long, device=device)
        with autocast(precision, device):
            embeddings = retriever.encode({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, "passage")
        state.restore()
        return embeddings.float()

    return encode


def _estimate(encode: Callable[[int], Tensor], texts: int, free: int) -> int:
    try:
        few, more = activations(lambda: encode(PROBE)), activations(lambda: encode(2 * PROBE))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return PROBE
    per_text = max(1, (more - few) // PROBE)
    return max(1, min(texts, int(SHARE * free) // per_text))


def _first_that_fits(
    encode: Callable[[int], Tensor], parameters: Sequence[nn.Parameter], chunk: int, device: torch.device, reserve: int
) -> int:
    while not _fits(encode, parameters, chunk, device, reserve):
        if chunk == 1:
            raise ConfigError(
                "not even one text fits into the memory that is free",
                "--passage-length",
                "give a shorter one, a smaller model, or a strategy that shards more",
            )
        chunk //= 2
    return chunk


def _fits(
    encode: Callable[[int], Tensor], parameters: Sequence[nn.Parameter], chunk: int, device: torch.device, reserve: int
) -> bool:
    ballast = None
    try:
        # Pages of a processor that nobody writes to take nothing: there the estimate alone keeps room.
        ballast = torch.empty(reserve, dtype=torch.uint8, device=device) if device.type == "cuda" else None
        torch.autograd.grad(encode(chunk).sum(), parameters, allow_unused=True)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        del ballast
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return True


def _remembered(file: Path) -> dict[str, tuple[int, int]]:
    """What was found before; a file that cannot be read remembers nothing."""
    with suppress(OSError, StorageError):
        found = read_json(file, dict[str, list[int]], "remove it")
        return {key: (pair[0], pair[1]) for key, pair in found.items() if len(pair) == 2}
    return {}
