"""User errors of `annotate`: one line with the remedy, no output, and no key in the message."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raytriever.cli.main import run
from raytriever.evaluation.annotation.answer_log import AnswerLog


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
        ("--output o --base-url http://host/v1?x=1", "base_url: contains more than host and path; store a key in "),
        ("--output o --base-url http://host/v1", "llm: is missing; give the name of the model at the service"),
        (
            "{} --key-variable sk-proj-123",
            "key_variable: is not the name of an environment variable; give the name, never",
        ),
        (
            "{} --key-variable gsk_12345abc",
            "key_variable: names an environment variable that is not set; export the variable, or name another one",
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
    assert line == "key_variable: names a variable whose value is not a valid key; set it to the key alone"


def test_data(error_line: Callable[..., str], serve: Callable[..., Any], topics: Path, work: Path) -> None:
    words = ["--output", "o", "--base-url", serve().endpoint, "--llm", "judge", "--dataset"]
    assert "no data set" in error_line(*words, "nowhere") or "no such" in error_line(*words, "nowhere")
    line = error_line(*words, topics, "--split", "trian", "--max-queries", "4", "--candidates", "none.trec")
    assert line.startswith("candidates none.trec: no such file; ")
    run_file = topics / "run.trec"
    for text, wrong in (
        ("q1 Q0 d1-1 1 0.5\n", ":1: is no line of a run; a line is `query Q0 document rank score tag`"),
        ("q1 Q0 d1-1 1 nan x\n", ":1: score 'nan' is no finite number; "),
        ("\nq1 Q0 d99-1 1 0.5 x\n", ":2: unknown document id 'd99-1'; give a run over topics"),
        ("q99 Q0 d1-1 1 0.5 x\n", ": has none of the 24 queries; give a run over topics"),
        ("q\xff Q0 d1-1 1 0.5 x\n", ":1: is no line of a run; "),
    ):
        run_file.write_bytes(text.encode("latin-1"))
        assert error_line(*words, topics, "--candidates", run_file).startswith(f"{run_file}{wrong}")
    run_file.unlink()
    (topics / "queries.jsonl").write_text("")
    assert "queries.jsonl" in error_line(*words, topics)


def test_no_query_to_annotate(error_line: Callable[..., str], serve: Callable[..., Any], topics: Path) -> None:
    lines = (topics / "queries.jsonl").read_text().splitlines(keepends=True)
    (topics / "queries.jsonl").write_text("".join(lines[:32]))
    words = ["--output", "o", "--base-url", serve().endpoint, "--llm", "judge", "--dataset", topics]
    line = error_line(*words, "--split", "trian")
    assert line == (
        "topics: has no split 'trian' and no query without judgements; choose one of its splits: dev, test, train"
    )


def test_no_passage_is_found(error_line: Callable[..., str], serve: Callable[..., Any], topics: Path) -> None:
    rows = [json.dumps({"_id": f"q{i}", "text": "zzzz"}) + "\n" for i in range(40)]
    (topics / "queries.jsonl").write_text("".join(rows))
    words = ["--output", "o", "--base-url", serve().endpoint, "--llm", "judge", "--dataset", topics]
    assert error_line(*words).startswith("topics: has no candidate passage for any of 24 queries; ")


def test_paths_in_use(error_line: Callable[..., str], serve: Callable[..., Any], topics: Path, work: Path) -> None:
    words = ["--base-url", serve().endpoint, "--llm", "judge", "--dataset", topics, "--output"]
    (work / "there").mkdir()
    assert error_line(*words, "there") == "there: exists already; give another output, or remove it"
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
        "gives no answer: status 500; check base_url and the service, then run the same command again"
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
