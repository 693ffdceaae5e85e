"""Budgets: never exceeded, and not given up while something under way may leave room."""

from __future__ import annotations

import asyncio

import pytest

from raytriever.evaluation.annotation.annotation_settings import LlmConfig
from raytriever.retrieval.endpoints.service_budget import BudgetReached, Spending, TokenCounts, TokenEstimator


def run(config: LlmConfig, requests: int, earlier: TokenCounts | None = None) -> tuple[Spending, int, list[float]]:
    """Requests of 100 tokens read that may write 100 and write 10, eight at once; how many were paid, and the cost."""
    spending = Spending(config, earlier or TokenCounts())
    spending.estimator.record(400, 100)
    costs = []

    async def ask(slots: asyncio.Semaphore) -> int:
        async with slots:
            try:
                aside = await spending.reserve(399, 100)
            except BudgetReached:
                return 0
            await asyncio.sleep(0.001)
            spending.settle(aside, TokenCounts(100, 10))
            costs.append(spending.cost)
            return 1

    async def every() -> int:
        slots = asyncio.Semaphore(8)
        return sum(await asyncio.gather(*(ask(slots) for _ in range(requests))))

    return spending, asyncio.run(every()), costs


def test_a_budget_of_tokens() -> None:
    spending, paid, _ = run(LlmConfig(budget_tokens=1000), 50)
    # A request costs 110 and must fit with 200: after eight 880 are spent, and no ninth is sent.
    assert paid == 8
    assert spending.spent == TokenCounts(800, 80)


def test_a_budget_of_money_counts_what_earlier_runs_paid() -> None:
    config = LlmConfig(budget=1e-3, price_in=1.0, price_out=4.0)
    spending, paid, costs = run(config, 50)
    assert paid == 4  # 140 each, 500 set aside: 560 are spent, a fifth might make 1,060
    assert max(costs) <= 1e-3
    again, more, _ = run(config, 50, spending.spent)
    assert more == 0
    assert again.cost == spending.cost


def test_without_a_budget_all_are_paid() -> None:
    assert run(LlmConfig(), 50)[1] == 50


def test_tokens_are_guessed_until_they_are_counted() -> None:
    estimator = TokenEstimator()
    assert estimator.estimate(400) == pytest.approx(100, abs=1)
    estimator.record(300, 100)
    assert estimator.estimate(300) == pytest.approx(100, abs=1)
