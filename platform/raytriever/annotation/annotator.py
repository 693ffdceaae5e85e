"""Annotation of queries: relevance, pseudo-answer, utility.

The method is that of *Training dense retrievers with multiple positive passages*, section 4.2, stages 2 to 4, after
Zhang et al. (2025).

1. The model names the relevant ones among the candidates, some at a time.
2. From those it writes an answer.
3. Of those it names the passages that were useful and necessary for it, the most useful first: the positives.

More queries are begun than requests may be under way, so that the service has work while an answer is written to disk,
and while the last queries end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from raytriever.annotation.budget import BudgetReached
from raytriever.annotation.prompts import ANSWER, RELEVANCE, UTILITY, Malformed, numbers_of, read_answer
from raytriever.annotation.requests import Asker, Counts
from raytriever.annotation.service import Refused, ServiceError
from raytriever.errors import UserError

_ENOUGH = 20  # queries ended before a share of failures means anything
_BEGUN = 2  # queries begun for each request that may be under way


@dataclass(frozen=True)
class Question:
    """A query with its candidates: positions, and texts as the model is shown them."""

    text: str
    documents: Sequence[int]
    passages: Sequence[str]


@dataclass(frozen=True)
class Annotation:
    """Annotation of a query, with documents by position; `failed` is the reason if there is none."""

    relevant: Sequence[int] = ()
    answer: str = ""
    useful: Sequence[int] = ()
    failed: str = ""


class Annotator(Asker):
    """Takes queries through the steps."""

    async def run(
        self, questions: Iterator[tuple[int, Question]], on_result: Callable[[int, Annotation], None]
    ) -> UserError | BudgetReached | None:
        """Annotate all questions, and call `on_result` after each; it may raise a `UserError` to stop the job.

        Returns:
            What ended the job before its time, when everything under way was answered and written; else None.
        """
        ended = self.ended

        async def work() -> None:
            for number, question in questions:
                if ended:
                    return
                try:
                    on_result(number, await self.annotate(question))
                except (UserError, BudgetReached) as reason:
                    ended.append(reason)
                    if self.service is not None and not isinstance(reason, BudgetReached):
                        self.service.stop.set()

        async with asyncio.TaskGroup() as group:
            for _ in range(_BEGUN * self.in_flight):
                group.create_task(work())
        # A failing service is the reason, even if the budget ran out at the same time.
        return next((reason for reason in ended if isinstance(reason, UserError)), ended[0] if ended else None)

    async def annotate(self, question: Question) -> Annotation:
        """The three steps for one query.

        Raises:
            ServiceError, StorageError, BudgetReached: the job cannot go on.
        """
        try:
            relevant = await self._relevant(question)
            if not relevant:
                return Annotation()
            documents = [question.documents[place] for place in relevant]
            passages = [question.passages[place] for place in relevant]
            answer = await self.ask(ANSWER, question.text, passages, read_answer)
            useful = await self.ask(UTILITY, question.text, passages, numbers_of(UTILITY, len(passages)), answer)
        except (Malformed, Refused) as why:
            self.counts.failed += 1
            self.counts.first_failed = self.counts.first_failed or str(why)
            return Annotation(failed=str(why))
        return Annotation(documents, answer, [documents[place] for place in useful])

    async def _relevant(self, question: Question) -> list[int]:
        found = []
        for start, passages in portions(question.passages, self.config.passages_per_prompt):
            places = await self.ask(RELEVANCE, question.text, passages, numbers_of(RELEVANCE, len(passages)))
            # In the candidates' order: relevance is a yes or no here.
            found += [start + place for place in sorted(places)]
        return found


def portions(passages: Sequence[str], size: int) -> Iterator[tuple[int, Sequence[str]]]:
    """Passages in portions of at most `size`, as even as can be, each with the place of its first."""
    count = -(-len(passages) // size)
    for number in range(count):
        start, end = (len(passages) * edge // count for edge in (number, number + 1))
        yield start, passages[start:end]


def check_failures(counts: Counts, ended: int, share: float, whole: bool = False) -> UserError | None:
    """Return an error if more than a share of the queries has no annotation, once there are enough of them."""
    if counts.failed <= share * ended or (ended < _ENOUGH and not whole):
        return None
    return ServiceError(
        f"{counts.failed:,} of {ended:,} queries got no annotation; the first: {counts.first_failed}",
        "--llm",
        "take a model that follows the form asked for, or raise --max-tokens or --max-failed",
    )
