"""An endpoint encodes as a model does, each text is paid once, and what is wrong with it is one line; functions too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from llm_server import vector_of
from services import Served
from tiny_models import write_cross_encoder

import raytriever as rt
from raytriever.cli.main import run
from raytriever.core.errors import StorageError

TEXTS = [f"text {number} of letters {'abcxyz' * (number % 5)}" for number in range(150)]
KEY = "right-secret-key"


def load(served: Served, **settings: Any) -> rt.Model:
    return rt.load_model("openai:judge", base_url=served.endpoint, **settings)


def paid(served: Served) -> Counter[str]:
    lines = map(json.loads, served.log.read_text().splitlines())
    return Counter(line["digest"] for line in lines if line["event"] == "text" and line["digest"] != "dim")


@pytest.mark.parametrize("flags", [{}, {"refuses": "encoding_format"}, {"no_usage": True}, {"length": 3.0}])
def test_embeddings_are_those_of_the_service(serve: Callable[..., Served], flags: dict[str, Any]) -> None:
    served = serve(**flags)
    model = load(served, query_prompt="q: ", in_flight=3)
    expected = np.array([vector_of(text, 24, 1.0) for text in TEXTS], np.float32)
    np.testing.assert_allclose(model.encode_passages(TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(model.encode_queries(["abc"])[0], vector_of("q: abc", 24, 1.0), atol=1e-6)
    if flags == {"length": 3.0}:
        raw = load(served, similarity="dot").encode_passages(TEXTS[:2])
        np.testing.assert_allclose(raw, 3 * expected[:2], atol=1e-5)


def test_dimensions_are_asked_for(serve: Callable[..., Served]) -> None:
    assert load(serve(), truncate_dim=8).encode_passages(["a"]).shape == (1, 8)


def test_a_text_is_paid_once(serve: Callable[..., Served], capsys: pytest.CaptureFixture[str]) -> None:
    served = serve()
    first = load(served, price_in=2.0).encode_passages([*TEXTS, *TEXTS[:20]])
    tokens = sum(len(text) // 4 for text in TEXTS)
    announced = capsys.readouterr().err
    assert "openai:judge: 150 texts to encode, about " in announced
    assert abs(int(announced.split("about ")[1].split(" tokens")[0].replace(",", "")) / tokens - 1) < 0.2
    served.end()
    again = load(served).encode_passages(TEXTS)  # the service is gone
    assert again.tobytes() == first[:150].tobytes()
    assert set(paid(served).values()) == {1}


def test_a_damaged_database_is_named_with_its_remedy(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve()
    load(served).encode_passages(TEXTS)
    [database] = (tmp_path / "cache" / "endpoints").glob("*/texts.sqlite")
    database.write_bytes(b"of another program" * 300)
    with pytest.raises(StorageError, match=r"texts.sqlite: cannot be used .*; remove the folder; its texts"):
        load(served).encode_passages(TEXTS)


PROGRAM = "from raytriever.cli.main import run; run()"


def test_a_killed_command_pays_nothing_twice(serve: Callable[..., Served], letters: Path) -> None:
    served = serve(service_time=0.2)
    words = ["encode", "--dataset", str(letters), "--model", "openai:judge", "--base-url", served.endpoint]
    words += ["--in-flight", "2", "--batch-tokens", "60", "--output", "out"]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stderr=subprocess.DEVNULL)
    end = monotonic() + 120
    while len(paid(served)) < 12:
        assert monotonic() < end
        sleep(0.02)
    served.hold()  # an answer that no one receives is not paid
    sleep(1)
    process.kill()
    process.wait()
    served.end()
    received, counted = paid(served), len(paid(served))
    assert 12 <= counted < 160
    rest = serve(port=served.port)
    assert run("encode", words[1:]) == 0
    assert max((received + paid(rest)).values()) == 1


def test_all_that_takes_a_model_takes_an_endpoint(
    serve: Callable[..., Served],
    letters: Path,
    tiny_encoder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    served = serve(key=KEY)
    model = ["--model", "openai:judge", "--base-url", served.endpoint]
    data = ["--dataset", str(letters)]
    commands = {
        "encode": [*model, *data, "--output", "encoded"],
        "evaluate": [*model, "--datasets", str(letters), "--tracker", "none", "--calibrate", "f1"],
        "mine": [*model, *data, "--method", "dense", "--output", "mined"],
        "index": [*model, *data, "--index", "hnsw", "--output", "index", "--query", "what is abc"],
        "search": ["what is abc", *model, *data],
    }
    # In a fusion, and as the first part of a reranking.
    judge = tmp_path / "judge"
    write_cross_encoder(tiny_encoder, judge)
    for name, system in {"fused": "openai:judge+bm25", "reranked": f"openai:judge>{judge}@5"}.items():
        words = ["--model", system, *model[2:]]
        commands[f"evaluate {name}"] = [
            *words, "--datasets", str(letters), "--tracker", "none", "--output", name, "--metrics", "ndcg@10"
        ]  # fmt: skip
        commands[f"search {name}"] = ["what is abc", *words, *data]
    for command, words in commands.items():
        assert run(command.split()[0], words) == 0, command
    out, err = capsys.readouterr()
    assert set(paid(served).values()) == {1}
    assert len(paid(served)) > 160
    encoder = rt.load_model("openai:judge", base_url=served.endpoint)
    assert len(rt.build_index(encoder, letters).search(["what is abc"], top_k=3)[0]) == 3
    files = [file for file in Path.cwd().parent.rglob("*") if file.is_file() and not file.is_relative_to(letters)]
    assert all(KEY.encode() not in file.read_bytes() for file in files)
    assert KEY not in out + err
    for command in ("train", "export"):
        assert run(command, [*model[:2], *(data if command == "train" else []), "--output", "other"]) == 2
        assert "error: openai:judge: has no files on this machine; " in capsys.readouterr().err


def test_a_budget_ends_a_command_which_continues(
    serve: Callable[..., Served], letters: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = serve()
    words = ["--dataset", str(letters), "--model", "openai:judge", "--base-url", served.endpoint, "--output", "out"]
    words += ["--in-flight", "1", "--batch-tokens", "50"]
    for _ in range(2):  # the second attempt pays nothing: what is paid counts
        assert run("encode", [*words, "--budget-tokens", "600"]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("error: budget_tokens: ")
        assert "of 600 are used, and the next request may exceed the rest; raise it" in line
        tokens = sum(len(text.encode()) // 4 + 1 for text in paid(served))
        assert 500 < tokens <= 600
    assert run("encode", words) == 0
    assert max(paid(served).values()) == 1


def test_requests_keep_to_a_rate(serve: Callable[..., Served]) -> None:
    model = load(serve(), requests_per_minute=600, in_flight=8)
    began = monotonic()
    model.encode_passages(TEXTS)  # three requests
    assert monotonic() - began >= 0.2


def test_a_batch_that_is_too_large_is_halved(serve: Callable[..., Served]) -> None:
    served = serve(most_texts=20)
    load(served, in_flight=1).encode_passages(TEXTS)
    assert set(paid(served).values()) == {1}
    assert served.events("asked").total() < 20


def test_a_text_that_is_too_long_is_cut(serve: Callable[..., Served], capsys: pytest.CaptureFixture[str]) -> None:
    served = serve(longest=100)
    texts = ["short", "word " * 40, "other " * 60]
    result = load(served).encode_passages(texts)
    cut = [text for text in paid(served) if len(text) > 50]
    assert all(75 < len(text) <= 100 for text in cut)
    assert all(any(text.startswith(part) for part in cut) for text in texts[1:])
    assert capsys.readouterr().err.count("is too long for the model; such texts are cut") == 1
    assert load(served).encode_passages(texts).tobytes() == result.tobytes()


@pytest.mark.parametrize(
    ("flags", "settings", "line"),
    [
        ({"key": KEY}, {}, "needs a key (401: Incorrect API key provided: invalid_api_key); set the variable"),
        (
            {},
            {"key_variable": "NO_SUCH"},
            "key_variable: names an environment variable that is not set or empty; export the variable, or",
        ),
        ({"model": "other"}, {}, "model: the service has no model 'judge' (The model `judge` does not exist."),
        ({"busy": 1.0, "retry_after": 0}, {}, "gives no usable answer: status 429; check base_url and the"),
        ({"busy": 1.0, "retry_after": 9999}, {}, "asks to wait for 9,999 seconds; run the same command again"),
        ({"broken": "html"}, {}, "gives no usable answer: no embeddings; check base_url and the service"),
        ({"broken": "fewer"}, {}, "answers with 2 vectors for 3 texts; use another service"),
        ({"broken": "ragged"}, {}, "components; use another service"),
        ({"broken": "nan"}, {}, "answers with a vector that is not finite, for the text 'c'"),
        ({"broken": "widens"}, {}, "answers with vectors of 48 components; earlier ones have 24 components; if"),
        ({"filters": "bb"}, {}, "rejects the text 'bb' (status 400: blocked by the content filter); remove or change"),
        ({}, {"base_url": "localhost:8000"}, "base_url: is not a valid address; give one such as http://localhost"),
        ({}, {"budget": 1.0}, "budget: needs the prices of tokens; give price_in, or budget_tokens"),
        ({}, {"pooling": "cls"}, "pooling: has no effect on openai:judge; leave it out: the service decides it"),
        ({}, {"name": "openai:"}, "model openai:: names no model; give openai:NAME with the service's name of a model"),
        ({}, {"name": "minilm"}, "base_url: has no effect with model minilm; leave it out, or give model openai:"),
    ],
)
def test_what_is_wrong_is_one_line(
    serve: Callable[..., Served],
    flags: dict[str, Any],
    settings: dict[str, Any],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raytriever.retrieval.external_encoders.openai_client.FIRST_BOUND", 0.001)
    served = serve(**flags)
    name = settings.pop("name", "openai:judge")
    with pytest.raises(rt.UserError) as error:
        rt.load_model(name, **{"base_url": served.endpoint, **settings}).encode_passages(["a", "bb", "c"])
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_wrong_key_is_in_no_line(serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "wrong-secret-key")
    with pytest.raises(rt.UserError, match="rejects the key") as error:
        load(serve(key=KEY))
    assert "secret" not in str(error.value)


def test_a_function_and_a_library_model_are_measured(tiny_encoder: Path, letters: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = rt.load_model(tiny_encoder)

    def encode(texts: list[str], side: str) -> Any:
        return model.encode_queries(texts) if side == "query" else model.encode_passages(texts)

    library = SentenceTransformer(str(tiny_encoder), device="cpu")
    systems = {"here": model, "mine": encode, "library": library, "both": f"bm25+{tiny_encoder}", "fused": "bm25+mine"}
    report = rt.evaluate(systems, letters)
    here, mine, library, both, fused = (report.metrics[name]["letters"] for name in systems)
    assert mine == pytest.approx(here, abs=1e-6)
    assert library == pytest.approx(here, abs=1e-3)
    assert fused == pytest.approx(both, abs=1e-6)
    assert report.to_pandas()["ndcg_at_10"].iloc[4] != report.to_pandas()["ndcg_at_10"].iloc[1]


@pytest.mark.parametrize(
    ("encode", "line"),
    [
        (3, "models: an element has the type int; give names, paths, models, runs, functions encode(texts"),
        (lambda texts, side: [1.0], "mine: returns float64 [1] for 1 texts; return an array of numbers, [texts, comp"),
        (lambda texts, side: np.full((len(texts), 2), np.nan), "mine: returns NaN or infinity for 'dim'"),
        (lambda texts, side: np.ones((len(texts), len(texts[0]))), "components, but returned 3 components before;"),
    ],
)
def test_what_is_wrong_with_a_function_is_one_line(letters: Path, encode: Any, line: str) -> None:
    with pytest.raises(rt.ConfigError) as error:
        rt.evaluate({"mine": encode}, letters)
    assert line in str(error.value)
