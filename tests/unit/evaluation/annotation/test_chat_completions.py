"""Requests to a real server: retries of temporary failures, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from raytriever.evaluation.annotation.annotation_settings import LlmConfig
from raytriever.evaluation.annotation.chat_completions import Reply, Service
from raytriever.evaluation.annotation.llm_prompts import RELEVANCE, build_schema, load_prompts, read_numbers
from raytriever.retrieval.endpoints.openai_client import RequestRefused, ServiceError

QUICK = LlmConfig(llm="judge", timeout=5.0, longest_wait=0.05)
ASKED = load_prompts("").build_messages(RELEVANCE, "what is wood", ["wood is hard", "iron is harder"])


def chat(config: LlmConfig, key: str | None = None, times: int = 1) -> tuple[Reply, Service]:
    async def ask() -> tuple[Reply, Service]:
        async with Service(config, 0.0, 64, key) as service:
            replies = await asyncio.gather(*(service.chat(ASKED, build_schema(RELEVANCE, 2)) for _ in range(times)))
            return replies[0], service

    return asyncio.run(ask())


def check(config: LlmConfig, key: str | None = None) -> None:
    async def ask() -> None:
        async with Service(config, 0.0, 64, key) as service:
            await service.check()

    asyncio.run(ask())


def test_temporary_failures_are_retried(serve: Callable[..., Any]) -> None:
    served = serve(drop=0.12, busy=0.12, error=0.12, garbage=0.12, stall=0.12, retry_after=0.01, seed=1)
    _, service = chat(replace(QUICK, base_url=served.endpoint, retries=30, timeout=0.3), times=30)
    kinds = {"connection lost", "status 429", "status 500", "no chat completion", "no answer within 0.3 s"}
    assert set(service.retried) == kinds
    assert served.events("asked").total() == 30 + sum(service.retried.values())
    assert served.events("answered").total() == 30


@pytest.mark.parametrize(
    ("fault", "message", "asked"),
    [
        ({"error": 1.0}, "gives no answer", 3),
        ({"busy": 1.0, "retry_after": 86400}, "asks to wait for 86,400 seconds", 1),
        ({"filters": "iron is harder"}, "status 400: blocked by the content filter", 1),
    ],
)
def test_the_number_of_retries_is_limited(
    serve: Callable[..., Any], fault: dict[str, Any], message: str, asked: int
) -> None:
    served = serve(**fault)
    with pytest.raises(RequestRefused if "filters" in fault else ServiceError, match=message):
        chat(replace(QUICK, base_url=served.endpoint, retries=2))
    assert served.events("asked").total() == asked


def test_a_service_that_asks_for_time_gets_it(serve: Callable[..., Any]) -> None:
    served = serve(busy=1.0, retry_after=0.2)
    with pytest.raises(ServiceError):
        chat(replace(QUICK, base_url=served.endpoint, retries=2))
    times = served.times("asked")
    assert len(times) == 3
    assert all(later - earlier >= 0.2 for earlier, later in pairwise(times))


def test_keys(serve: Callable[..., Any]) -> None:
    config = replace(QUICK, base_url=serve(key="right-secret-key").endpoint)
    check(config, "right-secret-key")
    assert chat(config, "right-secret-key")[0].content
    for ask in (check, chat):
        with pytest.raises(ServiceError) as error:
            ask(config, "wrong-secret-key")
        assert "rejects the key (401" in str(error.value)
        assert "check the key in OPENAI_API_KEY" in str(error.value)
        assert "wrong-secret" not in str(error.value)
        with pytest.raises(ServiceError, match="store a key in OPENAI_API_KEY, or give another key_variable"):
            ask(config)


def test_models(serve: Callable[..., Any]) -> None:
    served = serve()
    with pytest.raises(ServiceError, match="llm: the service has no model 'juge'; did you mean 'judge'"):
        check(replace(QUICK, llm="juge", base_url=served.endpoint))
    with pytest.raises(ServiceError, match="llm: the service has no model 'juge'"):
        chat(replace(QUICK, llm="juge", base_url=served.endpoint))
    check(replace(QUICK, base_url=serve(no_models=True).endpoint))


def test_addresses(serve: Callable[..., Any]) -> None:
    served = serve()
    with pytest.raises(ServiceError, match=r"base_url: nothing answers at .* \(404\); correct the address, which"):
        chat(replace(QUICK, base_url=served.endpoint.removesuffix("/v1")))
    served.end()
    with pytest.raises(ServiceError, match="gives no answer: no connection"):
        check(replace(QUICK, base_url=served.endpoint))
    with pytest.raises(ServiceError, match="gives no answer: no connection"):
        check(replace(QUICK, base_url="http://no-such-host.invalid/v1"))


@pytest.mark.parametrize(("refuses", "asked"), [("json_schema", 2), ("response_format,max_tokens,temperature", 5)])
def test_rejected_parameters_are_left_out(serve: Callable[..., Any], refuses: str, asked: int) -> None:
    served = serve(refuses=refuses, wrapped=True)
    reply, _ = chat(replace(QUICK, base_url=served.endpoint))
    assert read_numbers(RELEVANCE, reply.content, 2) == [0]
    assert served.events("asked").total() == asked


def test_requests_at_once_find_the_dialect_together(serve: Callable[..., Any]) -> None:
    served = serve(refuses="response_format,temperature")
    chat(replace(QUICK, base_url=served.endpoint), times=8)
    assert served.events("answered").total() == 8


def test_a_service_that_does_not_count_tokens(serve: Callable[..., Any]) -> None:
    reply, _ = chat(replace(QUICK, base_url=serve(no_usage=True).endpoint))
    assert (reply.read, reply.written) == (None, None)
