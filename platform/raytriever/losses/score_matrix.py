"""Score matrix of a loss. It is never stored as a whole: one pass computes it in panels of rows.

For each panel of whole rows:
1. scores = Q C^T is written into one reused buffer. Q are `Candidates.scaled_queries`, already divided by tau.
2. The loss adds the panel to its sums and writes dL/dscore, into the same buffer if the types agree.
3. dQ = dS C and dC += dS^T Q accumulate the gradients.

`Products` computes the three matrix products. Their operands, including derivatives, may be rounded to bf16; sums and
scores are float32. Then the loss is exactly the loss of the rounded embeddings, and its gradient ignores the rounding
(straight-through estimator).

When forward ends, the gradients are ready, as in a fused linear cross-entropy. Backward only scales them. Memory is
O((B + N) d) plus one panel. For a small batch, a single panel is the whole matrix.

The size of the buffer depends only on the kind of device, never on its free memory. Otherwise, sums over panels would
be rounded differently when a run is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from raytriever.core.errors import LossInputError, setting
from raytriever.losses.batch_and_temperature import Candidates
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.loss_settings import LossConfig

# Bytes of a panel. On a CPU, a small panel stays near the caches. A GPU needs large products and few kernel launches.
PANEL_BYTES, GPU_PANEL_BYTES = 64 << 20, 1 << 30
# Rows that one tile of a GPU's matrix product covers. A panel of another height leaves part of its last tiles idle.
GPU_TILE = 128


def add_rows(
    total: Float[Tensor, "rows dim"], rows: Int64[Tensor, " some"], values: Float[Tensor, "some dim"]
) -> Float[Tensor, "rows dim"]:
    """Add each value to its row of `total`, in an order that is the same in every run. Return `total`."""
    if total.device.type == "cpu":
        return total.index_add_(0, rows, values)
    # On a GPU, only `index_put_` adds in a fixed order, because it sorts first. On a CPU, only `index_add_` does.
    return total.index_put_((rows,), values, accumulate=True)


@dataclass(frozen=True)
class Panel:
    """Consecutive rows of the score matrix."""

    rows: slice  # slice of this worker's rows
    queries: Float[Tensor, "rows dim"]  # query embeddings of the rows, in the precision of the products
    scores: Float[Tensor, "rows candidates"]  # scores of the rows. The loss may overwrite them.
    # Buffer for the derivative with respect to each score. It is the tensor `scores`, or a bf16 tensor on a GPU.
    derivatives: Float[Tensor, "rows candidates"]
    excluded: tuple[Tensor, Tensor]  # (rows within the panel, columns) of the pairs that are not negatives

    def exclude(self, score: float) -> None:
        """Overwrite the score of every pair that is not a negative."""
        self.scores[self.excluded] = score


class Products:
    """Matrix products with operands of a chosen precision, and float32 sums.

    On a CPU `tf32` is `fp32`, and operands are rounded to `bf16` but held in float32. Float64 embeddings stay float64.

    Args:
        precision: `fp32`, `tf32` or `bf16`.
        like: embeddings; they have the precision of the scores.

    Raises:
        LossInputError: the GPU does not multiply bf16.
    """

    def __init__(self, precision: str, like: Tensor) -> None:
        self._precision, self._on_gpu = precision, like.device.type == "cuda"
        self._rounds = precision == "bf16" and like.dtype == torch.float32
        self.operand_dtype = torch.bfloat16 if self._rounds and self._on_gpu else like.dtype
        if self.operand_dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise LossInputError("this GPU cannot multiply bf16", setting("loss_precision"), "give fp32")

    def operand(self, values: Tensor) -> Tensor:
        """Return a matrix as an operand: rounded to bf16 if this is the precision."""
        return values.bfloat16().to(self.operand_dtype) if self._rounds else values

    def write(self, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        """Write the product of two operands to `out`, and return it."""
        if left.dtype == out.dtype:
            return torch.mm(left, right, out=out)
        return torch.mm(left, right, out_dtype=out.dtype, out=out)

    def add(self, left: Tensor, right: Tensor, total: Tensor) -> Tensor:
        """Add the product of two operands to `total`, and return it."""
        if left.dtype == total.dtype:
            return total.addmm_(left, right)
        return total.add_(torch.mm(left, right, out_dtype=total.dtype))

    @contextmanager
    def as_chosen(self) -> Iterator[None]:
        """On a GPU, let PyTorch use TF32 for float32 matmuls only if TF32 was chosen. Then restore the setting."""
        before = torch.get_float32_matmul_precision()
        try:
            if self._on_gpu:
                torch.set_float32_matmul_precision("high" if self._precision == "tf32" else "highest")
            yield
        finally:
            if self._on_gpu:
                torch.set_float32_matmul_precision(before)


def panel_height(rows: int, row_bytes: int, device: str) -> int:
    """Return the number of rows of a panel on a type of device, at most `rows`. `row_bytes` is the size of a row."""
    most = max(1, (GPU_PANEL_BYTES if device == "cuda" else PANEL_BYTES) // row_bytes)
    if device != "cuda" or most < GPU_TILE:
        return min(rows, most)
    panels = -(-rows // (most - most % GPU_TILE))
    return min(rows, -(-rows // (panels * GPU_TILE)) * GPU_TILE)


def score_panels(
    queries: Float[Tensor, "rows dim"],
    embeddings: Float[Tensor, "candidates dim"],
    candidates: Candidates,
    products: Products,
) -> Iterator[Panel]:
    """Yield the panels of a worker's rows. Each panel overwrites the scores of the panel before it."""
    relevance, starts = candidates.relevance, candidates.relevance.excluded_starts
    dtype, columns = candidates.queries.dtype, len(embeddings)
    height = panel_height(len(queries), columns * dtype.itemsize, queries.device.type)
    buffer = queries.new_empty(height, columns, dtype=dtype)
    same = products.operand_dtype == dtype
    derivatives = buffer if same else torch.empty_like(buffer, dtype=products.operand_dtype)
    for start in range(0, len(queries), height):
        rows = slice(start, min(start + height, len(queries)))
        some = queries[rows]
        scores = products.write(some, embeddings.T, buffer[: len(some)])
        excluded = slice(int(starts[rows.start]), int(starts[rows.stop]))
        own_rows = relevance.excluded_rows[excluded]
        pairs = own_rows - start if start else own_rows, relevance.excluded_columns[excluded]
        yield Panel(rows, some, scores, derivatives[: len(some)], pairs)


Sparse = tuple[Tensor, Tensor, Tensor]


class Reduction:
    """Loss of one batch that reads the score matrix in panels.

    Attributes:
        dense: True if the reduction writes a derivative for every score of a panel.
        sparse: further derivatives, as (rows, columns, derivatives); complete after `finish`.
        statistics: values to log, by name; complete after `finish`.
        values: for each panel, its part of this worker's partial loss, in double precision.
        factor: number that rescales derivatives, as in an online softmax; None for no rescaling. After each `reduce`,
            the derivatives of all earlier panels are multiplied by it. After `finish`, so are those of all panels.
    """

    dense = True
    factor: Tensor | None = None

    def __init__(self) -> None:
        self.sparse: list[Sparse] = []
        self.statistics: dict[str, Tensor] = {}
        self.values: list[Tensor] = []

    def start(self, queries: Tensor, embeddings: Tensor) -> None:
        """Prepare for the first panel. The arguments are the operands of all panels."""

    def reduce(self, panel: Panel, differentiate: bool) -> None:
        """Add a panel to this worker's partial loss, and write the derivatives of its scores if `differentiate`."""
        raise NotImplementedError

    def finish(self) -> Float[Tensor, ""]:
        """Return this worker's partial loss, in double precision."""
        return torch.stack(self.values).sum()


@dataclass(frozen=True)
class PartialLoss:
    """One worker's partial loss, and statistics to log. The loss is the sum of all workers' partial losses."""

    partial: Float[Tensor, ""]
    statistics: dict[str, Tensor]


ScoreLoss = Callable[[LossConfig, Candidates, WorkerGroup], PartialLoss]


def reduce_scores(reduction: Reduction, candidates: Candidates, precision: str | None = None) -> PartialLoss:
    """Compute this worker's partial loss, differentiable in queries, candidates and temperature."""
    partial = _ReduceScores.apply(
        candidates.scaled_queries,
        candidates.embeddings,
        candidates,
        reduction,
        Products(precision or "fp32", candidates.queries),
        torch.is_grad_enabled(),
    )
    return PartialLoss(partial, reduction.statistics)


class _ReduceScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        embeddings: Tensor,
        candidates: Candidates,
        reduction: Reduction,
        products: Products,
        differentiate: bool,
    ) -> Tensor:
        with torch.autocast(queries.device.type, enabled=False), products.as_chosen():
            rows, documents = products.operand(queries), products.operand(embeddings)
            reduction.start(rows, documents)
            # The first dense panel overwrites the buffer with its products, so the buffer need not be zeroed before.
            make = torch.empty_like if reduction.dense else torch.zeros_like
            by_query, by_embedding = (make(x) if differentiate else x.new_empty(0) for x in (queries, embeddings))
            for panel in score_panels(rows, documents, candidates, products):
                reduction.reduce(panel, differentiate)
                if differentiate and reduction.dense:
                    if panel.rows.start and reduction.factor is not None:
                        by_query[: panel.rows.start] *= reduction.factor
                        by_embedding *= reduction.factor
                    derivatives = products.operand(panel.derivatives)
                    products.write(derivatives, documents, by_query[panel.rows])
                    sum_up = products.add if panel.rows.start else products.write
                    sum_up(derivatives.T, panel.queries, by_embedding)
            partial = reduction.finish().to(queries.dtype)
            if not differentiate:
                return partial
            if reduction.dense and reduction.factor is not None:
                by_query *= reduction.factor
                by_embedding *= reduction.factor
            for row, column, by_score in reduction.sparse:
                add_rows(by_query, row, documents[column] * by_score[:, None])
                add_rows(by_embedding, column, rows[row] * by_score[:, None])
            ctx.save_for_backward(by_query, by_embedding)
        return partial

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        by_query, by_embedding = ctx.saved_tensors
        return by_query * grad, by_embedding * grad, None, None, None, None
