"""Cost of a job so far and to come: tokens, prices, and a budget that no request may exceed.

Before a request is sent the most it can cost is set aside; when it is answered, what it did cost takes that place. So
a budget is not exceeded by what was under way, but for the difference between tokens guessed and counted. The budget
is the job's, not the run's: what earlier runs of the same job paid counts, and giving the command again does not
double it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from raytriever.annotation.config import ServiceConfig

# Bytes of UTF-8 a token, until a service has counted some: English text, as byte-pair vocabularies have it.
BYTES_A_TOKEN = 4.0


class BudgetReached(Exception):
    """No further request can be paid for."""


@dataclass
class Tokens:
    """Tokens read and written by a model."""

    read: int = 0
    written: int = 0

    def cost(self, config: ServiceConfig) -> float:
        """Their price, in the currency of the settings."""
        return (self.read * config.price_in + self.written * config.price_out) / 1e6


@dataclass
class Gauge:
    """Bytes of a prompt per token, measured on the answers so far."""

    read_bytes: int = 0
    read_tokens: int = 0

    def learn(self, prompt_bytes: int, tokens: int) -> None:
        """Take note of a prompt that was counted."""
        self.read_bytes += prompt_bytes
        self.read_tokens += tokens

    def tokens(self, prompt_bytes: float) -> int:
        """The tokens of a prompt, about."""
        ratio = self.read_bytes / self.read_tokens if self.read_bytes and self.read_tokens else BYTES_A_TOKEN
        return int(prompt_bytes / ratio) + 1


@dataclass
class Spending:
    """Spent and reserved costs, and the budget.

    Args:
        config: prices and budgets.
        spent: what the job's earlier runs paid.
        gauge: guesses tokens before they are counted.
    """

    config: ServiceConfig
    spent: Tokens = field(default_factory=Tokens)
    gauge: Gauge = field(default_factory=Gauge)
    _aside: Tokens = field(default_factory=Tokens)
    _under_way: int = 0
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def cost(self) -> float:
        """Cost of the job so far."""
        return self.spent.cost(self.config)

    async def set_aside(self, prompt_bytes: int, max_tokens: int) -> Tokens:
        """Reserve the largest cost of a request, once it fits next to the requests in flight.

        Raises:
            BudgetReached: it does not fit though none is under way.
        """
        while True:
            wanted = Tokens(self.gauge.tokens(prompt_bytes), max_tokens)
            if self._fits(wanted):
                self._add(wanted, 1)
                return wanted
            if not self._under_way:
                raise BudgetReached
            self._settled.clear()
            await self._settled.wait()

    def settle(self, aside: Tokens, paid: Tokens) -> None:
        """Put what a request did cost in the place of what was set aside for it."""
        self._add(Tokens(-aside.read, -aside.written), -1)
        self.spent.read += paid.read
        self.spent.written += paid.written
        self._settled.set()

    def _add(self, tokens: Tokens, requests: int) -> None:
        self._aside.read += tokens.read
        self._aside.written += tokens.written
        self._under_way += requests

    def _fits(self, wanted: Tokens) -> bool:
        read = self.spent.read + self._aside.read + wanted.read
        written = self.spent.written + self._aside.written + wanted.written
        config = self.config
        if config.budget_tokens is not None and read + written > config.budget_tokens:
            return False
        return config.budget is None or Tokens(read, written).cost(config) <= config.budget
