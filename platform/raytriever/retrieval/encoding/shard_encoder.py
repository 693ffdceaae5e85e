"""Encoder of the shards of a store. A pipeline reads or makes the tokens, encodes them, and writes the embeddings.

Prepared tokens are used if they were made with this tokenizer and prompt; otherwise the texts are tokenized. If `TRIES`
processes die while they encode one shard, the job ends with an error that names the rows of the shard."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from raytriever.core.errors import ModelError, setting
from raytriever.core.processes import TRIES
from raytriever.core.store.unfinished_pieces import Attempts
from raytriever.data.dataset import RetrievalDataset, prompted
from raytriever.data.hashed_ids import Keys, key_of, keys_of
from raytriever.data.prepare.corpus_tokenization import Tokenization
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.models.device_memory import memory_errors
from raytriever.models.inference import Pending, TextEncoder
from raytriever.models.prompts import TITLE, Prompts, Side
from raytriever.models.tokenization import content_tokenizer_json
from raytriever.retrieval.encoding.embedding_store import StoredRows
from raytriever.retrieval.encoding.write_or_reuse_embeddings import EarlierEmbeddings, StoreWriter

_WRITES_BEHIND = 1  # number of encoded shards that may wait for their commit


class SideTexts:
    """Passages or queries of a data set, as texts and token ids. By default the data set's name decides the prompts."""

    def __init__(self, dataset: RetrievalDataset, side: Side, prompts: Prompts | None = None) -> None:
        self.side = side
        self._prompts, self._prompts_of = prompts, dataset.prompts_of
        self.name = dataset.name
        self.digest = dataset.documents.digest if side == "passage" else dataset.queries.digest
        self.texts: Sequence[str] = dataset.passages() if side == "passage" else dataset.queries.texts
        self._documents = dataset.documents
        tokens = dataset.tokens
        self._tokens = None if tokens is None else tokens.documents if side == "passage" else tokens.queries
        self._token_digest = tokens.digest if tokens else None
        self._fits: bool | None = None  # whether the stored tokens fit the retriever; None before the first read

    def read(self, retriever: TextEncoder, rows: Sequence[int]) -> tuple[Sequence[Any], str | list[str]]:
        """Return the token ids or texts of some rows, and their prompt: one for all, or one for each row.

        Tokens of the data set are used if they were made with the tokenizer and the prompts of this retriever. Every
        call must pass the same retriever: whether the stored tokens fit it is checked only at the first call."""
        prompts = self._prompts or retriever.prompts_of(self.name)
        prompt = prompts[self.side]
        if self._tokens is not None and retriever.tokenizer is not None:
            if self._fits is None:
                tokenization = replace(
                    tokenization_of(retriever), query_prompt=prompts.query, passage_prompt=prompts.passage, table=None
                )
                self._fits = self._token_digest == tokenization.digest
            if self._fits:
                is_common = self.side == "passage" and TITLE not in prompt
                own = prompt if is_common else self._prompted(rows, prompt)[1]
                return self._tokens.take(np.array(rows, np.int64)), own
        texts, own = self._prompted(rows, prompt)
        return retriever.contents(texts, self.side, own), own

    def keys(self, rows: range, prompt: str) -> Keys:
        """Return the keys of some rows, hashes of text and prompt. A text without its own prompt gets `prompt`."""
        texts, own = self._prompted(rows, prompt)
        return keys_of(map(key_of, repeat(own) if isinstance(own, str) else own, texts))

    def _prompted(self, rows: Sequence[int], prompt: str) -> tuple[Sequence[str], str | list[str]]:
        if self.side == "passage":
            return prompted(self._documents, rows, prompt)
        texts = self.texts[rows.start : rows.stop] if isinstance(rows, range) else [self.texts[row] for row in rows]
        return texts, self._prompts_of(rows, prompt)


@dataclass
class ShardEncoder:
    """Encoder of shards. The object is sent to worker processes, which then load the model and open the data set."""

    writer: StoreWriter
    load: Callable[[], TextEncoder]  # function that loads the encoder onto the device of the calling process
    dataset_path: str  # path or name under which any process opens the data set; see `RetrievalDataset`
    on_progress: Callable[[int], None] | None = None  # function that gets the number of encoded texts after each batch
    prompts: Prompts | None = None  # prompts of the data set; by default its name decides them
    earlier: EarlierEmbeddings | None = None  # embeddings to copy, if there are any

    @cached_property
    def retriever(self) -> TextEncoder:
        """Encoder. It is loaded on first use, after `encode` has recorded an attempt: loading may kill the process."""
        return self.load()

    @cached_property
    def side_texts(self) -> SideTexts:
        """Passages or queries to encode, opened on first use."""
        return SideTexts(open_dataset(self.dataset_path, []), self.writer.plan.side, self.prompts)

    def texts_to_encode(self, number: int) -> int:
        """Return the number of texts of a shard that must be encoded because no earlier embedding exists."""
        return len(self.writer.plan.rows_of(number)) - (self.earlier.count(number) if self.earlier else 0)

    def encode(self, numbers: Sequence[int]) -> Iterator[int]:
        """Encode shards, and yield the number of each one as soon as it is committed.

        While one shard is encoded, one thread reads the next shard and another writes the previous ones."""
        with (
            Attempts(self.writer.work) as attempts,
            ThreadPoolExecutor(1) as reader,
            ThreadPoolExecutor(1) as committer,
        ):
            reading: Future[_ShardTexts | None] | None = None
            committing: deque[tuple[int, Future[None]]] = deque()

            def committed() -> int:
                """Wait for the oldest commit, and return the number of its shard."""
                number, commit = committing.popleft()
                commit.result()
                attempts.end(str(number))
                return number

            for index, number in enumerate(numbers):
                self._check_deaths(number, attempts.begin(str(number)))
                texts = (reading or reader.submit(self._read, number)).result()
                reading = reader.submit(self._read, numbers[index + 1]) if index + 1 < len(numbers) else None
                if texts is None:
                    committing.append((number, committer.submit(lambda: None)))
                else:
                    committing.append((number, committer.submit(self._commit, texts, self._start(texts))))
                while len(committing) > _WRITES_BEHIND:
                    yield committed()
            while committing:
                yield committed()

    def _read(self, number: int) -> _ShardTexts | None:
        """Return the texts of a shard; None if a process that died before reporting the shard had committed it."""
        if self.writer.is_whole(number):
            return None
        shard_rows = self.writer.plan.rows_of(number)
        copied = self.earlier.copy(number) if self.earlier else None
        rows: Sequence[int] = shard_rows
        if copied is not None and len(copied.rows):
            rows = np.delete(np.array(shard_rows), copied.rows).tolist()
        contents, prompt = self.side_texts.read(self.retriever, rows)
        inputs = self.retriever.assemble(contents, self.side_texts.side)
        return _ShardTexts(
            number=number,
            rows=rows,
            keys=None if self.writer.is_temporary else self.side_texts.keys(shard_rows, self.writer.plan.prefix),
            copied=copied,
            inputs=inputs,
            batches=self.retriever.batches(inputs, self._budget),
            prompt=prompt,
        )

    @property
    def _budget(self) -> int:
        return self.writer.plan.batch_tokens or self.retriever.token_budget()

    def _start(self, texts: _ShardTexts) -> Pending:
        with self._memory_errors():
            return self.retriever.start(
                texts.inputs, texts.batches, self.side_texts.side, on_progress=self.on_progress, prompt=texts.prompt
            )

    def _commit(self, texts: _ShardTexts, pending: Pending) -> None:
        with self._memory_errors():
            embeddings = pending.result()
        check_finite(embeddings, self.side_texts.side, lambda row: self.side_texts.texts[texts.rows[row]])
        self.writer.write(texts.number, embeddings, texts.keys, texts.copied)

    def _memory_errors(self) -> AbstractContextManager[None]:
        what = f"{self._budget:,} tokens exceed the memory of the device"
        return memory_errors(what, self.retriever.device, "batch_tokens")

    def _check_deaths(self, number: int, deaths: int) -> None:
        if deaths < TRIES:
            return
        rows = self.writer.plan.rows_of(number)
        raise ModelError(
            f"{deaths} processes died while they loaded the model or encoded these texts",
            f"{self.writer.plan.dataset} ({self.writer.plan.side}), rows {rows.start + 1:,} to {rows.stop:,}",
            f"free memory, lower {setting('batch_tokens')}, or remove the text that causes the failure; then run the "
            "same command again",
        )


@dataclass(frozen=True, kw_only=True)
class _ShardTexts:
    """Texts of a shard, ready to be encoded."""

    number: int
    rows: Sequence[int]  # positions of the texts to encode, ascending
    keys: Keys | None
    copied: StoredRows | None  # rows whose embeddings are copied from earlier stores
    inputs: Sequence[Any]  # texts with special tokens; see `Retriever`
    batches: Sequence[Sequence[int]]  # texts of each batch, as indices into `rows`
    prompt: str | list[str]


def check_finite(embeddings: Float32[ndarray, "rows dim"], side: Side, text_of: Callable[[int], str]) -> None:
    """Raise a `ModelError` that names the first text whose embedding is not finite, if there is one."""
    bad = np.flatnonzero(~np.isfinite(embeddings).all(1))
    if len(bad):
        what = f"{len(bad)} embeddings are not finite, the first of text {text_of(int(bad[0]))[:60]!r}"
        remedy = "encode with fp32; if this fails too, the weights are broken: load or train them again"
        raise ModelError(what, f"{side} encoder", remedy)


def encode_in_process(encoder: ShardEncoder, missing: Sequence[int], advance: Callable[[int], None]) -> None:
    """Encode the missing shards in this process; see `embed_corpus.Runner`."""
    encoder.on_progress = advance
    for _ in encoder.encode(missing):
        pass


def tokenization_of(retriever: TextEncoder) -> Tokenization:
    """Return the settings that decide the tokens of a data set for a retriever: tokenizer and prompts, not lengths."""
    table = retriever.prompts
    return Tokenization(content_tokenizer_json(retriever.tokenizer), table.query, table.passage, table)
