"""The steps of one query after another, against a real service; the log of its answers, their parser, and budgets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raytriever.core.errors import StorageError
from raytriever.evaluation.annotation.annotation_settings import AnnotationConfig, LlmConfig
from raytriever.evaluation.annotation.annotator import Annotation, AnnotationQuery, Annotator, split_evenly
from raytriever.evaluation.annotation.answer_log import FILE, AnswerLog
from raytriever.evaluation.annotation.chat_completions import Service
from raytriever.evaluation.annotation.llm_prompts import (
    ANSWER,
    LONGEST_ANSWER,
    RELEVANCE,
    UTILITY,
    MalformedAnswer,
    build_schema,
    load_prompts,
    read_answer,
    read_numbers,
)
from raytriever.retrieval.external_encoders.service_budget import BudgetReached, Spending, TokenCounts, TokenEstimator

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


ENTRY = {"job": "j", "llm": "m", "step": "s", "finish": "stop", "bytes": 9, "read": 3, "written": 1, "guessed": False}
KEYS = [f"{number:064x}" for number in range(40)]


def put(log: AnswerLog, *keys: str) -> None:
    for key in keys:
        log.put(key, {**ENTRY, "content": key[-2:]})


def test_answers_come_back(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    put(log, *KEYS)
    assert log.get(KEYS[7]) == {"key": KEYS[7], **ENTRY, "content": "07"}
    log.close()
    again = AnswerLog(tmp_path)
    assert len(again) == 40
    assert [entry["key"] for entry in again.entries()] == KEYS
    assert again.get("f" * 64) is None
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    again.close()


def test_incomplete_line_is_removed_and_damaged_line_is_skipped(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    put(log, *KEYS[:3])
    log.close()
    file = tmp_path / FILE
    lines = file.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"01"', b'"01')
    file.write_bytes(b"".join(lines) + lines[0][:40] + b"x" * 999)
    again = AnswerLog(tmp_path)
    assert (len(again), again.damaged) == (2, 1)
    assert file.read_bytes() == b"".join(lines)
    assert again.get(KEYS[1]) is None
    put(again, KEYS[1])
    again.close()
    last = AnswerLog(tmp_path)
    assert (len(last), last.damaged) == (3, 1)
    last.close()


def test_full_disk_is_reported_and_the_log_still_opens(small_disk: Path) -> None:
    logs = []

    def fill_it() -> None:
        logs.append(AnswerLog(small_disk))
        for number in range(40):
            logs[0].put(f"{number:064x}", {**ENTRY, "content": "x" * 1000})

    with pytest.raises(StorageError, match="no space left"):
        fill_it()
    if small_disk.is_mount():
        there = len(logs[0])
        logs[0].close()
        again = AnswerLog(small_disk)
        assert (len(again), again.damaged) == (there, 0)
        assert there > 3
        again.close()


@pytest.mark.parametrize(
    ("content", "places"),
    [
        ('{"useful": [3, 1]}', [2, 0]),
        ('{"useful": []}', []),
        ('{"useful": [2, 2, 1, 2]}', [1, 0]),
        ('```json\n{"useful": [1]}\n```', [0]),
        ('<think>{"useful": [2]} or not</think> {"useful": [3]}', [2]),
        ('I think {this} first: {"useful": [1]}, no: {"useful": [2]}.', [1]),
        ('{"why": {"a": 1}, "useful": [1]}', [0]),
    ],
)
def test_numbers_are_read_in_the_order_named(content: str, places: list[int]) -> None:
    assert read_numbers(UTILITY, content, 3) == places


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", 'no JSON object with "relevant"'),
        ("no", 'no JSON object with "relevant"'),
        ('{"relevant": [1', 'no JSON object with "relevant"'),
        ('{"useful": [1]}', 'no JSON object with "relevant"'),
        ('{"relevant": "1"}', '"relevant" is no list'),
        ('{"relevant": null}', '"relevant" is no list'),
        ('{"relevant": [0]}', "holds 0, which is no number from 1 to 3"),
        ('{"relevant": [4]}', "holds 4, "),
        ('{"relevant": [-1]}', "holds -1, "),
        ('{"relevant": [1.0]}', "holds 1.0, "),
        ('{"relevant": [true]}', "holds true, "),
        ('{"relevant": ["1"]}', 'holds "1", '),
        ('{"relevant": [[1]]}', "holds [1], "),
        ("{" * 3000, "no JSON object"),
        ('{"a":' * 3000, "no JSON object"),
    ],
)
def test_anything_else_is_malformed(content: str, why: str) -> None:
    with pytest.raises(MalformedAnswer) as error:
        read_numbers(RELEVANCE, content, 3)
    assert why in str(error.value)


def test_answers() -> None:
    assert read_answer('{"answer": " Forty-two. "}') == "Forty-two."
    assert len(read_answer(f'{{"answer": "{"x" * 9000}"}}')) == LONGEST_ANSWER
    assert read_answer('{"answer": "\\ud800"}') == "?"
    for content in ('{"answer": " "}', '{"answer": 42}', '{"answer": null}', "Forty-two."):
        with pytest.raises(MalformedAnswer):
            read_answer(content)


def test_the_schema_allows_what_is_read() -> None:
    import jsonschema

    schema = build_schema(RELEVANCE, 2)
    jsonschema.validate({"relevant": [2, 1]}, schema)
    for wrong in ({"relevant": [3]}, {"relevant": ["1"]}, {}, {"relevant": [], "more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    jsonschema.validate({"answer": "yes"}, build_schema(ANSWER, 2))


def spend(config: LlmConfig, requests: int, earlier: TokenCounts | None = None) -> tuple[Spending, int, list[float]]:
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
    spending, paid, _ = spend(LlmConfig(budget_tokens=1000), 50)
    # A request costs 110 and must fit with 200: after eight 880 are spent, and no ninth is sent.
    assert paid == 8
    assert spending.spent == TokenCounts(800, 80)


def test_a_budget_of_money_counts_what_earlier_runs_paid() -> None:
    config = LlmConfig(budget=1e-3, price_in=1.0, price_out=4.0)
    spending, paid, costs = spend(config, 50)
    assert paid == 4  # 140 each, 500 set aside: 560 are spent, a fifth might make 1,060
    assert max(costs) <= 1e-3
    again, more, _ = spend(config, 50, spending.spent)
    assert more == 0
    assert again.cost == spending.cost


def test_without_a_budget_all_are_paid() -> None:
    assert spend(LlmConfig(), 50)[1] == 50


def test_tokens_are_guessed_until_they_are_counted() -> None:
    estimator = TokenEstimator()
    assert estimator.estimate(400) == pytest.approx(100, abs=1)
    estimator.record(300, 100)
    assert estimator.estimate(300) == pytest.approx(100, abs=1)
