"""What a user may get wrong ends in one line that says what would be right; nothing is written, no key is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raytriever.annotation.answer_log import AnswerLog
from raytriever.cli.main import run


@pytest.fixture
def told(work: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Annotate to a mistake; answers its line."""

    def end(*words: object, says: int = 1) -> str:
        before = sorted(work.rglob("*"))
        capsys.readouterr()
        code = run("annotate", [str(word) for word in words])
        out, err = capsys.readouterr()
        assert code == 2, err
        assert not out
        lines = [line for line in err.splitlines() if ": prepar" not in line and ": ranking with" not in line]
        assert len(lines) == says, err
        assert "Traceback" not in err
        assert sorted(work.rglob("*")) == before
        return lines[-1].removeprefix("error: ")

    return end


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("", "the following arguments are required: --output; see `raytriever annotate --help`"),
        ("--output o", "--endpoint: is missing; give the address of an OpenAI-compatible service"),
        ("--output o --endpoint localhost:8000", "--endpoint: is not a valid address; give one such as http://"),
        ("--output o --endpoint ftp://host/v1", "--endpoint: is not a valid address; "),
        ("--output o --endpoint http://host:99999/v1", "--endpoint: is not a valid address; "),
        ("--output o --endpoint http://me:pw@host/v1", "--endpoint http://***@host/v1: there is a password in its "),
        ("--output o --endpoint http://host/v1?x=1", "--endpoint: contains more than host and path; store a key in "),
        ("--output o --endpoint http://host/v1", "--llm: is missing; give the name of the model at the service"),
        (
            "{} --key-variable sk-proj-123",
            "--key-variable: is not the name of an environment variable; give the name, never",
        ),
        (
            "{} --key-variable gsk_12345abc",
            "--key-variable: names an environment variable that is not set; export it, or name another",
        ),
        ("{} --budget -1", "--budget: -1.0 is out of range; give a value above 0"),
        ("{} --budget 0", "--budget: 0.0 is out of range; give a value above 0"),
        ("{} --budget nan", "--budget: nan is out of range; give a finite number"),
        ("{} --budget 5", "--budget: needs the prices of tokens; give --price-in and --price-out, or --budget-tok"),
        ("{} --budget-tokens -5", "--budget-tokens: -5 is out of range; give a value at least 1"),
        ("{} --price-in -1", "--price-in: -1.0 is out of range; give a value at least 0"),
        ("{} --in-flight 0", "--in-flight: 0 is out of range; give a value at least 1"),
        ("{} --candidates ,", "--candidates: is empty; give bm25, dense or the path of a run"),
        ("{} --candidates bm25,bm25", "--candidates: contains 'bm25' twice; give each source once"),
        ("{} --split ../x", "--split: '../x' is not a valid name of a split; use letters, digits, '_' and '-'"),
        ("{} --prompts none", "--prompts none: no such folder; give a folder with files such as relevance.txt"),
        ("{} --agreed both", "--agreed: unknown value 'both'; choose from human, llm"),
        ("{} --budgt 3", "--budgt: unknown flag; did you mean '--budget'?"),
    ],
)
def test_settings(told: Callable[..., str], flags: str, line: str) -> None:
    found = told(*flags.replace("{}", "--output o --endpoint http://127.0.0.1:9/v1 --llm judge").split())
    assert found.startswith(line)
    assert "sk-proj-123" not in found
    assert "gsk_12345abc" not in found


def test_a_key_that_cannot_be_sent(told: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret\nX-More: 1")
    line = told("--output", "o", "--endpoint", "http://127.0.0.1:9/v1", "--llm", "judge")
    assert line == "--key-variable: names a variable with a character that is invalid in a key; set it to the key alone"


def test_nobody_answers(told: Callable[..., str], serve: Callable[..., Any], topics: Path) -> None:
    served = serve()
    served.end()
    line = told("--output", "o", "--endpoint", served.endpoint, "--llm", "judge", "--dataset", topics)
    assert line.startswith(f"{served.endpoint}: gives no answer: no connection (Connect")
    assert line.endswith("; check --endpoint and the service, then go on")


def test_the_key_is_refused(
    told: Callable[..., str], serve: Callable[..., Any], topics: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--output", "o", "--endpoint", serve(key="the-right-one").endpoint, "--llm", "judge", "--dataset", topics]
    line = told(*words)
    assert "refuses the key (401: Incorrect API key provided" in line
    assert line.endswith("; put a key into OPENAI_API_KEY, or name another --key-variable")
    monkeypatch.setenv("MY_OWN", "the-wrong-one")
    line = told(*words, "--key-variable", "MY_OWN")
    assert "Bearer ***" in line
    assert "wrong-one" not in line
    assert line.endswith("; check the key in MY_OWN")


def test_the_model_is_not_known(told: Callable[..., str], serve: Callable[..., Any], topics: Path) -> None:
    words = ["--output", "o", "--llm", "jugde", "--dataset", topics, "--endpoint"]
    assert told(*words, serve().endpoint) == "--llm: the service has no model 'jugde'; did you mean 'judge'?"
    # Of a service that lists none it shows at the first request; the estimate stands before it.
    line = told(*words, serve(no_models=True).endpoint, says=7)
    assert line == (
        "--llm: the service has no model 'jugde' (The model `jugde` does not exist. model_not_found); "
        "give one that it lists"
    )


def test_data(told: Callable[..., str], serve: Callable[..., Any], topics: Path, work: Path) -> None:
    words = ["--output", "o", "--endpoint", serve().endpoint, "--llm", "judge", "--dataset"]
    assert "no data set" in told(*words, "nowhere") or "no such" in told(*words, "nowhere")
    line = told(*words, topics, "--split", "trian", "--max-queries", "4", "--candidates", "none.trec")
    assert line.startswith("--candidates none.trec: no such file; ")
    run_file = topics / "run.trec"
    for text, wrong in (
        ("q1 Q0 d1-1 1 0.5\n", ":1: is no line of a run; a line is `query Q0 document rank score tag`"),
        ("q1 Q0 d1-1 1 nan x\n", ":1: score 'nan' is no finite number; "),
        ("\nq1 Q0 d99-1 1 0.5 x\n", ":2: unknown document id 'd99-1'; is it a run over topics?"),
        ("q99 Q0 d1-1 1 0.5 x\n", ": ranks none of the 24 queries; is it a run over topics?"),
        ("q\xff Q0 d1-1 1 0.5 x\n", ":1: is no line of a run; "),
    ):
        run_file.write_bytes(text.encode("latin-1"))
        assert told(*words, topics, "--candidates", run_file).startswith(f"{run_file}{wrong}")
    run_file.unlink()
    (topics / "queries.jsonl").write_text("")
    assert "queries.jsonl" in told(*words, topics)


def test_queries_of_nobody(told: Callable[..., str], serve: Callable[..., Any], topics: Path) -> None:
    lines = (topics / "queries.jsonl").read_text().splitlines(keepends=True)
    (topics / "queries.jsonl").write_text("".join(lines[:32]))
    words = ["--output", "o", "--endpoint", serve().endpoint, "--llm", "judge", "--dataset", topics]
    line = told(*words, "--split", "trian")
    assert line == (
        "topics: has no split 'trian' and no query without judgements; choose one of its splits: dev, test, train"
    )


def test_no_passage_is_found(told: Callable[..., str], serve: Callable[..., Any], topics: Path) -> None:
    rows = [json.dumps({"_id": f"q{i}", "text": "zzzz"}) + "\n" for i in range(40)]
    (topics / "queries.jsonl").write_text("".join(rows))
    words = ["--output", "o", "--endpoint", serve().endpoint, "--llm", "judge", "--dataset", topics]
    assert told(*words).startswith("topics: nobody found a passage for any of 24 queries; ")


def test_places_that_are_taken(told: Callable[..., str], serve: Callable[..., Any], topics: Path, work: Path) -> None:
    words = ["--endpoint", serve().endpoint, "--llm", "judge", "--dataset", topics, "--output"]
    (work / "there").mkdir()
    assert told(*words, "there") == "there: is there already; give another --output, or remove it"
    log = AnswerLog(work / "answers")
    line = told(*words, "o", "--answers", "answers")
    assert line.startswith("answers: in use by ")
    assert line.endswith("); wait for it with --wait, or give another folder with --answers")
    log.close()
    line = told(*words, "o", "--embeddings", "e")
    assert line.startswith("--embeddings: has no effect with --candidates bm25; ")


def test_a_service_that_fails_for_good_ends_the_job_and_what_was_paid_is_kept(
    serve: Callable[..., Any], topics: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--llm", "judge", "--dataset", str(topics), "--output", "o", "--retries", "1", "--longest-wait", "0.01"]
    broken = serve(error=0.3, seed=3)
    assert run("annotate", [*words, "--endpoint", broken.endpoint]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].endswith("gives no answer: status 500; check --endpoint and the service, then go on")
    assert " queries are annotated. Their answers are kept in " in lines[-2]
    assert not Path("o").exists()
    whole = serve()
    assert run("annotate", [*words, "--endpoint", whole.endpoint]) == 0
    paid = broken.events("answered") + whole.events("answered")
    assert max(paid.values()) == 1
    assert paid.total() == 72


def test_no_positive_for_anyone(told: Callable[..., str], serve: Callable[..., Any], topics: Path, work: Path) -> None:
    (topics / "run.trec").write_text("".join(f"q{i} Q0 d{(i + 1) % 40}-1 1 1.0 x\n" for i in range(24)))
    words = ["--endpoint", serve().endpoint, "--llm", "judge", "--dataset", topics, "--output", "o"]
    line = told(*words, "--candidates", topics / "run.trec", says=6)
    assert line.startswith("topics: the model found no positive for any query; ")
