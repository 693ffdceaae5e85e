"""Encoder `openai:NAME`: embeddings from a service with OpenAI's `/embeddings`. Each text is paid for only once.

Each text with its prompt is first looked up among the embeddings that earlier commands paid for (`paid_embeddings`).
The other texts are sent in parallel batches with limited numbers of texts and tokens. A response is on disk before it
is used. A batch that the service rejects is halved. A single text that is too long for the model is cut until it fits.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from raytriever.core.errors import ConfigError, StorageError, setting
from raytriever.core.interruption import check_interrupted
from raytriever.core.paths import OPENAI
from raytriever.core.store.cache import cache_folder
from raytriever.core.terminal import warn
from raytriever.data.hashed_ids import as_utf8, key_of
from raytriever.models.description import Description
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prompts import PromptTable, Side, fill_title
from raytriever.retrieval.external_encoders.embedding_requests import EmbeddingDialect, Vectors, read_vectors
from raytriever.retrieval.external_encoders.encode_function import OutsideEncoder
from raytriever.retrieval.external_encoders.endpoint_settings import (
    EMBEDDINGS,
    EncoderConfig,
    check_reading,
    check_service,
    read_service_key,
)
from raytriever.retrieval.external_encoders.openai_client import Client, RequestRefused, ServiceError
from raytriever.retrieval.external_encoders.paid_embeddings import PaidEmbeddings
from raytriever.retrieval.external_encoders.service_budget import BudgetReached, Spending, TokenCounts, TokenEstimator

# Largest number of texts in a batch. Services accept 2,048, but a killed command loses all batches in flight.
MOST_TEXTS, MOST_TOKENS = 64, 8_192
_PROBE = "dim"  # text of the first request; its response shows the dimension, or an error in the settings
_FEW_BYTES = 2_000  # below this number of bytes of text, the estimate of bytes per token is too uncertain
_UNIT = 1e-3  # the length of a unit vector differs from 1 by at most this number
_TOO_LONG = re.compile(r"too (long|large|many)|length|token|context|exceed|\b413\b", re.IGNORECASE)
_CUT = 0.75  # of a text that is too long, this fraction of the characters is kept


class _Session:
    """State while requests are pending: connections, free slots and the reason to stop."""

    def __init__(self, client: Client, spending: Spending, in_flight: int) -> None:
        self.client, self.spending = client, spending
        self.slots = asyncio.Semaphore(in_flight)
        self.failure: Exception | None = None


class Endpoint(OutsideEncoder):
    """`TextEncoder` for the model of a service. Requests run in a thread, which exists while requests are pending."""

    precision = "service"

    def __init__(self, config: EncoderConfig, key: str | None) -> None:
        self._config, self._key = config, key
        self._name = config.model.removeprefix(OPENAI)
        decides = json.dumps([config.base, self._name, config.truncate_dim])
        self._digest = hashlib.sha256(decides.encode()).hexdigest()
        self._paid = PaidEmbeddings(cache_folder() / "endpoints" / self._digest[:32])
        self._parameters = EmbeddingDialect(self._name, config.truncate_dim)
        self._spent, self._counted = TokenCounts(), set[bytes]()
        self._most_texts = MOST_TEXTS
        self._cut = 0
        self._lock, self._pending = threading.Lock(), 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: _Session | None = None
        self.description = Description(
            pooling="service",
            similarity=config.similarity or "cosine",
            query_prompt=config.query_prompt or "",
            passage_prompt=config.passage_prompt or "",
            query_length=0,
            passage_length=0,
            truncate_dim=config.truncate_dim,
        )
        own = config.dataset_prompts or {}
        self.prompts = PromptTable(self.description.query_prompt, self.description.passage_prompt, own=own)
        if self._paid.about is None:
            self._submit(self._probe()).result()

    @property
    def dim(self) -> int:
        """Number of components of an embedding."""
        return self._about["dim"]

    @property
    def _about(self) -> Any:
        assert self._paid.about is not None
        return self._paid.about

    def summary(self) -> str:
        """Return the service, the dimension, the length and the similarity in one line."""
        length = self._about["length"]
        unit = "of length 1" if abs(length - 1) < _UNIT else f"not of length 1 (first vector: {length:.4g})"
        return f"at {self._config.base}, {self.dim:,} components, {unit}, {self.description.similarity}"

    def digest(self, config: ModelConfig, side: Side) -> str:
        """Return the SHA-256 over address, model and dimensions. It stays the same if the service changes the model."""
        return self._digest

    def contents(self, texts: Sequence[str], side: Side, prompt: str | Sequence[str] | None = None) -> Sequence[str]:
        """Return the texts with their prompts."""
        if prompt is None:
            prompt = self.description.query_prompt if side == "query" else self.description.passage_prompt
        prompts = [fill_title(prompt)] * len(texts) if isinstance(prompt, str) else prompt
        return [as_utf8(prompt + text) for prompt, text in zip(prompts, texts, strict=True)]

    def announce(self, contents: Iterable[str]) -> None:
        """Report texts, tokens and cost of contents that are not paid for yet, if they exceed one batch.

        Texts that earlier commands paid for count against the budget, so repeating a command does not double it."""
        new, size, known = 0, 0, 0
        texts = iter(contents)
        while block := list(islice(texts, 4_096)):
            unseen = {key: text for text in block if (key := key_of(text)) not in self._counted}
            _, is_found, tokens = self._paid.find(list(unseen))
            self._spent.read += tokens
            self._counted.update(unseen)
            sizes = [len(text.encode()) for text, found in zip(unseen.values(), is_found, strict=True) if not found]
            new, size, known = new + len(sizes), size + sum(sizes), known + int(is_found.sum())
        if new > self._most_texts:
            tokens = self._estimator.estimate(size)
            cost = f", cost about {TokenCounts(tokens).cost(self._config):,.4g}" if any(self._config.prices) else ""
            paid = f"; {known:,} texts are already paid for" if known else ""
            warn(f"{self._config.model}: {new:,} texts to encode, about {tokens:,} tokens{cost}{paid}")

    def token_budget(self, device: str | None = None) -> int:
        """Return the default number of tokens of a request."""
        return MOST_TOKENS

    def batches(self, inputs: Sequence[str], budget: int) -> list[list[int]]:
        """Return indices of the texts of each request, longest first. Similar lengths suit a service that pads."""
        sizes = [len(text.encode()) for text in inputs]
        batches: list[list[int]] = []
        tokens = 0
        for row in sorted(range(len(inputs)), key=lambda row: (-sizes[row], row)):
            own = self._estimator.estimate(sizes[row])
            if not batches or len(batches[-1]) >= self._most_texts or tokens + own > budget:
                batches.append([])
                tokens = 0
            batches[-1].append(row)
            tokens += own
        return batches

    def start(
        self,
        inputs: Sequence[str],
        rows: Sequence[Sequence[int]],
        side: Side,
        on_progress: Callable[[int], None] | None = None,
        prompt: str | Sequence[str] | None = None,
    ) -> _PendingAnswers:
        """Request the texts that are not paid for yet, in batches. Return a handle to the embeddings of all texts."""
        keys = [key_of(text) for text in inputs]
        _, is_paid, _ = self._paid.find(keys)
        asked: set[bytes] = set()
        batches = []
        for batch in rows:
            new = {keys[row]: inputs[row] for row in batch if not is_paid[row] and keys[row] not in asked}
            asked.update(new)
            if new:
                batches.append(new)
        done = partial(on_progress or (lambda count: None))
        done(sum(map(len, rows)) - len(asked))
        answers = self._submit(self._ask(batches, done)) if batches else None
        return _PendingAnswers(self, keys, answers)

    def collect(self, keys: Sequence[bytes], answers: Future[None] | None) -> Float32[ndarray, "texts dim"]:
        """Wait for the answers and return the embeddings of the texts; see `_PendingAnswers`."""
        try:
            if answers is not None:
                answers.result()
        except BudgetReached as error:
            flag = "budget" if self._config.budget_tokens is None else "budget_tokens"
            spent = self._spent.cost(self._config) if flag == "budget" else self._spent.read
            what = f"{spent:,.4g} of {getattr(self._config, flag):,} are used, and the next request may exceed the rest"
            remedy = "raise it, and run the same command again; paid embeddings are kept"
            raise ConfigError(what, setting(flag), remedy) from error
        embeddings, is_paid, _ = self._paid.find(keys)
        if not is_paid.all():
            raise StorageError("was changed while it was read", str(self._paid.folder), "run the same command again")
        if self.description.similarity == "cosine":
            embeddings /= np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)  # zero vectors stay 0
        return embeddings

    @property
    def _estimator(self) -> TokenEstimator:
        few = self._paid.bytes < _FEW_BYTES
        return TokenEstimator() if few else TokenEstimator(self._paid.bytes, self._paid.tokens)

    def _submit(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        with self._lock:
            if not self._pending:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run_loop, args=(self._loop,), name="requests", daemon=True).start()
            self._pending += 1
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(self._run(work, self._loop), self._loop)

    async def _run(self, work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        """Run a coroutine with shared connections. The first coroutine opens them, and the last one closes them."""
        config = self._config
        if self._session is None:
            client = Client(config, self._name, setting("model"), EMBEDDINGS, self._key)
            self._session = _Session(client, Spending(config, self._spent, self._estimator), config.in_flight)
            await client.__aenter__()
        try:
            await work
        finally:
            with self._lock:
                self._pending -= 1
                session = self._session
                is_last = not self._pending
                if is_last:
                    self._session = None
            if is_last:
                await session.client.__aexit__(None, None, None)
                loop.call_soon(loop.stop)

    async def _probe(self) -> None:
        assert self._session is not None
        vectors = await self._post(self._session, [_PROBE])
        length, dim = float(np.linalg.norm(vectors.values[0])), vectors.values.shape[1]
        self._paid.begin({"base_url": self._config.base, "model": self._name, "dim": dim, "length": length})
        self._paid.put([key_of(_PROBE)], vectors.values, [vectors.tokens or 1], [len(_PROBE)])
        if abs(length - 1) >= _UNIT and self._config.similarity is None:
            scaled = f"they are scaled to length 1, unless {setting('similarity')} is dot"
            warn(f"{self._config.model}: embeddings have other lengths than 1 (the first: {length:.4g}); {scaled}")

    async def _ask(self, batches: Sequence[dict[bytes, str]], done: Callable[[int], None]) -> None:
        """Request and store the embeddings of all batches. Raise an error only when all answers are stored."""
        session = self._session
        assert session is not None

        async def ask(batch: dict[bytes, str]) -> None:
            async with session.slots:
                if session.failure is not None:
                    return
                try:
                    check_interrupted()
                    await self._pay(session, batch, done)
                except KeyboardInterrupt:
                    session.failure = ServiceError("gets no more requests, because the command was interrupted")
                except Exception as error:  # raised below, after the answers to all requests in flight are stored
                    session.failure = error
                if session.failure is not None:
                    session.client.stop.set()

        await asyncio.gather(*map(ask, batches))
        if session.failure is not None:
            raise session.failure

    async def _pay(self, session: _Session, batch: dict[bytes, str], done: Callable[[int], None]) -> None:
        """Request the embeddings of a batch, store them, and call `done` with the number of texts."""
        keys, texts = list(batch), list(batch.values())
        sizes = [len(text.encode()) for text in texts]
        reserved = await session.spending.reserve(sum(sizes), 0)
        paid = TokenCounts()
        try:
            vectors = await self._post(session, texts)
            paid.read = session.spending.estimator.estimate(sum(sizes)) if vectors.tokens is None else vectors.tokens
        except RequestRefused as refusal:
            vectors, error = None, refusal
        finally:
            session.spending.settle(reserved, paid)
        if vectors is not None:
            session.spending.estimator.record(sum(sizes), paid.read)
            tokens = np.diff(np.cumsum([0, *sizes]) * paid.read // max(1, sum(sizes))).tolist()
            self._paid.put(keys, vectors.values, tokens, sizes)
            done(len(keys))
        elif len(keys) > 1:
            half = len(keys) // 2
            for part in (slice(half), slice(half, None)):
                await self._pay(session, dict(zip(keys[part], texts[part], strict=True)), done)
            self._most_texts = min(self._most_texts, max(1, half))
        else:
            await self._pay(session, {keys[0]: self._shorter(texts[0], error)}, done)

    def _shorter(self, text: str, refusal: RequestRefused) -> str:
        """Return the beginning of a text that is too long for the model. Only the first such text is reported."""
        if not _TOO_LONG.search(str(refusal)) or len(text) < 2:
            remedy = "remove or change the text; paid embeddings are kept"
            raise ServiceError(f"rejects the text {text[:60]!r} ({refusal})", self._config.base, remedy)
        if not self._cut:
            warn(f"{self._config.model}: {text[:60]!r} is too long for the model; such texts are cut ({refusal})")
        self._cut += 1
        return text[: max(1, int(len(text) * _CUT))]

    async def _post(self, session: _Session, texts: Sequence[str]) -> Vectors:
        dialect, base = self._parameters, self._config.base
        try:
            vectors = await session.client.post(
                dialect, lambda: dialect.body(texts), partial(read_vectors, texts=texts)
            )
        except ServiceError as error:
            raise (error if error.where else error.at(base)) from error
        dim, about, wanted = vectors.values.shape[1], self._paid.about, self._config.truncate_dim
        if wanted is not None and dim != wanted:
            what = f"answers with vectors of {dim:,} components, not {wanted:,}"
            raise ServiceError(what, base, f"leave {setting('truncate_dim')} out: the model has no such dimension")
        if about is not None and dim != about["dim"]:
            what = f"answers with vectors of {dim:,} components; earlier ones have {about['dim']:,} components"
            remedy = f"if its model has changed, remove {self._paid.folder}, and pay for its texts again"
            raise ServiceError(what, base, remedy)
        return vectors


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


class _PendingAnswers:
    """Embeddings of texts, some of which the service has not returned yet; see `inference.Pending`."""

    def __init__(self, endpoint: Endpoint, keys: Sequence[bytes], answers: Future[None] | None) -> None:
        self._endpoint, self._keys, self._answers = endpoint, keys, answers

    def result(self) -> Float32[ndarray, "texts dim"]:
        """Wait for the answers and return the embeddings in the order of the texts."""
        return self._endpoint.collect(self._keys, self._answers)


def open_endpoint(config: ModelConfig) -> Endpoint:
    """Open the endpoint that a configuration names. Raises `UserError` if it does not answer."""
    if not isinstance(config, EncoderConfig):
        remedy = f"use a command that has {setting('base_url')}: encode, evaluate, mine, search or index"
        raise ConfigError("is an endpoint, and this command has no settings for one", config.model, remedy)
    check_service(config)
    check_reading(config)
    if not config.model.removeprefix(OPENAI).strip():
        raise ConfigError(
            "names no model", setting("model", config.model), "give openai:NAME with the service's name of a model"
        )
    return Endpoint(config, read_service_key(config, warn))
