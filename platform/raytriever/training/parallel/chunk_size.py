"""Chunk size of gradient caching: set by the user, or the largest size whose activations fit into the free memory.

1. Measure the activations of two small chunks. Their difference gives the memory of one text.
2. Try the number of texts that this difference predicts. Halve the number as long as memory runs out.
3. All workers use the smallest result. If a later step runs out of memory, the chunk is halved. A file stores the
   halved size under a key of all that the size depends on. A later search with this key tries no larger chunk."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor, nn

from raytriever.core.errors import ConfigError, StorageError, setting
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.core.store.cache import cache_folder
from raytriever.core.store.commit import write_atomically
from raytriever.losses.distributed import WorkerGroup
from raytriever.models.device_and_precision import autocast
from raytriever.models.device_memory import free_memory, is_out_of_memory, memory_error
from raytriever.models.packing import TokenBatch, is_packed, lengths_of, move, texts_of, tokens_of
from raytriever.models.retriever import Retriever
from raytriever.training.memory.memory_of_states import FLOAT, StateBytes, WorkerTexts, batch_bytes
from raytriever.training.parallel.gradient_caching import DropoutState
from raytriever.training.training_settings import TrainingConfig


def activations(forward: Callable[[], object]) -> int:
    """Return the bytes that a forward pass saves for backward, also parameters. Shared storages are counted once."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(sizes.values())


FILE = "chunks.json"
# Fraction of the free memory that activations may use. The rest is for temporary tensors, and for fragmentation.
FRACTION = 0.7
PROBE = 2  # number of texts of the smaller of the two measured chunks
# Types of devices for which a chunk size is searched. There is no search on a CPU: its memory is shared and paged, and
# a trial takes as long as a training step.
SEARCHED = ("cuda",)


def find_chunk(
    encode: Callable[[int], Tensor],
    parameters: Sequence[nn.Parameter],
    texts: int,
    device: torch.device,
    key: str,
    reserve: int = 0,
) -> int | None:
    """Return the number of texts that one worker can encode at a time; None if all texts fit.

    Args:
        encode: computes differentiable embeddings of a given number of texts of the greatest length.
        parameters: trained parameters that `encode` uses.
        texts: number of queries and passages in a worker's local batch.
        key: everything that the chunk size depends on; an earlier run may have stored a halved size under this key.
        reserve: bytes that training allocates later: gradients, moments, embeddings of the batch, scores.
    """
    chunk = _estimate(encode, min(texts, _halved().get(key, texts)), free_memory(device) - reserve)
    while not _fits(encode, parameters, chunk, device, reserve):
        if chunk == 1:
            raise memory_error("not even one text fits into the free memory", device, "passage_length")
        chunk //= 2
    return None if chunk >= texts else chunk


def trial(retriever: Retriever, length: int, precision: str, device: torch.device) -> Callable[[int], Tensor]:
    """Return a function for `find_chunk` that encodes passages of `length` tokens, packed or padded as in training."""

    def encode(texts: int) -> Tensor:
        state = DropoutState.now(device)
        ids = [np.zeros(length, dtype=np.int64)] * texts
        tokens = retriever.pack(ids, "passage") if retriever.packs else retriever.pad(ids)
        with autocast(precision, device):
            embeddings = retriever.encode(move(tokens, lambda tensor: tensor.to(device)), "passage")
        state.restore()
        return embeddings.float()

    return encode


def _estimate(encode: Callable[[int], Tensor], texts: int, free: int) -> int:
    try:
        few, more = activations(lambda: encode(PROBE)), activations(lambda: encode(2 * PROBE))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return min(texts, PROBE)
    per_text = max(1, (more - few) // PROBE)
    return max(1, min(texts, int(FRACTION * free) // per_text))


def _fits(
    encode: Callable[[int], Tensor], parameters: Sequence[nn.Parameter], chunk: int, device: torch.device, reserve: int
) -> bool:
    ballast = None
    try:
        # On a CPU, pages that are never written take no memory. So on a CPU, only the estimate includes the reserve.
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


def _halved() -> dict[str, int]:
    """Return the stored sizes of halved chunks, in texts, by key. The result is empty if the file cannot be read."""
    with suppress(OSError, StorageError):
        return read_json(cache_folder() / FILE, dict[str, int], "remove it")
    return {}


class ChunkChoice:
    """Chooser of a worker's chunk size in tokens, at the start of training and after steps that ran out of memory.

    Create this object before the strategy, which may shard the parameters, and before the optimizer has state."""

    def __init__(
        self, settings: TrainingConfig, retriever: Retriever, precision: str, device: torch.device, workers: WorkerGroup
    ) -> None:
        self._settings, self._retriever, self._precision = settings, retriever, precision
        self._device, self._workers = device, workers
        self._longest = max(retriever.description.query_length, retriever.description.passage_length)
        self._key = self._describe()
        texts, tokens = settings.grad_cache_chunk, settings.grad_cache_tokens
        limits = [limit for limit in (texts and texts * self._longest, tokens) if limit is not None]
        self._given = min(limits, default=None)
        self._is_searched = self._given is None and device.type in SEARCHED

    def _describe(self) -> str:
        """Return everything that the largest chunk depends on, as one line."""
        retriever, settings, name = self._retriever, self._settings, self._device.type
        if name == "cuda":
            properties = torch.cuda.get_device_properties(self._device)
            name = f"{properties.name} {properties.total_memory}"
        parameters = list(retriever.parameters())
        weights, trained = sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad)
        return (
            f"model {type(retriever.passage.backbone).__name__} {weights} {trained}, length {self._longest}, "
            f"precision {self._precision}, texts {'packed' if retriever.packs else 'padded'}, device {name}, "
            f"strategy {settings.strategy}{' offloaded' * settings.offload_optimizer}, workers {self._workers.size}"
        )

    def first(self, texts: int) -> int | None:
        """Return the initial chunk size in tokens; None means the whole batch. All workers call this method."""
        given = self._settings.grad_cache_chunk
        if given is not None and given > texts:
            what = f"a chunk of {given} is more than the {texts} texts of a worker's local batch"
            raise ConfigError(what, setting("grad_cache_chunk"), f"give at most {texts}, or leave it out")
        if not self._is_searched:
            return self._given
        fitting = self.search(texts)
        # Several workers use gradient caching even if all texts fit, because without it they cannot vote on whether
        # one of them ran out of memory. A single chunk is not encoded twice.
        if fitting is None and self._workers.size == 1:
            return None
        # The size of a chunk is counted in tokens, because more short texts than long texts fit at a time.
        return (fitting or texts) * self._longest

    def search(self, texts: int) -> int | None:
        """Return the number of texts of the greatest length that fit on every worker; None if all fit."""
        trained = [parameter for parameter in self._retriever.parameters() if parameter.requires_grad]
        queries, size = self._settings.batch_size // self._workers.size, self._workers.size
        local = WorkerTexts(queries, texts - queries, size, self._longest, self._retriever.dim)
        weights = sum(parameter.nbytes for parameter in self._retriever.parameters())
        state = StateBytes.of(self._settings, size, weights, [parameter.numel() for parameter in trained], True)
        # Autograd holds the gradients of one chunk in addition to the sum over all chunks.
        reserve = state.total + FLOAT * sum(parameter.numel() for parameter in trained)
        largest = find_chunk(
            trial(self._retriever, self._longest, self._precision, self._device),
            trained,
            texts,
            self._device,
            self._key,
            reserve=reserve + batch_bytes(local, self._device.type),
        )
        smallest = -int(self._workers.all_reduce(torch.tensor(-(largest or texts), device=self._device), "max"))
        return None if smallest >= texts else smallest

    def smaller(self, chunk: int | None, chunks: Sequence[TokenBatch], is_agreed: bool) -> int | None:
        """Return half the size of a chunk with which a step ran out of memory, and store this half for later runs.

        If one worker alone ran out of memory, it stores its half for the restart, after which all workers use the
        smallest chunk. A chunk that the user set is never stored: after a restart it is used again.

        Args:
            chunk: the chunk size in tokens; None for a whole batch.
            chunks: chunks of this worker's queries and passages.
            is_agreed: True if all workers call this method.
        """
        if not is_agreed and not self._is_searched:
            return chunk
        # The length of a text includes the padding of its bucket, as in a chunk.
        longest_text = max(
            tokens_of(chunk) // texts_of(chunk) if not is_packed(chunk) else int(lengths_of(chunk).max())
            for chunk in chunks
        )
        sizes = torch.tensor([sum(map(tokens_of, chunks)), longest_text], device=self._device)
        tokens, longest_text = (self._workers.all_reduce(sizes, "max") if is_agreed else sizes).tolist()
        size = min(chunk or tokens, tokens)
        if size <= longest_text:
            raise memory_error("a step ran out of memory with one text at a time", self._device, "passage_length")
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if self._is_searched and (self._workers.rank == 0 or not is_agreed):
            halved = _halved() | {self._key: max(1, size // 2 // self._longest)}
            write_atomically(cache_folder() / FILE, json.dumps(halved, indent=1))
        return size // 2
