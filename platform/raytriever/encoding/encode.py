"""Encode tokens in one process: sort texts by length, and form batches of equal token count ahead of the encoder.

Sorting keeps padding to a few per cent. The budget counts tokens, not texts, because tokens cost time and memory. Those
of long texts count more (`models.packing.token_cost`), because attention is quadratic. Batches depend on the lengths
and the budget alone, so the same rows give the same bytes in every process. Results are in the order of the texts. On a
CPU threads encode a batch each.

A thread tokenises the next texts. Nothing waits for a GPU before all batches are queued. Another thread makes the next
batches in pinned memory and copies them on a stream of their own, and embeddings are copied back once a batch, into
pinned memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, groupby
from threading import Lock

import numpy as np
import torch
from jaxtyping import Float32
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.errors import ModelError
from raytriever.models.packing import TokenBatch, move, token_cost
from raytriever.models.retriever import Retriever
from raytriever.progress import Progress
from raytriever.prompts import Prompts, Side

WINDOW = 8_192
# A CPU is fastest at 2,000 to 8,000 tokens per batch; a GPU needs enough tokens to stay busy.
TOKEN_BUDGET = {"cpu": 4_096, "cuda": 65_536}
# Numbers in the states of a layer. A batch of a narrow encoder has more tokens: Python takes 5 ms to launch any batch.
_GPU_STATES = 1 << 26
_AHEAD = 2  # batches that are made ahead of the encoder
# Threads that encode a batch each on a CPU, and batches of each that make up for the wait at the end.
MOST_THREADS, _PER_THREAD = 8, 2


def encode_queries(
    retriever: Retriever,
    dataset: RetrievalDataset,
    positions: Iterable[int],
    title: str = "queries",
    prompts: Prompts | None = None,
) -> Float32[ndarray, "queries width"]:
    """Return the embeddings of queries of a data set, each with its prompt: its own, that of `prompts`, or that which
    the retriever has for the name of the data set."""
    default = (prompts or retriever.prompts_of(dataset.name)).query
    queries = [int(query) for query in positions]
    prompt = dataset.prompts_of(queries, default)
    for own in set() if isinstance(prompt, str) else set(prompt):
        retriever.check_prompt(own, "query")
    return encode_texts(retriever, [dataset.queries.texts[query] for query in queries], "query", title, prompt)


def encode_texts(
    retriever: Retriever,
    texts: Sequence[str],
    side: Side,
    title: str = "encode",
    prompt: str | Sequence[str] | None = None,
) -> Float32[ndarray, "texts width"]:
    """Return the embeddings of texts of one side, in the arithmetic of the retriever's weights.

    `prompt` is in front of all texts, or has one for each; by default it is the prompt of the side.
    """
    embeddings = np.empty((len(texts), retriever.width), np.float32)
    before: tuple[int, PendingEmbeddings] | None = None  # the window that a GPU encodes while the next is launched

    def tokenise(start: int) -> tuple[list[ndarray], str | Sequence[str] | None]:
        own = prompt if prompt is None or isinstance(prompt, str) else prompt[start : start + WINDOW]
        return retriever.contents(texts[start : start + WINDOW], side, own), own

    with Progress(title, len(texts), "text") as progress, ThreadPoolExecutor(1) as reader:
        reading = None  # of the next texts; a few queries start no thread
        for start in range(0, len(texts), WINDOW):
            contents, own = tokenise(start) if reading is None else reading.result()
            reading = reader.submit(tokenise, start + WINDOW) if start + WINDOW < len(texts) else None
            pending = _start_contents(retriever, contents, side, progress.advance, own)
            if before is not None:
                embeddings[before[0] : start] = before[1].result()
            before = start, pending
        if before is not None:
            embeddings[before[0] :] = before[1].result()
    check_finite(embeddings, side, lambda row: texts[row])
    return embeddings


@dataclass(frozen=True)
class PendingEmbeddings:
    """Embeddings that a device may still compute.

    Args:
        values: embeddings on the CPU, in the order of the batches.
        order: number of the text of each embedding.
        texts: number of texts; those without an embedding get 0.
        computed: event after the last copy; None on the CPU.
    """

    values: Float32[torch.Tensor, "encoded width"]
    order: Sequence[int]
    texts: int
    computed: torch.cuda.Event | None

    def result(self) -> Float32[ndarray, "texts width"]:
        """Wait for the embeddings, and return them in the order of the texts. Any thread may call it."""
        if self.computed is not None:
            self.computed.synchronize()
        embeddings = np.zeros((self.texts, self.values.shape[1]), np.float32)
        embeddings[np.asarray(self.order, np.int64)] = self.values.numpy()
        return embeddings


def encode_contents(retriever: Retriever, contents: Sequence[ndarray], side: Side) -> Float32[ndarray, "texts width"]:
    """Return the embeddings of contents (`Retriever.contents`), finite or not, in the arithmetic of the weights.

    The retriever is put into evaluation mode. `side` decides the tower and the length to which texts are cut.
    """
    return _start_contents(retriever, contents, side).result()


def _start_contents(
    retriever: Retriever,
    contents: Sequence[ndarray],
    side: Side,
    on_progress: Callable[[int], None] | None = None,
    prompt: str | Sequence[str] | None = None,
) -> PendingEmbeddings:
    inputs = retriever.assemble(contents, side)
    rows = batches(retriever, inputs, token_budget(retriever))
    return start_encoding(retriever, inputs, rows, side, on_progress=on_progress, prompt=prompt)


def start_encoding(
    retriever: Retriever,
    inputs: Sequence[ndarray],
    rows: Sequence[Sequence[int]],
    side: Side,
    on_progress: Callable[[int], None] | None = None,
    prompt: str | Sequence[str] | None = None,
) -> PendingEmbeddings:
    """Encode batches, without waiting for a GPU to compute them.

    On a CPU several threads encode a batch each. That is faster than all cores on one batch: no core waits for another
    between two layers, or while Python runs.

    Args:
        retriever: on any device; it is put into evaluation mode.
        inputs: texts; see `Retriever.assemble`.
        rows: texts of each batch by their numbers; a batch may be empty.
        on_progress: called with the number of texts of each batch when it is encoded, on a GPU when it is queued.
        prompt: prompt in front of all texts, or of each; by default that of the side.
    """
    device = next(retriever.parameters()).device
    on_gpu = device.type == "cuda"
    order = [row for batch in rows for row in batch]
    starts = list(accumulate((len(batch) for batch in rows), initial=0))
    values = torch.empty((len(order), retriever.width), pin_memory=on_gpu)
    if any(each.training for each in (retriever, retriever.query, retriever.passage)):
        retriever.eval()  # not for every query: it visits each layer, which takes a tenth of the time of one
    with torch.inference_mode():
        lengths = retriever.prompt_lengths(prompt, side, len(inputs))

    def make(batch: Sequence[int]) -> TokenBatch:
        texts, prompts = [inputs[row] for row in batch], lengths and [lengths[row] for row in batch]
        return retriever.pack(texts, side, prompts) if retriever.packs else retriever.pad(texts, prompts)

    def encode(number: int, tokens: TokenBatch) -> None:
        if tokens:
            embeddings = retriever.encode(tokens, side).float()
            values[starts[number] : starts[number + 1]].copy_(embeddings, non_blocking=on_gpu)

    threads = 1 if on_gpu else min(MOST_THREADS, torch.get_num_threads(), len(rows) // _PER_THREAD)
    if threads > 1:
        _encode_side_by_side(make, encode, rows, threads, on_progress)
    else:
        with torch.inference_mode():
            for number, tokens in enumerate(_feed(make, rows, device)):
                encode(number, tokens)
                if on_progress is not None:
                    on_progress(len(rows[number]))
    event = torch.cuda.Event() if on_gpu else None
    if event is not None:
        event.record()
    return PendingEmbeddings(values, order, len(inputs), event)


def _encode_side_by_side(
    make: Callable[[Sequence[int]], TokenBatch],
    encode: Callable[[int, TokenBatch], None],
    rows: Sequence[Sequence[int]],
    threads: int,
    on_progress: Callable[[int], None] | None,
) -> None:
    """Encode batches on a CPU in threads, each with its share of the cores; see `start_encoding`."""
    cores, lock = torch.get_num_threads(), Lock()
    numbers = iter(range(len(rows)))

    def work(first: bool) -> None:
        torch.set_num_threads(cores // threads + first)  # of this thread alone, and of threads that begin meanwhile
        with torch.inference_mode():
            while True:
                with lock:
                    number = next(numbers, None)
                    if number is None:
                        return
                encode(number, make(rows[number]) if rows[number] else {})
                with lock:
                    if on_progress is not None:
                        on_progress(len(rows[number]))

    with ThreadPoolExecutor(threads) as pool:
        try:
            for worker in [pool.submit(work, each < cores % threads) for each in range(threads)]:
                worker.result()
        finally:
            with lock:  # after an error or an interruption no thread begins another batch
                numbers = iter(())
            torch.set_num_threads(cores)


def token_budget(retriever: Retriever, device: str | None = None) -> int:
    """Return the default number of tokens per batch for a type of device, by default that of the retriever."""
    device = device or next(retriever.parameters()).device.type
    return max(TOKEN_BUDGET[device], _GPU_STATES // retriever.width if device == "cuda" else 0)


def batches(retriever: Retriever, inputs: Sequence[ndarray], budget: int) -> list[list[int]]:
    """Sort texts by descending length, and cut them into batches that cost at most `budget` tokens with padding.

    Returns:
        Numbers of the texts of each batch. In int8 the texts of a batch have one padded length.
    """
    lengths = [retriever.padded_length(len(ids)) for ids in inputs]
    costs = token_cost(np.array(lengths, dtype=np.int64))
    rows = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    batches_of_rows = []
    for _, group in groupby(rows, lambda row: lengths[row] if retriever.is_int8 else 0):
        same = list(group)
        while same:
            count = max(1, budget // max(1, int(costs[same[0]])))
            batches_of_rows.append(same[:count])
            same = same[count:]
    return batches_of_rows


def check_finite(embeddings: Float32[ndarray, "rows width"], side: Side, text_of: Callable[[int], str]) -> None:
    """Raise `ModelError` if an embedding is not finite; the error names the first such text."""
    bad = np.flatnonzero(~np.isfinite(embeddings).all(1))
    if len(bad):
        what = f"{len(bad)} embeddings are not finite, the first of text {text_of(int(bad[0]))[:60]!r}"
        remedy = "the weights are broken or overflow in bf16: train or load them again"
        raise ModelError(what, f"{side} encoder", remedy)


def _feed(
    make: Callable[[Sequence[int]], TokenBatch], batches: Sequence[Sequence[int]], device: torch.device
) -> Iterator[TokenBatch]:
    """Yield batches on the device, empty ones as {}; a thread makes the next ones while the caller encodes one."""
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

    if len(batches) == 1:  # nothing to make ahead
        yield arrived(*on_device(batches[0]))
        return
    with ThreadPoolExecutor(1) as thread:
        pending: deque[Future[tuple[TokenBatch, torch.cuda.Event | None]]] = deque()
        for number in range(len(batches) + _AHEAD):
            if number < len(batches):
                pending.append(thread.submit(on_device, batches[number]))
            if number >= _AHEAD:
                yield arrived(*pending.popleft().result())
