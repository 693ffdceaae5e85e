"""The steps of one query after another, against a real service and a real log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raytriever.evaluation.annotation.annotation_settings import AnnotationConfig, LlmConfig
from raytriever.evaluation.annotation.annotator import Annotation, AnnotationQuery, Annotator, split_evenly
from raytriever.evaluation.annotation.answer_log import AnswerLog
from raytriever.evaluation.annotation.chat_completions import Service
from raytriever.evaluation.annotation.llm_prompts import load_prompts
from raytriever.retrieval.endpoints.service_budget import Spending

WOOD = AnnotationQuery("what is timber", [5, 3, 8, 9], ["timber burns", "iron", "timber is a long word", "steel"])
NOTHING = AnnotationQuery("what is timber", [1, 2], ["iron", "steel"])


def run(
    endpoint: str, folder: Path, questions: list[AnnotationQuery], config: AnnotationConfig | None = None
) -> tuple[dict[int, Annotation], Annotator]:
    service = LlmConfig(base_url=endpoint, llm="judge", in_flight=4)
    config = config or AnnotationConfig()
    log = AnswerLog(folder)
    annotations: dict[int, Annotation] = {}

    async def every() -> Annotator:
        async with Service(service, config.temperature, config.max_tokens, None) as asked:
            prompts = load_prompts("")
            annotator = Annotator(
                prompts=prompts,
                config=config,
                llm="judge",
                job="job",
                log=log,
                service=asked,
                spending=Spending(service),
                in_flight=service.in_flight,
            )
            assert await annotator.run(iter(enumerate(questions)), annotations.__setitem__) is None
            return annotator

    try:
        return annotations, asyncio.run(every())
    finally:
        log.close()


def test_relevant_then_useful_in_order(serve: Callable[..., Any], tmp_path: Path) -> None:
    served = serve()
    result, annotator = run(served.endpoint, tmp_path / "log", [WOOD, NOTHING])
    assert result[0].relevant == [5, 8]
    assert result[0].useful == [8, 5]
    assert result[0].answer == "It is said: timber burns"
    assert result[1] == Annotation()
    assert served.events("asked").total() == annotator.counts.asked == 4


def test_portions_of_a_long_list_lose_nothing(serve: Callable[..., Any], tmp_path: Path) -> None:
    assert [(start, len(some)) for start, some in split_evenly(["p"] * 7, 3)] == [(0, 2), (2, 2), (4, 3)]
    assert list(split_evenly([], 3)) == []
    result, annotator = run(serve().endpoint, tmp_path, [WOOD], AnnotationConfig(passages_per_prompt=1))
    assert result[0].useful == [8, 5]
    assert annotator.counts.asked == 4 + 2


def test_equal_requests_are_asked_once(serve: Callable[..., Any], tmp_path: Path) -> None:
    served = serve(service_time=0.05)
    result, annotator = run(served.endpoint, tmp_path, [WOOD] * 6)
    assert all(result[number] == result[0] for number in range(6))
    assert served.events("asked").total() == 3
    assert annotator.counts.asked == 3


def test_another_prompt_model_or_setting_is_another_request(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    messages = load_prompts("").build_messages("answer", "what", ["this"])

    def key(llm: str = "judge", content: str = "", **settings: Any) -> str:
        config = AnnotationConfig(**settings)
        annotator = Annotator(
            prompts=load_prompts(""),
            config=config,
            llm=llm,
            job="job",
            log=log,
            service=None,
            spending=Spending(LlmConfig()),
        )
        return annotator.key([*messages, {"role": "user", "content": content}], {})

    keys = [key(), key("other"), key(content="more"), key(temperature=0.5), key(max_tokens=99)]
    assert len(set(keys)) == 5
    assert key(repairs=5, max_failed=0.5, agreed="llm") == keys[0]
    log.close()
