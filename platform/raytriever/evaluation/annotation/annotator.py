"""Annotation of queries in three steps (relevance, pseudo-answer, utility), and their requests.

The method is that of *Training dense retrievers with multiple positive passages*, section 4.2, stages 2 to 4, after
Zhang et al. (2025).

1. The model selects the relevant candidates. Long lists are split over several requests.
2. The model writes an answer from the relevant passages.
3. It selects the passages that were useful and necessary for this answer, the most useful first: the positives.

If the log has no answer to a request, the request is sent and paid, and the answer is logged and parsed. A malformed
answer is requested again with the reason. Every answer is on disk before the job uses it. Identical requests are sent
once. More queries are processed at once than requests may be in flight, so the service stays busy."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from typing import Protocol as Interface

from raytriever.core.errors import UserError, setting
from raytriever.evaluation.annotation.annotation_settings import AnnotationConfig
from raytriever.evaluation.annotation.answer_log import AnswerLog, Entry
from raytriever.evaluation.annotation.chat_completions import Reply, Service
from raytriever.evaluation.annotation.llm_prompts import (
    ANSWER,
    RELEVANCE,
    UTILITY,
    AnnotationPrompts,
    MalformedAnswer,
    Message,
    build_schema,
    number_reader,
    read_answer,
)
from raytriever.retrieval.external_encoders.openai_client import RequestRefused, ServiceError
from raytriever.retrieval.external_encoders.service_budget import BudgetReached, Spending, TokenCounts

T = TypeVar("T")
_MIN_QUERIES = 20  # with fewer finished queries, the fraction of failures is too uncertain
_QUERIES_PER_REQUEST = 2  # queries processed at once for each request that may be in flight


@dataclass(frozen=True)
class AnnotationQuery:
    """Query with its candidates: their positions in the corpus, and their texts as the model sees them."""

    text: str
    documents: Sequence[int]
    passages: Sequence[str]


@dataclass(frozen=True)
class Annotation:
    """Annotation of a query, with documents by position. `failed` is the reason if the query has no annotation."""

    relevant: Sequence[int] = ()
    answer: str = ""
    useful: Sequence[int] = ()
    failed: str = ""


@dataclass
class Counts:
    """Numbers of answers and failures."""

    asked: int = 0
    from_log: int = 0
    malformed: int = 0
    uncounted: int = 0
    first_malformed: str = ""
    failed: int = 0
    first_failed: str = ""


class ChatService(Interface):
    """Service that answers requests, such as `chat_completions.Service`."""

    async def chat(self, messages: list[Message], schema: dict[str, Any]) -> Reply:
        """Send one request, and return the answer."""


@dataclass
class Annotator:
    """Annotator that runs the three steps for each query, and sends only requests whose answers the log lacks."""

    prompts: AnnotationPrompts
    config: AnnotationConfig
    llm: str  # name of the model, which is part of the key of every request
    job: str  # name of the job in the log. Later runs compute the cost of the job from the entries with this name.
    log: AnswerLog
    service: ChatService | None  # None until the job begins
    spending: Spending
    in_flight: int = 1
    counts: Counts = field(default_factory=Counts)
    logs: bool = True

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.in_flight)
        self._in_flight: dict[str, asyncio.Future[Entry]] = {}
        self.stop_reasons: list[UserError | BudgetReached] = []

    async def run(
        self, questions: Iterator[tuple[int, AnnotationQuery]], on_result: Callable[[int, Annotation], None]
    ) -> UserError | BudgetReached | None:
        """Annotate all questions. Call `on_result` after each one; it may raise a `UserError` to stop the job.

        Return the reason if the job stopped early. All requests in flight are answered and logged first."""
        stop_reasons = self.stop_reasons

        async def work() -> None:
            for number, question in questions:
                if stop_reasons:
                    return
                try:
                    on_result(number, await self.annotate(question))
                except (UserError, BudgetReached) as reason:
                    stop_reasons.append(reason)
                    if isinstance(self.service, Service) and not isinstance(reason, BudgetReached):
                        self.service.stop.set()

        async with asyncio.TaskGroup() as group:
            for _ in range(_QUERIES_PER_REQUEST * self.in_flight):
                group.create_task(work())
        # If the service failed and the budget ran out at the same time, report the failed service.
        errors = [reason for reason in stop_reasons if isinstance(reason, UserError)]
        return next(iter([*errors, *stop_reasons]), None)

    async def annotate(self, question: AnnotationQuery) -> Annotation:
        """Run the three steps for one query."""
        try:
            relevant = await self._relevant(question)
            if not relevant:
                return Annotation()
            documents = [question.documents[index] for index in relevant]
            passages = [question.passages[index] for index in relevant]
            answer = await self.ask(ANSWER, question.text, passages, read_answer)
            useful = await self.ask(UTILITY, question.text, passages, number_reader(UTILITY, len(passages)), answer)
        except (MalformedAnswer, RequestRefused) as error:
            self.counts.failed += 1
            self.counts.first_failed = self.counts.first_failed or str(error)
            return Annotation(failed=str(error))
        return Annotation(documents, answer, [documents[index] for index in useful])

    async def _relevant(self, question: AnnotationQuery) -> list[int]:
        relevant = []
        for start, passages in split_evenly(question.passages, self.config.passages_per_prompt):
            indices = await self.ask(RELEVANCE, question.text, passages, number_reader(RELEVANCE, len(passages)))
            # Relevance is binary, so the candidates keep their order.
            relevant += [start + index for index in sorted(indices)]
        return relevant

    async def ask(
        self, step: str, query: str, passages: Sequence[str], read: Callable[[str], T], answer: str = ""
    ) -> T:
        """Return the answer of a step, parsed by `read`. A malformed answer is requested again with the reason.

        Raises:
            MalformedAnswer: the answer is malformed after all repairs.
            RequestRefused, ServiceError, StorageError, BudgetReached: there is no answer.
        """
        messages = self.prompts.build_messages(step, query, passages, answer)
        schema = build_schema(step, len(passages))
        for repair in range(self.config.repairs + 1):
            entry = await self._entry(step, messages, schema)
            content = str(entry["content"])
            try:
                return read(content)
            except MalformedAnswer as error:
                reason = str(error) if entry["finish"] == "stop" else f"{error} (ended by {entry['finish']})"
                self.counts.malformed += 1
                self.counts.first_malformed = self.counts.first_malformed or f"{step}: {reason}: {content[:120]!r}"
                if repair == self.config.repairs:
                    raise MalformedAnswer(f"{step}: {reason}") from error
                messages = self.prompts.build_repair_messages(messages, content, reason)
        raise AssertionError("a range that begins at 0 is not empty")

    def key(self, messages: list[Message], schema: dict[str, Any]) -> str:
        """Return the SHA-256 of all that an answer depends on: model, parameters, messages and schema."""
        config = self.config
        parts = [self.llm, config.temperature, config.max_tokens, messages, schema]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    async def _entry(self, step: str, messages: list[Message], schema: dict[str, Any]) -> Entry:
        key = self.key(messages, schema)
        in_flight = self._in_flight.get(key)
        if in_flight is not None:
            return await asyncio.shield(in_flight)
        entry = self.log.get(key)
        if entry is not None:
            self.counts.from_log += 1
            return entry
        future = self._in_flight[key] = asyncio.get_running_loop().create_future()
        try:
            entry = await self._pay(key, step, messages, schema)
            future.set_result(entry)
            return entry
        except BaseException as error:
            future.set_exception(error if isinstance(error, Exception) else ServiceError("interrupted"))
            with suppress(BaseException):
                future.exception()  # otherwise asyncio warns about an error that no task has read
            raise
        finally:
            del self._in_flight[key]

    async def _pay(self, key: str, step: str, messages: list[Message], schema: dict[str, Any]) -> Entry:
        assert self.service is not None
        size = count_bytes(messages)
        async with self._slots:
            reserved = await self.spending.reserve(size, self.config.max_tokens)
            if self.stop_reasons:
                self.spending.settle(reserved, TokenCounts())
                raise self.stop_reasons[0]
            paid = TokenCounts()
            try:
                reply = await self.service.chat(messages, schema)
                guessed = reply.read is None or reply.written is None
                self.counts.uncounted += guessed
                estimator = self.spending.estimator
                paid.read = estimator.estimate(size) if reply.read is None else reply.read
                paid.written = estimator.estimate(len(reply.content.encode("utf-8", "replace")))
                if reply.written is not None:
                    paid.written = reply.written
                if reply.read:
                    estimator.record(size, reply.read)
            finally:
                self.spending.settle(reserved, paid)
        entry: Entry = {"job": self.job, "llm": self.llm, "step": step, "content": reply.content}
        entry |= {"finish": reply.finish, "bytes": size, "read": paid.read, "written": paid.written, "guessed": guessed}
        if self.logs:
            self.log.put(key, entry)
        self.counts.asked += 1
        return entry


def count_bytes(messages: list[Message]) -> int:
    """Return the size of a prompt in bytes of UTF-8, from which its tokens are estimated."""
    return sum(len(message["content"].encode("utf-8", "replace")) for message in messages)


def split_evenly(passages: Sequence[str], size: int) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield chunks with nearly equal numbers of passages, at most `size`, each with the index of its first passage."""
    count = -(-len(passages) // size)  # rounded up
    for number in range(count):
        start, end = (len(passages) * edge // count for edge in (number, number + 1))
        yield start, passages[start:end]


def check_failures(counts: Counts, finished: int, fraction: float, is_complete: bool = False) -> UserError | None:
    """Return an error if the fraction of finished queries without an annotation is too large."""
    if counts.failed <= fraction * finished or (finished < _MIN_QUERIES and not is_complete):
        return None
    what = f"{counts.failed:,} of {finished:,} queries have no annotation; the first error: {counts.first_failed}"
    raised = f"{setting('max_tokens')} or {setting('max_failed')}"
    return ServiceError(what, setting("llm"), f"use a model that follows the requested format, or raise {raised}")
