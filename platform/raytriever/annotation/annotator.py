"""Annotation of queries: relevance, pseudo-answer, utility.

The method is that of *Training dense retrievers with multiple positive passages*, section 4.2, stages 2 to 4, after
Zhang et al. (2025).

1. The model selects the relevant candidates. Long lists are split over several requests.
2. It writes an answer from the relevant passages.
3. It selects the passages that were useful and necessary for the answer, the most useful first. They are the positives.

More queries are processed at once than requests may be in flight. So the service stays busy while an answer is written
to disk, and while the last queries end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from raytriever.annotation.budget import BudgetReached
from raytriever.annotation.prompts import ANSWER, RELEVANCE, UTILITY, MalformedAnswer, number_reader, read_answer
from raytriever.annotation.requests import Counts, StageClient
from raytriever.annotation.service import RequestRefused, ServiceError
from raytriever.errors import UserError, setting

_MIN_QUERIES = 20  # the share of failures means little before as many queries are finished
_QUERIES_PER_REQUEST = 2  # queries processed at once for each request that may be in flight


@dataclass(frozen=True)
class AnnotationQuery:
    """Query with its candidates: positions in the corpus, and the texts that the model sees."""

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


class Annotator(StageClient):
    """Client that takes each query through the three stages."""

    async def run(
        self, questions: Iterator[tuple[int, AnnotationQuery]], on_result: Callable[[int, Annotation], None]
    ) -> UserError | BudgetReached | None:
        """Annotate all questions, and call `on_result` after each. `on_result` may raise a `UserError` to stop the job.

        Returns:
            The reason if the job stopped early, else None. All requests in flight are answered and logged first.
        """
        stop_reasons = self.stop_reasons

        async def work() -> None:
            for number, question in questions:
                if stop_reasons:
                    return
                try:
                    on_result(number, await self.annotate(question))
                except (UserError, BudgetReached) as reason:
                    stop_reasons.append(reason)
                    if self.service is not None and not isinstance(reason, BudgetReached):
                        self.service.stop.set()

        async with asyncio.TaskGroup() as group:
            for _ in range(_QUERIES_PER_REQUEST * self.in_flight):
                group.create_task(work())
        # A failed service is the reason, even if the budget ran out at the same time.
        errors = [reason for reason in stop_reasons if isinstance(reason, UserError)]
        return next(iter([*errors, *stop_reasons]), None)

    async def annotate(self, question: AnnotationQuery) -> Annotation:
        """Run the three stages for one query.

        Raises:
            ServiceError, StorageError, BudgetReached: the job cannot continue.
        """
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
            # Relevance is binary, so the order of the candidates stays.
            relevant += [start + index for index in sorted(indices)]
        return relevant


def split_evenly(passages: Sequence[str], size: int) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield parts of at most `size` passages and nearly equal length, each with the index of its first passage."""
    count = -(-len(passages) // size)
    for number in range(count):
        start, end = (len(passages) * edge // count for edge in (number, number + 1))
        yield start, passages[start:end]


def check_failures(counts: Counts, finished: int, share: float, is_complete: bool = False) -> UserError | None:
    """Return an error if too large a share of the finished queries has no annotation."""
    if counts.failed <= share * finished or (finished < _MIN_QUERIES and not is_complete):
        return None
    return ServiceError(
        f"{counts.failed:,} of {finished:,} queries have no annotation; the first error: {counts.first_failed}",
        setting("llm"),
        f"use a model that follows the requested format, or raise {setting('max_tokens')} or {setting('max_failed')}",
    )
