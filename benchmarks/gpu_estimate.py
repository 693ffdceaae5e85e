"""Estimated time of a training step on an H200, from the operations that the encoder starts. No GPU is needed.

Run: `python benchmarks/gpu_estimate.py [--json PATH]`. The encoder runs the code of training on tensors without data.
For each operation the launch, the bytes that it reads and writes, and its arithmetic are counted, with one layer and
with two; further layers do the same as the second. The host takes 5 us to launch an operation. The device takes the
longer of its bytes at 4.3 TB/s and its arithmetic at 790 TFLOP/s (bf16); both rates were measured on an H200. A step
takes the longer of host and device. `encoding` is one forward pass over a batch of passages, as a corpus is encoded,
with weights in bf16.

These are estimates: overlap, caches and the shortest time of a kernel are left out. `padded` is the way of models that
cannot pack: buckets with padding, each side for itself. `packed` is the way of all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ends import End, parser, report
from on_gpu.models import SHAPES, contents
from raytriever.encoding.encode import TOKEN_BUDGET
from raytriever.models import varlen
from raytriever.models.encoder import Encoder
from raytriever.models.packing import TokenBatch, fill_buckets, pack, tokens_of
from raytriever.models.precision import autocast
from raytriever.training.memory.simulation import fake, use_float32_norms
from raytriever.training.monitoring import Encoding

LAUNCH, BYTES, FLOPS = 5e-6, 4.3e12, 790e12
CPU = torch.device("cpu")
NEGATIVES, QUERY_LENGTH, PASSAGE_LENGTH = 5, 32, 128
# Bytes of a fused AdamW a weight: it reads weight, gradient and two moments, and writes all but the gradient.
ADAMW = 28
# Bytes and launches of the loss: scores, derivatives and the products with them, in one panel; see losses/mw.
SCORE, LOSS_LAUNCHES = 14, 40


@dataclass(frozen=True)
class Case:
    """A training step.

    Args:
        shape: of the encoder.
        queries: of the batch.
        tokens: of a chunk, at most; a step of one chunk is not computed twice.
    """

    shape: str
    queries: int
    tokens: int


CASES = (
    Case("minilm", 64, 2**20),
    Case("minilm", 8_192, 2**19),
    Case("xlm-r-large", 1_024, 2**16),
)


class Work(TorchDispatchMode):
    """Counter of the work of all operations while the context is open.

    Attributes:
        launches: operations that start a kernel; views start none.
        seconds: of the device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches, self.seconds = 0, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count its work."""
        outputs = func(*args, **(kwargs or {}))
        read, written = tree_leaves((args, kwargs)), tree_leaves(outputs)
        storages = {id(one.untyped_storage()) for one in read if isinstance(one, Tensor)}
        is_view = all(id(one.untyped_storage()) in storages for one in written if isinstance(one, Tensor))
        if not is_view or func._schema.is_mutable:
            count = flop_registry.get(func.overloadpacket)
            flops = count(*args, **(kwargs or {}), out_val=outputs) if count else 0
            self.add(
                flops, sum(one.numel() * one.element_size() for one in [*read, *written] if isinstance(one, Tensor))
            )
        return outputs

    def add(self, flops: float, moved: float, launches: int = 1) -> None:
        """Add the work of some operations."""
        self.launches += launches
        self.seconds += max(flops / FLOPS, moved / BYTES)


def main() -> None:
    """Estimate and report."""
    options = parser((__doc__ or "").splitlines()[0]).parse_args()
    ends = {}
    for case in CASES:
        for way in ("padded", "packed"):
            launches, seconds, useful = step(case, way)
            host = launches * LAUNCH
            name = f"{case.shape}, batch {case.queries:,}, {way}"
            ends[f"{name}: launches"] = End(launches, "reported", True)
            ends[f"{name}: host (ms)"] = End(1e3 * host, "reported", True)
            ends[f"{name}: device (ms)"] = End(1e3 * seconds, "reported", True)
            share = useful / max(host, seconds) / FLOPS
            ends[f"{name}: useful share of {FLOPS / 1e12:.0f} TFLOP/s"] = End(share, "reported", True)
    for shape in ("minilm", "xlm-r-large"):
        launches, seconds, useful = forward(shape)
        share = useful / max(launches * LAUNCH, seconds) / FLOPS
        ends[f"{shape}, encoding: useful share of {FLOPS / 1e12:.0f} TFLOP/s"] = End(share, "reported", True)
    report("estimated steps on an H200", ends, options.json)


def forward(shape: str) -> tuple[int, float, float]:
    """Return launches, seconds of the device, and useful arithmetic of encoding a batch of passages."""
    budget = TOKEN_BUDGET["cuda"]
    passages = contents(2 * budget // PASSAGE_LENGTH, PASSAGE_LENGTH, 1)
    part = next(packed(passages, budget))
    layers = SHAPES[shape].layers
    one, two = (encoding(encoder_of(shape, number).bfloat16(), [part], trains=False) for number in (1, 2))
    launches = one.launches + (layers - 1) * (two.launches - one.launches)
    seconds = one.seconds + (layers - 1) * (two.seconds - one.seconds)
    lengths = torch.from_numpy(np.diff(part["starts"].numpy()))
    return launches, seconds, Encoding.of(encoder_of(shape, layers).backbone).flops(lengths) / 3


def step(case: Case, way: str) -> tuple[int, float, float]:
    """Return launches, seconds of the device, and useful arithmetic: that of real tokens, forward and backward once."""
    queries = contents(case.queries, QUERY_LENGTH, 0)
    passages = contents(case.queries * (1 + NEGATIVES), PASSAGE_LENGTH, 1)
    ways = {"packed": packed(queries + passages, case.tokens), "padded": padded(queries, passages, case.tokens)}
    parts = list(ways[way])
    layers = SHAPES[case.shape].layers
    one, two = (encoding(encoder_of(case.shape, number), parts) for number in (1, 2))
    work = Work()
    work.launches = one.launches + (layers - 1) * (two.launches - one.launches)
    work.seconds = one.seconds + (layers - 1) * (two.seconds - one.seconds)
    encoder = encoder_of(case.shape, layers)
    weights = sum(parameter.numel() for parameter in encoder.parameters())
    # The gradients of the chunks add up.
    work.add(0, 12 * weights * (len(parts) - 1), launches=len(parts) - 1)
    scores = case.queries**2 * (1 + NEGATIVES)
    work.add(3 * 2 * scores * encoder.width, SCORE * scores, LOSS_LAUNCHES)
    work.add(0, ADAMW * weights, launches=10)
    lengths = torch.tensor([len(text) + 2 for text in queries + passages])
    return work.launches, work.seconds, Encoding.of(encoder.backbone).flops(lengths)


def encoder_of(name: str, layers: int) -> Encoder:
    """Return an encoder without data and with some of its layers."""
    from transformers import XLMRobertaConfig, XLMRobertaModel

    shape = SHAPES[name]
    config = XLMRobertaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
        max_position_embeddings=514,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.device("meta"):
        encoder = Encoder(XLMRobertaModel(config, add_pooling_layer=False), "mean", normalise=True)
    use_float32_norms(encoder)
    varlen.use_packed_attention(encoder.backbone)  # its padded form reads no mask on the host
    return encoder.train()


def encoding(encoder: Encoder, parts: list[TokenBatch], trains: bool = True) -> Work:
    """Return the work of encoding the chunks of a batch forward and backward, all but the last one twice forward.

    Without training each chunk is encoded forward once.
    """
    mode, work = fake(encoder), Work()
    # Lengths are read by the host, so they keep their values.
    chunks: list[Any] = [
        {name: tensor.numpy() if name == "lengths" else mode.from_tensor(tensor) for name, tensor in part.items()}
        for part in parts
    ]
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    with mode, flash_attention(), work:
        for number, chunk in enumerate(chunks):
            if not trains or number < len(chunks) - 1:
                with torch.no_grad(), autocast("bf16", CPU):
                    encoder(chunk)
            if not trains:
                continue
            with autocast("bf16", CPU):
                embeddings = encoder(chunk).float()
            torch.autograd.grad(embeddings, trained, torch.empty_like(embeddings), allow_unused=True)
    return work


def packed(texts: list[np.ndarray], tokens: int) -> Iterator[TokenBatch]:
    """Yield the packed chunks of a batch."""
    ids = [np.concatenate([[0], one, [2]]) for one in texts]
    ends = np.cumsum([len(one) for one in ids])
    for chunk in range(-(-int(ends[-1]) // tokens)):
        yield pack([one for one, end in zip(ids, ends, strict=True) if (end - 1) // tokens == chunk], 2)


def padded(queries: list[np.ndarray], passages: list[np.ndarray], tokens: int) -> Iterator[TokenBatch]:
    """Yield the padded chunks of a batch, each side for itself."""

    def pad(ids: list[np.ndarray]) -> TokenBatch:
        longest = max(map(len, ids)) + 2
        mask = torch.tensor([[1] * (len(one) + 2) + [0] * (longest - len(one) - 2) for one in ids])
        return {"input_ids": mask * 5, "attention_mask": mask}

    for side in (queries, passages):
        for part in fill_buckets(side, pad, None).buckets:
            rows = max(1, tokens * len(part["input_ids"]) // tokens_of(part))
            for begin in range(0, len(part["input_ids"]), rows):
                yield {name: tensor[begin : begin + rows] for name, tensor in part.items()}


@contextmanager
def flash_attention() -> Iterator[None]:
    """Let packed texts of a CPU use the kernel of CUDA, of which only the shapes are computed here."""

    def kernel(query: Tensor, key: Tensor, value: Tensor, starts: Tensor, *settings: Any) -> Tensor:
        return varlen._FlashAttention.apply(query, key, value, starts, PASSAGE_LENGTH, *settings)

    with mock.patch.object(varlen, "_text_by_text", kernel):
        yield


if __name__ == "__main__":
    main()
