"""Estimate of a job before any request: all that the log does not hold, in requests, tokens and money.

The requests for relevance are known to the letter. What follows depends on their answers, so two figures are given:
`likely` takes half of the candidates for relevant and answers of the usual length, `at most` all of them, and every
answer as long as `--max-tokens` lets it be. A query whose earlier answers are in the log is counted from where it
stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from raytriever.annotation.annotator import Annotator, Question, portions
from raytriever.annotation.budget import Gauge, Tokens
from raytriever.annotation.config import ServiceConfig
from raytriever.annotation.prompts import ANSWER, LONGEST_ANSWER, RELEVANCE, UTILITY, Malformed, numbers_of, read_answer
from raytriever.annotation.requests import NotAnswered, bytes_of

# Tokens of an answer as `likely` has it: a short paragraph; a number with its comma; braces and the field's name.
_ANSWER_TOKENS, _NUMBER_TOKENS, _FORM_TOKENS = 80, 2, 6
_ANSWER_BYTES = 4 * _ANSWER_TOKENS
T = TypeVar("T")


@dataclass
class Sum:
    """Requests, bytes of prompts, tokens of answers."""

    requests: int = 0
    prompt_bytes: int = 0
    written: int = 0

    def add(self, prompt_bytes: int, written: int) -> None:
        """Count a request."""
        self.requests += 1
        self.prompt_bytes += prompt_bytes
        self.written += written

    def tokens(self, gauge: Gauge) -> Tokens:
        """Total cost."""
        return Tokens(gauge.tokens(self.prompt_bytes) if self.requests else 0, self.written)


@dataclass
class Estimate:
    """Requests that are still to be paid; `from_log` answers exist already."""

    likely: Sum = field(default_factory=Sum)
    most: Sum = field(default_factory=Sum)
    from_log: int = 0

    def table(self, config: ServiceConfig, gauge: Gauge) -> str:
        """The figures as lines."""
        sums = (self.likely, self.most)
        tokens = [each.tokens(gauge) for each in sums]
        rows = {
            "requests": [f"{each.requests:,}" for each in sums],
            "tokens read": [f"{each.read:,}" for each in tokens],
            "tokens written": [f"{each.written:,}" for each in tokens],
        }
        if config.price_in or config.price_out:
            rows["cost"] = [f"{each.cost(config):,.2f}" for each in tokens]
        lines = [f"{'':<16}{'likely':>18}{'at most':>18}"]
        lines += [f"{name:<16}" + "".join(f"{cell:>18}" for cell in cells) for name, cells in rows.items()]
        return "\n".join([*lines, f"{self.from_log:,} answers are in the log already and cost nothing"])


async def estimate(annotator: Annotator, questions: Iterable[Question]) -> Estimate:
    """Estimate the cost of the remaining questions; the annotator has no service."""
    found = Estimate()
    for question in questions:
        await _add(found, annotator, question)
    found.from_log = annotator.counts.from_log
    return found


async def _add(found: Estimate, annotator: Annotator, question: Question) -> None:
    limit = annotator.config.max_tokens
    relevant: list[str] = []
    known = True
    for _, passages in portions(question.passages, annotator.config.passages_per_prompt):
        count = len(passages)
        places = await _asked(annotator, RELEVANCE, question.text, passages, numbers_of(RELEVANCE, count))
        if places is None:
            return
        if isinstance(places, NotAnswered):
            known = False
            size = bytes_of(places.messages)
            found.likely.add(size, _list_tokens(-(-count // 2)))
            found.most.add(size, limit)
        else:
            relevant += [passages[place] for place in places]
    if known and not relevant:
        return
    answer: str | None = None
    if known:
        reply = await _asked(annotator, ANSWER, question.text, relevant, read_answer)
        if reply is None:
            return
        answer = reply if isinstance(reply, str) else None
        if answer is not None:
            done = await _asked(annotator, UTILITY, question.text, relevant, numbers_of(UTILITY, len(relevant)), answer)
            if not isinstance(done, NotAnswered):
                return
    every = list(question.passages)
    for total, passages, length, written in (
        (found.likely, relevant if known else every[: -(-len(every) // 2)], _ANSWER_BYTES, _ANSWER_TOKENS),
        (found.most, relevant if known else every, LONGEST_ANSWER, limit),
    ):
        if answer is None:
            total.add(bytes_of(annotator.prompts.ask(ANSWER, question.text, passages)), written)
        text = "x" * length if answer is None else answer
        size = bytes_of(annotator.prompts.ask(UTILITY, question.text, passages, text))
        total.add(size, limit if total is found.most else _list_tokens(len(passages)))


async def _asked(
    annotator: Annotator, stage: str, query: str, passages: Sequence[str], read: Callable[[str], T], answer: str = ""
) -> T | NotAnswered | None:
    """Return the answer of the log; None if it stays malformed."""
    try:
        return await annotator.ask(stage, query, passages, read, answer)
    except NotAnswered as missing:
        return missing
    except Malformed:
        return None


def _list_tokens(count: int) -> int:
    return _FORM_TOKENS + _NUMBER_TOKENS * count
