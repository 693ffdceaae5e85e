"""Cost estimate of a job before its first request, in requests, tokens and money. Logged answers cost nothing.

The requests of the relevance stage are known exactly. Later requests depend on their answers, so there are two
estimates. `likely` assumes that half of the candidates are relevant and that answers have a typical length. `at most`
assumes that all candidates are relevant and that every answer has `--max-tokens` tokens. If the log has the first
answers of a query, only its remaining requests count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from raytriever.annotation.annotator import AnnotationQuery, Annotator, MissingAnswer, count_bytes, split_evenly
from raytriever.annotation.budget import TokenCounts, TokenEstimator
from raytriever.annotation.config import ServiceConfig
from raytriever.annotation.prompts import (
    ANSWER,
    LONGEST_ANSWER,
    RELEVANCE,
    UTILITY,
    MalformedAnswer,
    number_reader,
    read_answer,
)

# Tokens assumed by `likely`: a short paragraph; a number with its comma; the braces and the name of the field.
_ANSWER_TOKENS, _NUMBER_TOKENS, _FORM_TOKENS = 80, 2, 6
_ANSWER_BYTES = 4 * _ANSWER_TOKENS
T = TypeVar("T")


@dataclass
class Totals:
    """Number of requests, bytes of prompts, tokens of answers."""

    requests: int = 0
    prompt_bytes: int = 0
    written: int = 0

    def add(self, prompt_bytes: int, written: int) -> None:
        """Add a request."""
        self.requests += 1
        self.prompt_bytes += prompt_bytes
        self.written += written

    def tokens(self, estimator: TokenEstimator) -> TokenCounts:
        """Return the total input and output tokens."""
        return TokenCounts(estimator.estimate(self.prompt_bytes) if self.requests else 0, self.written)


@dataclass
class Estimate:
    """Requests that are not paid yet. `from_log` is the number of answers that the log has."""

    likely: Totals = field(default_factory=Totals)
    most: Totals = field(default_factory=Totals)
    from_log: int = 0

    def table(self, config: ServiceConfig, estimator: TokenEstimator) -> str:
        """Format the estimate as a text table."""
        sums = (self.likely, self.most)
        tokens = [each.tokens(estimator) for each in sums]
        rows = {
            "requests": [f"{each.requests:,}" for each in sums],
            "tokens read": [f"{each.read:,}" for each in tokens],
            "tokens written": [f"{each.written:,}" for each in tokens],
        }
        if config.price_in or config.price_out:
            rows["cost"] = [f"{each.cost(config):,.4g}" for each in tokens]
        lines = [f"{'':<16}{'likely':>18}{'at most':>18}"]
        lines += [f"{name:<16}" + "".join(f"{cell:>18}" for cell in cells) for name, cells in rows.items()]
        return "\n".join([*lines, f"{self.from_log:,} answers are in the log already and cost nothing"])


async def estimate(annotator: Annotator, questions: Iterable[AnnotationQuery]) -> Estimate:
    """Estimate the cost of the remaining questions, with an annotator without a service."""
    result = Estimate()
    for question in questions:
        await _add(result, annotator, question)
    result.from_log = annotator.counts.from_log
    return result


async def _add(result: Estimate, annotator: Annotator, question: AnnotationQuery) -> None:
    limit = annotator.config.max_tokens
    relevant: list[str] = []
    tokens_are_known = True
    for _, passages in split_evenly(question.passages, annotator.config.passages_per_prompt):
        count = len(passages)
        indices = await _ask_log(annotator, RELEVANCE, question.text, passages, number_reader(RELEVANCE, count))
        if indices is None:
            return
        if isinstance(indices, MissingAnswer):
            tokens_are_known = False
            size = count_bytes(indices.messages)
            result.likely.add(size, _list_tokens(-(-count // 2)))
            result.most.add(size, limit)
        else:
            relevant += [passages[index] for index in indices]
    if tokens_are_known and not relevant:
        return
    answer: str | None = None
    if tokens_are_known:
        reply = await _ask_log(annotator, ANSWER, question.text, relevant, read_answer)
        if reply is None:
            return
        answer = reply if isinstance(reply, str) else None
        if answer is not None:
            useful = await _ask_log(
                annotator, UTILITY, question.text, relevant, number_reader(UTILITY, len(relevant)), answer
            )
            if not isinstance(useful, MissingAnswer):
                return
    every = list(question.passages)
    for total, passages, length, written in (
        (result.likely, relevant if tokens_are_known else every[: -(-len(every) // 2)], _ANSWER_BYTES, _ANSWER_TOKENS),
        (result.most, relevant if tokens_are_known else every, LONGEST_ANSWER, limit),
    ):
        if answer is None:
            total.add(count_bytes(annotator.prompts.build_messages(ANSWER, question.text, passages)), written)
        text = "x" * length if answer is None else answer
        size = count_bytes(annotator.prompts.build_messages(UTILITY, question.text, passages, text))
        total.add(size, limit if total is result.most else _list_tokens(len(passages)))


async def _ask_log(
    annotator: Annotator, stage: str, query: str, passages: Sequence[str], read: Callable[[str], T], answer: str = ""
) -> T | MissingAnswer | None:
    """Return the answer from the log, None if it is malformed after all repairs."""
    try:
        return await annotator.ask(stage, query, passages, read, answer)
    except MissingAnswer as missing:
        return missing
    except MalformedAnswer:
        return None


def _list_tokens(count: int) -> int:
    return _FORM_TOKENS + _NUMBER_TOKENS * count
