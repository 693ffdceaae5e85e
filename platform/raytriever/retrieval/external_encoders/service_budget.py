"""Costs of a job: tokens, prices, and a budget that no request may exceed.

Before a request is sent, its largest possible cost is reserved. When the response arrives, the actual cost replaces the
reserved one. So the budget is exceeded at most by the difference between estimated and counted tokens. The costs of
earlier runs of the same job are included, so repeating the command does not double the budget."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from raytriever.retrieval.external_encoders.endpoint_settings import ServiceConfig

# Assumed bytes of UTF-8 per token until a service reports token counts: typical of English text and BPE vocabularies.
BYTES_A_TOKEN = 4.0


class BudgetReached(Exception):
    """The budget allows no more requests."""


@dataclass
class TokenCounts:
    """Input tokens (read) and output tokens (written) of a model."""

    read: int = 0
    written: int = 0

    def cost(self, config: ServiceConfig) -> float:
        """Return the price in the currency of the settings."""
        read, written = config.prices
        return (self.read * read + self.written * written) / 1e6


@dataclass
class TokenEstimator:
    """Estimator of the tokens of a prompt. It uses the bytes per token of the prompts recorded so far."""

    read_bytes: int = 0
    read_tokens: int = 0

    def record(self, prompt_bytes: int, tokens: int) -> None:
        """Record a prompt whose tokens the service counted."""
        self.read_bytes += prompt_bytes
        self.read_tokens += tokens

    def estimate(self, prompt_bytes: float) -> int:
        """Estimate the tokens of a prompt."""
        ratio = self.read_bytes / self.read_tokens if self.read_bytes and self.read_tokens else BYTES_A_TOKEN
        return int(prompt_bytes / ratio) + 1


@dataclass
class Spending:
    """Spent and reserved costs within the budget of the settings. Spent costs include earlier runs of the job."""

    config: ServiceConfig
    spent: TokenCounts = field(default_factory=TokenCounts)
    estimator: TokenEstimator = field(default_factory=TokenEstimator)
    _reserved: TokenCounts = field(default_factory=TokenCounts)
    _in_flight: int = 0
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def cost(self) -> float:
        """Cost of the job so far, in the currency of the settings."""
        return self.spent.cost(self.config)

    async def reserve(self, prompt_bytes: int, max_tokens: int) -> TokenCounts:
        """Wait until the budget allows a request in addition to those in flight, and reserve its largest possible cost.

        Raise `BudgetReached` if the request exceeds the budget although no other is in flight."""
        while True:
            needed = TokenCounts(self.estimator.estimate(prompt_bytes), max_tokens)
            if self._fits(needed):
                self._add(needed, 1)
                return needed
            if not self._in_flight:
                raise BudgetReached
            self._settled.clear()
            await self._settled.wait()

    def settle(self, reserved: TokenCounts, paid: TokenCounts) -> None:
        """Replace the reserved cost of a request by the actual cost."""
        self._add(TokenCounts(-reserved.read, -reserved.written), -1)
        self.spent.read += paid.read
        self.spent.written += paid.written
        self._settled.set()

    def _add(self, tokens: TokenCounts, requests: int) -> None:
        self._reserved.read += tokens.read
        self._reserved.written += tokens.written
        self._in_flight += requests

    def _fits(self, needed: TokenCounts) -> bool:
        read = self.spent.read + self._reserved.read + needed.read
        written = self.spent.written + self._reserved.written + needed.written
        config = self.config
        if config.budget_tokens is not None and read + written > config.budget_tokens:
            return False
        return config.budget is None or TokenCounts(read, written).cost(config) <= config.budget
