"""Requests to a real server: retries of temporary failures; user errors of `annotate`, without a key in the line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from raytriever.cli.main import run
from raytriever.evaluation.annotation.annotation_settings import LlmConfig
from raytriever.evaluation.annotation.answer_log import AnswerLog
from raytriever.evaluation.annotation.chat_completions import Reply, Service
from raytriever.evaluation.annotation.llm_prompts import RELEVANCE, build_schema, load_prompts, read_numbers
from raytriever.retrieval.external_encoders.openai_client import RequestRefused, ServiceError

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
        ({"error": 1.0}, "gives no usable answer", 3),
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
        with pytest.raises(ServiceError, match="set the variable OPENAI_API_KEY to a key, or give another"):
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
    with pytest.raises(ServiceError, match="gives no usable answer: no connection"):
        check(replace(QUICK, base_url=served.endpoint))
    with pytest.raises(ServiceError, match="gives no usable answer: no connection"):
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


@pytest.fixture
def error_line(work: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `annotate` with a user error, and return the line of the error."""

    def end(*words: object, lines_expected: int = 1) -> str:
        before = sorted(work.rglob("*"))
        capsys.readouterr()
        code = run("annotate", [str(word) for word in words])
        out, err = capsys.readouterr()
        assert code == 2, err
        assert not out
        lines = [line for line in err.splitlines() if ": prepar" not in line and ": ranking with" not in line]
        assert len(lines) == lines_expected, err
        assert "Traceback" not in err
        assert sorted(work.rglob("*")) == before
        return lines[-1].removeprefix("error: ")

    return end


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("", "missing: --output; see `raytriever annotate --help`"),
        ("--output o --base-url localhost:8000", "base_url: is not a valid address; give one such as http://"),
        ("--output o --base-url ftp://host/v1", "base_url: is not a valid address; "),
        ("--output o --base-url http://host:99999/v1", "base_url: is not a valid address; "),
        ("--output o --base-url http://me:pw@host/v1", "base_url http://***@host/v1: there is a password in its "),
        ("--output o --base-url http://host/v1?x=1", "base_url: contains more than host and path; remove the rest"),
        ("--output o --base-url http://host/v1", "llm: is missing; give the name of the model at the service"),
        (
            "{} --key-variable sk-proj-123",
            "key_variable: is not the name of an environment variable; give the name, never",
        ),
        (
            "{} --key-variable gsk_12345abc",
            "key_variable: names an environment variable that is not set or empty; export the variable, or",
        ),
        ("{} --budget 5", "budget: needs the prices of tokens; give price_in, or budget_tokens"),
        ("{} --candidates ,", "candidates: is empty; give bm25, dense or the path of a run"),
        ("{} --candidates bm25,bm25", "candidates: contains 'bm25' twice; give each source once"),
        ("{} --split ../x", "--split: '../x' is not a valid name of a split; use letters, digits, '_' and '-'"),
        ("{} --prompts none", "prompts none: no such folder; give a folder with files such as relevance.txt"),
    ],
)
def test_settings(error_line: Callable[..., str], flags: str, line: str) -> None:
    result = error_line(*flags.replace("{}", "--output o --base-url http://127.0.0.1:9/v1 --llm judge").split())
    assert result.startswith(line)
    assert "sk-proj-123" not in result
    assert "gsk_12345abc" not in result


def test_a_key_that_cannot_be_sent(error_line: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret\nX-More: 1")
    line = error_line("--output", "o", "--base-url", "http://127.0.0.1:9/v1", "--llm", "judge")
    assert line == "key_variable: names a variable whose value is not a valid key; set this variable to the key alone"


def test_data(error_line: Callable[..., str], serve: Callable[..., Any], topics: Path, work: Path) -> None:
    words = ["--output", "o", "--base-url", serve().endpoint, "--llm", "judge", "--dataset"]
    assert "no data set" in error_line(*words, "nowhere") or "no such" in error_line(*words, "nowhere")
    line = error_line(*words, topics, "--split", "trian", "--max-queries", "4", "--candidates", "none.trec")
    assert line.startswith("candidates none.trec: no such file; ")
    run_file = topics / "run.trec"
    for text, wrong in (
        ("q1 Q0 d1-1 1 0.5\n", ":1: is not a line of a run; write lines `query Q0 document rank score tag`"),
        ("q1 Q0 d1-1 1 nan x\n", ":1: score 'nan' is not a finite number; "),
        ("\nq1 Q0 d99-1 1 0.5 x\n", ":2: unknown document id 'd99-1'; give a run over topics"),
        ("q99 Q0 d1-1 1 0.5 x\n", ": has none of the 24 queries; give a run over topics"),
        ("q\xff Q0 d1-1 1 0.5 x\n", ":1: is not a line of a run; "),
    ):
        run_file.write_bytes(text.encode("latin-1"))
        assert error_line(*words, topics, "--candidates", run_file).startswith(f"{run_file}{wrong}")
    run_file.unlink()
    queries = topics / "queries.jsonl"
    lines = queries.read_text().splitlines(keepends=True)
    queries.write_text("".join(lines[:32]))
    assert error_line(*words, topics, "--split", "trian") == (
        "topics: has no split 'trian' and no query without judgements; choose one of its splits: dev, test, train"
    )
    queries.write_text("".join(json.dumps({"_id": f"q{i}", "text": "zzzz"}) + "\n" for i in range(40)))
    assert error_line(*words, topics).startswith("topics: has no candidate passage for any of 24 queries; ")
    queries.write_text("")
    assert "queries.jsonl" in error_line(*words, topics)


def test_paths_in_use(error_line: Callable[..., str], serve: Callable[..., Any], topics: Path, work: Path) -> None:
    words = ["--base-url", serve().endpoint, "--llm", "judge", "--dataset", topics, "--output"]
    (work / "there").mkdir()
    assert error_line(*words, "there") == "there: exists already; give another output, or remove this one"
    log = AnswerLog(work / "answers")
    line = error_line(*words, "o", "--answers", "answers")
    assert line.startswith("answers: in use by ")
    assert line.endswith("); wait for it with wait=True, or give another folder with answers")
    log.close()
    line = error_line(*words, "o", "--embeddings", "there")
    assert line.startswith("embeddings: has no effect with candidates bm25; ")


def test_permanent_failure_stops_the_job_and_keeps_paid_answers(
    serve: Callable[..., Any], topics: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--llm", "judge", "--dataset", str(topics), "--output", "o", "--retries", "1", "--longest-wait", "0.01"]
    broken = serve(error=0.3, seed=3)
    assert run("annotate", [*words, "--base-url", broken.endpoint]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].endswith(
        "gives no usable answer: status 500; check base_url and the service, then run the same command again"
    )
    assert " queries are annotated. Their answers are kept in " in lines[-2]
    assert not Path("o").exists()
    whole = serve()
    assert run("annotate", [*words, "--base-url", whole.endpoint]) == 0
    paid = broken.events("answered") + whole.events("answered")
    assert max(paid.values()) == 1
    assert paid.total() == 72


def test_no_query_has_a_positive(
    error_line: Callable[..., str], serve: Callable[..., Any], topics: Path, work: Path
) -> None:
    (topics / "run.trec").write_text("".join(f"q{i} Q0 d{(i + 1) % 40}-1 1 1.0 x\n" for i in range(24)))
    words = ["--base-url", serve().endpoint, "--llm", "judge", "--dataset", topics, "--output", "o"]
    line = error_line(*words, "--candidates", topics / "run.trec", lines_expected=6)
    assert line.startswith("topics: the model found no positive for any query; ")
