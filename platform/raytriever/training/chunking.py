"""How much of a batch is encoded at a time: as asked, or what the device's memory allows."""

from __future__ import annotations

import torch

from raytriever.losses.workers import Workers
from raytriever.models.retriever import Retriever
from raytriever.parallel.chunks import Chunk
from raytriever.parallel.find_chunk import Circumstances, agreed, find_chunk, trial
from raytriever.training.config import TrainingConfig

# Bytes a trained parameter: its gradient where it is synchronised, where parts add up, and where autograd leaves it;
# AdamW's two moments.
_GRADIENTS, _MOMENTS = 12, 8


def chunk_of(
    settings: TrainingConfig, texts: int, retriever: Retriever, precision: str, device: torch.device, workers: Workers
) -> Chunk | None:
    """The chunk of gradient caching, None for none; every worker calls it, before the optimiser has any state.

    Nothing is searched for on a processor: its memory is shared with everything else and paged, and a trial there
    takes as long as a step.

    Args:
        settings: of training.
        texts: of a worker's share of a batch, both sides.
        retriever: on `device`, made ready for training.
        precision: of the encoder.
        device: of this worker.
        workers: the group.

    Raises:
        ConfigError: the chunk asked for is larger than the share, or not even one text fits.
    """
    if settings.grad_cache_chunk is not None or settings.grad_cache_tokens is not None:
        chunk = Chunk(settings.grad_cache_chunk, settings.grad_cache_tokens)
        chunk.check(texts)
        return chunk
    if device.type == "cpu":
        return None
    found = search(settings, texts, retriever, precision, device, workers)
    # As many tokens as fitted: of shorter texts there may be more at a time.
    return None if found is None else Chunk(tokens=found * longest(retriever))


def search(
    settings: TrainingConfig, texts: int, retriever: Retriever, precision: str, device: torch.device, workers: Workers
) -> int | None:
    """How many texts of the greatest length fit on every worker, None where all do; see `chunk_of`."""
    trained = [parameter for parameter in retriever.parameters() if parameter.requires_grad]
    length = longest(retriever)
    weights = sum(parameter.numel() for parameter in retriever.parameters())
    circumstances = Circumstances(
        model=f"{type(retriever.passage.backbone).__name__} {weights} {sum(p.numel() for p in trained)}",
        length=length,
        precision=precision,
        device=_name(device),
        strategy=settings.strategy + (" offloaded" if settings.offload_optimizer else ""),
        workers=workers.size,
    )
    found = find_chunk(
        trial(retriever, length, precision, device),
        trained,
        texts,
        device,
        circumstances,
        reserve=int(_bytes(settings, workers.size) * sum(parameter.numel() for parameter in trained)),
    )
    return agreed(found, texts, workers, device)


def longest(retriever: Retriever) -> int:
    """Tokens of the longest text of either side."""
    return max(retriever.description.query_length, retriever.description.passage_length)


def _bytes(settings: TrainingConfig, workers: int) -> float:
    """What a trained parameter takes on a worker beside itself; gradients are sharded only once a step is over."""
    sharded = settings.strategy in ("zero1", "zero2", "zero3")
    moments = 0 if settings.offload_optimizer else _MOMENTS / (workers if sharded else 1)
    return _GRADIENTS + moments


def _name(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} {properties.total_memory}"
