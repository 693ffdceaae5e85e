"""Cost estimate of a job before its first request, in requests, tokens and money. Logged answers cost nothing.

For the estimate, the job runs with a service that invents its answers, and nothing is logged. The requests of the
relevance step are known exactly. Later requests depend on their answers, so there are two estimates. `likely` assumes
that half of the candidates are relevant and that answers have a typical length. `at most` assumes that all candidates
are relevant and that every answer has `--max-tokens` tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from raytriever.evaluation.annotation.annotation_settings import LlmConfig
from raytriever.evaluation.annotation.annotator import AnnotationQuery, Annotator, Counts, count_bytes
from raytriever.evaluation.annotation.chat_completions import Reply
from raytriever.evaluation.annotation.llm_prompts import ANSWER, FIELDS, LONGEST_ANSWER, RELEVANCE, Message
from raytriever.retrieval.external_encoders.service_budget import Spending, TokenCounts, TokenEstimator

# Numbers of tokens that `likely` assumes for a short paragraph, a number with its comma, and braces with a field name.
_ANSWER_TOKENS, _NUMBER_TOKENS, _FORMAT_TOKENS = 80, 2, 6
_ANSWER_BYTES = 4 * _ANSWER_TOKENS


@dataclass
class MadeUpAnswers:
    """Service that invents its answers, and counts the requests, the bytes of prompts and the tokens of answers.
    With `most`, every answer has `most` tokens, and all candidates are relevant. None means answers for `likely`."""

    most: int | None
    requests: int = 0
    prompt_bytes: int = 0
    written: int = 0

    async def chat(self, messages: list[Message], schema: dict[str, Any]) -> Reply:
        """Return an answer of the form that a request asks for."""
        [field] = schema["required"]
        value: str | list[int]
        if field == FIELDS[ANSWER]:
            value, written = "x" * (LONGEST_ANSWER if self.most else _ANSWER_BYTES), _ANSWER_TOKENS
        else:
            value = schema["properties"][field]["items"]["enum"]
            if field == FIELDS[RELEVANCE] and self.most is None:
                value = value[: -(-len(value) // 2)]
            written = _FORMAT_TOKENS + _NUMBER_TOKENS * len(value)
        self.requests += 1
        self.prompt_bytes += count_bytes(messages)
        self.written += self.most or written
        return Reply(json.dumps({field: value}), "stop", 0, 0)

    def tokens(self, estimator: TokenEstimator) -> TokenCounts:
        """Return the total input and output tokens."""
        return TokenCounts(estimator.estimate(self.prompt_bytes) if self.requests else 0, self.written)


@dataclass(frozen=True)
class Estimate:
    """Estimated requests, which are not paid yet. `from_log` is the number of answers that the log has."""

    likely: MadeUpAnswers
    most: MadeUpAnswers
    from_log: int

    def table(self, config: LlmConfig, estimator: TokenEstimator) -> str:
        """Format the estimate as a text table."""
        sums = (self.likely, self.most)
        tokens = [total.tokens(estimator) for total in sums]
        rows = {
            "requests": [f"{total.requests:,}" for total in sums],
            "tokens read": [f"{count.read:,}" for count in tokens],
            "tokens written": [f"{count.written:,}" for count in tokens],
        }
        if config.price_in or config.price_out:
            rows["cost"] = [f"{count.cost(config):,.4g}" for count in tokens]
        lines = [f"{'':<16}{'likely':>18}{'at most':>18}"]
        lines += [f"{name:<16}" + "".join(f"{cell:>18}" for cell in cells) for name, cells in rows.items()]
        return "\n".join([*lines, f"{self.from_log:,} answers are in the log already and cost nothing"])


def estimate(annotator: Annotator, questions: Callable[[], Iterable[AnnotationQuery]]) -> Estimate:
    """Estimate the cost of annotating the questions. Nothing is sent or logged."""

    async def run(service: MadeUpAnswers) -> int:
        spending = Spending(LlmConfig())  # without a budget
        rehearsal = replace(annotator, service=service, spending=spending, counts=Counts(), logs=False)
        for question in questions():
            await rehearsal.annotate(question)
        return rehearsal.counts.from_log

    likely, most = MadeUpAnswers(None), MadeUpAnswers(annotator.config.max_tokens)
    return Estimate(likely, most, max(asyncio.run(run(case)) for case in (likely, most)))
