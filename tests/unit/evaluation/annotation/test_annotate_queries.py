"""The whole job against a real service, from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from object_store import object_store

from raytriever.cli.main import run
from raytriever.core.store.commit import read_manifest
from raytriever.core.store.object_stores import COPIES
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.records_and_bad_rows import SOURCES
from raytriever.evaluation.annotation.annotate_queries import job_name
from raytriever.evaluation.annotation.annotation_settings import AnnotationConfig
from raytriever.evaluation.annotation.llm_prompts import AnnotationPrompts
from raytriever.models.model_settings import ModelConfig

REPOSITORY = Path(__file__).parents[4]


def words(topics: Path, endpoint: str, *more: str) -> list[str]:
    """A command line; a dozen questions at once, and no long waits."""
    flags = ["--dataset", str(topics), "--base-url", endpoint, "--llm", "judge", "--output", "out", "--in-flight", "8"]
    return [*flags, "--longest-wait", "0.05", *more]


def positives(folder: str = "out", split: str = "train") -> dict[str, list[tuple[str, str, int]]]:
    """The positives of each query as the data set is read: document, source, rank."""
    dataset = open_dataset(folder, [split])
    rows = dataset.judgements[split]
    results: dict[str, list[tuple[str, str, int]]] = {}
    for query, document, score, source, rank in zip(
        rows.queries, rows.documents, rows.scores, rows.sources, rows.ranks, strict=True
    ):
        if score > 0:
            row = (dataset.documents.ids[int(document)], SOURCES[int(source)], int(rank))
            results.setdefault(dataset.queries.ids[int(query)], []).append(row)
    return results


def test_output_contains_the_positives_of_the_model(
    serve: Callable[..., Any], topics: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = serve()
    assert run("annotate", words(topics, served.endpoint, "--price-in", "1", "--price-out", "4")) == 0
    out = capsys.readouterr().out
    assert "24 queries; for 0 the model found no positive, 0 had no candidate, 0 failed" in out
    assert "positives written: 62 new, 24 that people also judged relevant" in out
    assert "left out: 10, because people judged them 0" in out
    assert "72 answers paid in this run, 0 answers from the log" in out
    assert "raytriever train --dataset out --positives human-first --positives-order ranked" in out
    result = positives()
    # The longest passage is the most useful. In the first ten topics people judged it 0.
    assert sorted(result["q12"]) == [
        ("d12-0", "human", 0),
        ("d12-1", "llm", 2),
        ("d12-2", "llm", 1),
        ("d12-3", "llm", 0),
    ]
    assert sorted(result["q3"]) == [("d3-0", "human", 0), ("d3-1", "llm", 2), ("d3-2", "llm", 1)]
    assert positives(split="test") == positives(str(topics), "test")
    meta = read_manifest("out")["meta"]
    assert (meta["queries"], meta["positives"], meta["agreed"], meta["judged_irrelevant"]) == (24, 86, 24, 10)
    read, written = meta["tokens_read"], meta["tokens_written"]
    assert meta["cost"] == pytest.approx((read + 4 * written) / 1e6)
    rows = [json.loads(line) for line in Path("out/annotations.jsonl").read_text().splitlines()]
    assert {row["query"] for row in rows} == {f"q{i}" for i in range(24)}
    assert all(row["answer"].startswith("It is said: ") and len(row["useful"]) == 4 for row in rows)

    # Without the service the second run sends no request and writes the same bytes.
    served.end()
    again = [word if word != "out" else "again" for word in words(topics, served.endpoint, "--agreed", "llm")]
    assert run("annotate", again) == 0
    assert "0 answers paid in this run, 72 answers from the log" in capsys.readouterr().out
    assert Path("again/annotations.jsonl").read_bytes() == Path("out/annotations.jsonl").read_bytes()
    assert ("d12-0", "llm", 3) in positives("again")["q12"]
    assert served.events("asked").total() == 72


def test_without_counts_of_tokens_a_whole_log_needs_no_service(
    serve: Callable[..., Any], topics: Path, work: Path
) -> None:
    served = serve(no_usage=True)
    assert run("annotate", words(topics, served.endpoint)) == 0
    served.end()
    again = [word if word != "out" else "again" for word in words(topics, served.endpoint)]
    assert run("annotate", again) == 0
    assert Path("again/annotations.jsonl").read_bytes() == Path("out/annotations.jsonl").read_bytes()


def test_malformed_answers_are_counted_reported_and_requested_again(
    serve: Callable[..., Any], topics: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = serve(nonsense=0.3, seed=4)
    assert run("annotate", words(topics, served.endpoint, "--repairs", "12")) == 0
    out = capsys.readouterr().out
    malformed = read_count(out, " malformed answers; the first is ")
    assert malformed > 5
    assert f"{72 + malformed:,} answers paid in this run" in out
    capsys.readouterr()
    again = [word if word != "out" else "strict" for word in words(topics, served.endpoint, "--repairs", "0")]
    assert run("annotate", again) == 2
    err = capsys.readouterr().err
    assert "queries have no annotation; the first error: " in err
    assert "use a model that follows the requested format, or raise max_tokens or max_failed" in err
    assert not Path("strict").exists()
    assert run("annotate", [*again, "--max-failed", "1"]) == 0
    failed = [
        row for row in map(json.loads, Path("strict/annotations.jsonl").read_text().splitlines()) if "failed" in row
    ]
    assert f", {len(failed)} failed" in capsys.readouterr().out
    assert served.events("answered").total() == 72 + malformed  # the repairs are all that was paid for; nothing twice
    # A query without an annotation keeps its human judgements.
    assert positives("strict")[failed[0]["query"]] == [(f"d{failed[0]['query'][1:]}-0", "human", 0)]


def read_count(out: str, tail: str) -> int:
    (line,) = [line for line in out.splitlines() if tail in line]
    return int(line.split()[0].replace(",", ""))


@pytest.mark.slow
def test_budget_stops_the_job_and_a_larger_budget_continues_it(
    serve: Callable[..., Any], topics: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = serve()
    # Few requests at once, so that the first queries are finished before the budget is used up, on a slow machine too.
    flags = ["--price-in", "1", "--price-out", "2", "--max-tokens", "64", "--in-flight", "2"]
    assert run("annotate", words(topics, served.endpoint, *flags, "--budget", "0.01")) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.startswith("error: budget: 0.0")
    assert " of 0.01 are used after " in err
    assert (
        "and the next request may need more than is left; raise the limit, and run the same command again; answers"
        in err
    )
    assert not Path("out").exists()
    asked = served.events("asked").total()
    # The same budget allows no further request, and its answers can be written.
    assert run("annotate", words(topics, served.endpoint, *flags, "--budget", "0.01")) == 2
    assert served.events("asked").total() == asked
    first = err.split("max_queries ")[1].split()[0]
    assert run("annotate", words(topics, served.endpoint, *flags, "--budget", "0.01", "--max-queries", first)) == 0
    assert served.events("asked").total() == asked
    cost = read_manifest("out")["meta"]["cost"]
    assert 0.005 < cost <= 0.01
    more = [word if word != "out" else "whole" for word in words(topics, served.endpoint, *flags, "--budget", "0.5")]
    assert run("annotate", more) == 0
    assert max(served.events("answered").values()) == 1
    assert served.events("answered").total() == 72


def name_of(model: ModelConfig, bm25_language: str | None = None) -> str:
    dataset = SimpleNamespace(documents=SimpleNamespace(digest="documents"), queries=SimpleNamespace(digest="queries"))
    settings, prompts = AnnotationConfig(candidates="dense"), AnnotationPrompts({"system": "Judge."})
    return job_name(settings, "judge", model, bm25_language, "train", cast(RetrievalDataset, dataset), prompts)


def test_dry_run_sends_no_request_and_its_bounds_hold(
    serve: Callable[..., Any], topics: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = serve()
    flags = ["--max-tokens", "64", "--price-in", "1", "--price-out", "2"]
    assert run("annotate", words(topics, served.endpoint, *flags, "--dry-run")) == 0
    table = capsys.readouterr().out
    assert not Path("out").exists()
    assert served.log.read_text() == ""
    rows = {line[:16].strip(): line[16:].split() for line in table.splitlines()[1:-1]}
    assert rows["requests"] == ["72", "72"]
    most = [float(rows[name][1].replace(",", "")) for name in ("tokens read", "tokens written", "cost")]
    assert run("annotate", words(topics, served.endpoint, *flags)) == 0
    meta = read_manifest("out")["meta"]
    spent = [meta["tokens_read"], meta["tokens_written"], meta["cost"]]
    assert all(paid <= bound for paid, bound in zip(spent, most, strict=True))
    assert meta["tokens_read"] > most[0] / 3
    capsys.readouterr()
    again = [word if word != "out" else "again" for word in words(topics, "", *flags, "--dry-run")]
    assert run("annotate", again) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split() == ["requests", "0", "0"]
    assert "72 answers are in the log already" in out


def test_bm25_finds_candidates_by_the_rules_of_the_language(
    tmp_path: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "parks"
    folder.mkdir()
    passages = [{"_id": number, "text": f"今天天气很好我们去第{number}公园散步吧"} for number in "一二三"]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(passage) + "\n" for passage in passages))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "公园散步"}) + "\n")

    flags = words(folder, "", "--split", "new", "--dry-run")
    assert run("annotate", flags) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["requests", "3", "3"]
    assert run("annotate", [*flags, "--bm25-language", "en"]) == 2  # in English a clause is one word
    assert "parks: has no candidate passage" in capsys.readouterr().err
    assert run("annotate", [*flags, "--bm25-language", "zh", "--candidates", "dense"]) == 2
    assert "bm25_language: has no effect with candidates dense" in capsys.readouterr().err
    assert name_of(ModelConfig(), "zh") != name_of(ModelConfig())


def test_new_split_contains_the_queries_without_judgements(serve: Callable[..., Any], topics: Path, work: Path) -> None:
    assert run("annotate", words(topics, serve().endpoint, "--split", "more")) == 0
    result = positives(split="more")
    assert set(result) == {f"q{i}" for i in range(32, 40)}
    assert {source for rows in result.values() for _, source, _ in rows} == {"llm"}


@pytest.mark.slow
def test_candidates_of_a_run_and_of_an_encoder(
    serve: Callable[..., Any], topics: Path, tiny_encoder: Path, work: Path
) -> None:
    lines = [f"q{i} Q0 d{i}-{j} 9 {j}.5 system\n" for i in range(40) for j in (1, 3)]
    Path("some.trec").write_text("".join(lines))
    served = serve()
    assert run("annotate", words(topics, served.endpoint, "--candidates", "some.trec")) == 0
    rows = [json.loads(line) for line in Path("out/annotations.jsonl").read_text().splitlines()]
    assert all([name[-1] for name in row["candidates"]] == ["3", "1"] for row in rows)
    more = ["--candidates", "some.trec, dense,bm25", "--model", str(tiny_encoder), "--depth", "6"]
    more += ["--passages-per-prompt", "3"]
    assert run("annotate", [word if word != "out" else "all" for word in words(topics, served.endpoint, *more)]) == 0
    rows = [json.loads(line) for line in Path("all/annotations.jsonl").read_text().splitlines()]
    for row in rows:
        topic = row["query"][1:]
        assert {f"d{topic}-{j}" for j in range(4)} <= set(row["candidates"])
        assert len(row["candidates"]) == len(set(row["candidates"])) <= 14
        assert set(row["useful"]) == {f"d{topic}-{j}" for j in range(4)}
    assert np.mean([len(row["candidates"]) for row in rows]) > 5


@pytest.fixture(params=["disk", "bucket"])
def output(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder of this machine, or an address of a bucket that has the cache as well."""
    if request.param == "disk":
        yield "out"
        return
    (tmp_path / "store").mkdir()
    with object_store(tmp_path / "store") as store:
        for name, value in {**store.environment(), "RAYTRIEVER_CACHE": "s3://bucket/cache"}.items():
            monkeypatch.setenv(name, value)
        yield "s3://bucket/out"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "by"),
    [("disk", signal.SIGKILL), ("disk", signal.SIGINT), ("bucket", signal.SIGTERM)],
    indirect=["output"],
)
def test_killed_job_pays_no_answer_twice_and_continues_on_another_machine(
    serve: Callable[..., Any], topics: Path, work: Path, output: str, by: signal.Signals
) -> None:
    served = serve(service_time=0.02)
    command = [sys.executable, str(REPOSITORY / "jobs" / "annotate.py")]
    command += words(topics, served.endpoint, "--output", output)
    machines = [os.environ | {COPIES: str(work / name)} for name in ("one", "other")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=machines[0], **quiet)
    while served.log.stat().st_size < 4000:
        assert process.poll() is None
        time.sleep(0.005)
    # Answers are held back until none is on its way; those asked for then are under way when the kill strikes.
    answered = served.hold()
    time.sleep(0.5)
    os.kill(process.pid, by)
    assert process.wait(60) == (-9 if by == signal.SIGKILL else 130)
    assert 0 < answered < 72
    assert not Path("out").exists()
    under_way = served.events("asked") - served.events("answered")
    assert under_way.total() == 8
    served.end()
    more = serve()
    again = [word if word != served.endpoint else more.endpoint for word in command]
    subprocess.run(again, check=True, env=machines[1], **quiet)
    paid = served.events("answered") + more.events("answered")
    assert max(paid.values()) == 1
    assert paid.total() == 72
    assert set(under_way) <= set(more.events("asked"))
