"""Encoders of texts: their protocol, and the encoding of batches on the device of a model.

Texts are sorted by length, so that padding is only a few percent, and cut into batches of equal cost. The cost is the
number of tokens, because time and memory depend on it. In long texts a token costs more (`packing.token_cost`), because
attention is quadratic. Batches depend only on the lengths and the budget, so the same rows give the same bytes in every
process. On a CPU, several threads encode one batch each.

No code waits for a GPU before all batches are queued. A thread makes the next batches in pinned memory, and copies them
on a separate stream. The embeddings of each batch are copied back into pinned memory."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import accumulate, groupby
from threading import Lock
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float32
from numpy import ndarray
from torch import nn

from raytriever.core.numba_threads import thread_pool
from raytriever.core.store.commit import sha256_of
from raytriever.core.store.disk import files_below
from raytriever.models.description import Description
from raytriever.models.directory.head import head_text
from raytriever.models.model_settings import ModelConfig
from raytriever.models.packing import TokenBatch, move, token_cost
from raytriever.models.prompts import TASK_TYPE, Prompts, PromptTable, Side
from raytriever.models.resolve_model import resolve_model
from raytriever.models.tokenization import content_tokenizer_json

# A CPU is fastest at 2,000 to 8,000 tokens per batch; a GPU needs enough tokens to stay busy.
TOKEN_BUDGET = {"cpu": 4_096, "cuda": 65_536}
# Smallest product of tokens and embedding dimension in a GPU batch. So encoders of small dimension get more tokens per
# batch: Python takes 5 ms to launch a batch.
_GPU_STATES = 1 << 26
_AHEAD = 2  # number of batches to make ahead of the encoder
# Largest number of threads that encode on a CPU, and smallest number of batches per thread. With fewer batches, the
# wait for the slowest thread costs more than a further thread saves.
MOST_THREADS, _PER_THREAD = 8, 2
_progress_lock = Lock()  # threads of two calls may report progress at the same time


class Pending(Protocol):
    """Embeddings that may not be finished yet."""

    def result(self) -> Float32[ndarray, "texts dim"]:
        """Wait for the embeddings, and return them in the order of the texts. Any thread may call it."""


class TextEncoder(Protocol):
    """Encoder of the texts of two sides: a `Retriever`, an endpoint or a function.

    `contents` converts texts to contents (for a `Retriever`, token ids), `assemble` converts contents to inputs, and
    `start` encodes batches of inputs.

    Attributes:
        tokenizer: None if contents are texts. Then the tokens of a prepared data set are not used.
        is_local: True if other processes can also load this encoder.
        is_int8: True if its linear layers multiply 8-bit integers.
    """

    description: Description
    prompts: PromptTable
    tokenizer: Any
    is_local: bool
    is_int8: bool

    @property
    def dim(self) -> int:
        """Embedding dimension."""

    @property
    def precision(self) -> str:
        """Precision of encoding: `fp32`, `bf16` or `int8`."""

    @property
    def device(self) -> torch.device:
        """Device that encodes."""

    @property
    def nbytes(self) -> int:
        """Number of bytes of the weights in the memory of this process."""

    def summary(self) -> str:
        """Describe in one line how the model encodes."""

    def digest(self, config: ModelConfig, side: Side) -> str:
        """Return the SHA-256 of all that embeddings depend on, except the texts and the settings of the description."""

    def prompts_of(self, *names: str, task_type: str = TASK_TYPE) -> Prompts:
        """Return the prompts of a data set with these names."""

    def check_prompt(self, prompt: str, side: Side) -> None:
        """Raise `ModelError` if a prompt is so long that it leaves no tokens for the text."""

    def contents(self, texts: Sequence[str], side: Side, prompt: str | Sequence[str] | None = None) -> Sequence[Any]:
        """Return the content of each text with its prompt, which is by default the prompt of the side."""

    def assemble(self, contents: Sequence[Any], side: Side) -> Sequence[Any]:
        """Return the encoder's input for each content."""

    def announce(self, contents: Iterable[Any]) -> None:
        """Report how much it costs to encode the contents. Call this before the first content is encoded."""

    def token_budget(self, device: str | None = None) -> int:
        """Return the default number of tokens per batch."""

    def batches(self, inputs: Sequence[Any], budget: int) -> list[list[int]]:
        """Divide inputs into batches, and return the indices of the inputs of each batch."""

    def start(
        self,
        inputs: Sequence[Any],
        rows: Sequence[Sequence[int]],
        side: Side,
        on_progress: Callable[[int], None] | None = None,
        prompt: str | Sequence[str] | None = None,
    ) -> Pending:
        """Start encoding batches. `on_progress` is called with the number of texts of each batch."""


@dataclass(frozen=True)
class PendingEmbeddings:
    """Embeddings that a GPU or other threads may still compute."""

    values: Float32[torch.Tensor, "encoded dim"]  # embeddings on the CPU, in the order of the batches
    order: Sequence[int]  # index of the text of each embedding
    texts: int  # number of texts. A text without an embedding gets zeros.
    finish: Callable[[], object] = lambda: None  # function that waits until the embeddings are computed

    def result(self) -> Float32[ndarray, "texts dim"]:
        """Wait for the embeddings, and return them in the order of the texts. Any thread may call it."""
        self.finish()
        embeddings = np.zeros((self.texts, self.values.shape[1]), np.float32)
        embeddings[np.asarray(self.order, np.int64)] = self.values.numpy()
        return embeddings


class BatchEncoder(nn.Module):
    """Model that encodes batches on its device. `Retriever` implements `TextEncoder` with it."""

    query: Any
    passage: Any
    tokenizer: Any
    description: Description
    packs: bool
    is_int8: bool
    is_local = True
    padded_length: Callable[[int], int]
    pad: Callable[..., TokenBatch]
    pack: Callable[..., TokenBatch]
    prompt_lengths: Callable[..., list[int] | None]
    encode: Callable[..., torch.Tensor]

    @property
    def dim(self) -> int:
        """Embedding dimension."""
        return int(self.query.dim)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    @property
    def nbytes(self) -> int:
        """Bytes of parameters and buffers."""
        return sum(tensor.nbytes for tensor in (*self.parameters(), *self.buffers()))

    def digest(self, config: ModelConfig, side: Side) -> str:
        """Return the SHA-256 of the weights in the directory of `config`, of the tokenizer, and of the side's head."""
        directory = resolve_model(config.model, config.revision)
        files = [file for file in files_below(directory) if file.suffix == ".safetensors"]
        weights = {str(file.relative_to(directory)): sha256_of(file) for file in files}
        tower = self.query if side == "query" else self.passage
        decides: list[Any] = [weights, content_tokenizer_json(self.tokenizer), self.description.towers]
        decides += [self.description.pool_prompt, *head_text(list(tower.head))]
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    def announce(self, contents: Iterable[Any]) -> None:
        """Do nothing: encoding on this machine costs no money."""

    def token_budget(self, device: str | None = None) -> int:
        """Return the default number of tokens per batch for a type of device (by default the type of this device)."""
        device = device or self.device.type
        return max(TOKEN_BUDGET[device], _GPU_STATES // self.dim if device == "cuda" else 0)

    def batches(self, inputs: Sequence[ndarray], budget: int) -> list[list[int]]:
        """Sort texts by descending length, and divide them into batches. With padding, a batch costs at most `budget`.

        Returns:
            Indices of the texts of each batch. In int8, all texts of a batch have the same padded length.
        """
        lengths = [self.padded_length(len(ids)) for ids in inputs]
        costs = token_cost(np.array(lengths, dtype=np.int64))
        rows = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
        batches_of_rows = []
        for _, group in groupby(rows, lambda row: lengths[row] if self.is_int8 else 0):
            same = list(group)
            while same:
                count = max(1, budget // max(1, int(costs[same[0]])))
                batches_of_rows.append(same[:count])
                same = same[count:]
        return batches_of_rows

    def start(
        self,
        inputs: Sequence[ndarray],
        rows: Sequence[Sequence[int]],
        side: Side,
        on_progress: Callable[[int], None] | None = None,
        prompt: str | Sequence[str] | None = None,
    ) -> PendingEmbeddings:
        """Encode batches, without waiting for a GPU to compute them.

        On a CPU, several threads encode one batch each. This is faster than all cores on one batch, because no core
        waits for another between two layers or while Python runs. The call returns when the last batch has begun, so
        that the next call keeps the other threads busy. The model is put into evaluation mode.

        Args:
            inputs: token ids of the texts; see `Retriever.assemble`.
            rows: indices of the texts of each batch; a batch may be empty.
            on_progress: called with the number of texts of each batch, when it is encoded, or queued on a GPU.
            prompt: prompt with which all texts begin, or a list with one for each; by default the prompt of the side.
        """
        device = self.device
        on_gpu = device.type == "cuda"
        order = [row for batch in rows for row in batch]
        starts = list(accumulate((len(batch) for batch in rows), initial=0))
        values = torch.empty((len(order), self.dim), pin_memory=on_gpu)
        if any(module.training for module in (self, self.query, self.passage)):
            self.eval()  # not at every call: a visit to each layer takes a tenth of the time of a query
        with torch.inference_mode():
            lengths = self.prompt_lengths(prompt, side, len(inputs))

        def make(batch: Sequence[int]) -> TokenBatch:
            texts, prompts = [inputs[row] for row in batch], lengths and [lengths[row] for row in batch]
            return self.pack(texts, side, prompts) if self.packs else self.pad(texts, prompts)

        def encode(number: int, tokens: TokenBatch) -> None:
            if tokens:
                embeddings = self.encode(tokens, side).float()
                values[starts[number] : starts[number + 1]].copy_(embeddings, non_blocking=on_gpu)

        threads = 1 if on_gpu else min(MOST_THREADS, torch.get_num_threads(), len(rows) // _PER_THREAD)
        if threads > 1:
            finish = _encode_side_by_side(make, encode, rows, threads, on_progress)
            return PendingEmbeddings(values, order, len(inputs), finish)
        with torch.inference_mode():
            for number, tokens in enumerate(_feed(make, rows, device)):
                encode(number, tokens)
                if on_progress is not None:
                    on_progress(len(rows[number]))
        if not on_gpu:
            return PendingEmbeddings(values, order, len(inputs))
        event = torch.cuda.Event()
        event.record()
        return PendingEmbeddings(values, order, len(inputs), event.synchronize)


def _encode_side_by_side(
    make: Callable[[Sequence[int]], TokenBatch],
    encode: Callable[[int, TokenBatch], None],
    rows: Sequence[Sequence[int]],
    threads: int,
    on_progress: Callable[[int], None] | None,
) -> Callable[[], None]:
    """Encode batches on a CPU in threads, each on some of the cores; see `BatchEncoder.start`.

    Returns:
        Function that waits for the last batches. It raises the error of a batch.
    """
    cores, lock = torch.get_num_threads(), Lock()
    numbers = iter(range(len(rows)))

    def work(first: bool) -> None:
        torch.set_num_threads(cores // threads + first)  # applies to this thread, and to threads that start later
        with torch.inference_mode():
            while True:
                with lock:
                    number = next(numbers, None)
                    if number is None:
                        return
                encode(number, make(rows[number]) if rows[number] else {})
                with _progress_lock:
                    if on_progress is not None:
                        on_progress(len(rows[number]))

    def finish() -> None:
        wait(workers)
        torch.set_num_threads(cores)  # again, because a worker may have begun after all batches were begun
        while workers:
            workers.pop().result()  # no name for it: its error would refer to itself, and so keep the model in memory

    workers = [thread_pool(threads).submit(work, thread < cores % threads) for thread in range(threads)]
    try:
        wait(workers, return_when=FIRST_COMPLETED)  # a thread ends when no batch is left, or with an error
    finally:
        with lock:  # no thread starts another batch after an error or an interruption
            numbers = iter(())
        torch.set_num_threads(cores)
    return finish


def _feed(
    make: Callable[[Sequence[int]], TokenBatch], batches: Sequence[Sequence[int]], device: torch.device
) -> Iterator[TokenBatch]:
    """Yield batches on the device; an empty batch is {}. A thread makes the next batches while the caller encodes."""
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def on_device(rows: Sequence[int]) -> tuple[TokenBatch, torch.cuda.Event | None]:
        if not rows:
            return {}, None
        tokens = make(rows)
        if stream is None:
            return tokens, None
        with torch.cuda.stream(stream):
            tokens = move(tokens, lambda tensor: tensor.pin_memory().to(device, non_blocking=True))
            return tokens, stream.record_event()

    def arrived(tokens: TokenBatch, copied: torch.cuda.Event | None) -> TokenBatch:
        if copied is not None:
            current = torch.cuda.current_stream(device)
            current.wait_event(copied)
            for tensor in tokens.values():
                if tensor.is_cuda:
                    tensor.record_stream(current)
        return tokens

    if len(batches) == 1:  # there is no next batch to make
        yield arrived(*on_device(batches[0]))
        return
    with ThreadPoolExecutor(1) as thread:
        pending: deque[Future[tuple[TokenBatch, torch.cuda.Event | None]]] = deque()
        for number in range(len(batches) + _AHEAD):
            if number < len(batches):
                pending.append(thread.submit(on_device, batches[number]))
            if number >= _AHEAD:
                yield arrived(*pending.popleft().result())
