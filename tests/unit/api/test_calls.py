"""Models, mining, evaluation, search and comparison in this process, and the errors of each call."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset as HubTable
from processes import run_python

import raytriever as rt
from raytriever.api.models import precision_of
from raytriever.core.store.commit import one_writer
from raytriever.evaluation.results import Results


@pytest.fixture
def data(tiny_dataset: Path) -> rt.Dataset:
    return rt.load_dataset(tiny_dataset)


@pytest.fixture
def model(tiny_encoder: Path) -> rt.Model:
    return rt.load_model(tiny_encoder, precision="fp32")


def test_embeddings(model: rt.Model) -> None:
    queries, passages = model.encode_queries(["what is abc", "x"]), model.encode_passages(["abc is cba"])
    assert queries.dtype == passages.dtype == np.float32
    assert queries.shape == (2, model.dim)
    np.testing.assert_allclose(np.linalg.norm(queries, axis=1), 1, atol=1e-5)
    assert model.encode_queries([]).shape == (0, model.dim)


HALF = "what is \ud83d"  # half of a surrogate pair, as a cut emoji in JSON


def test_half_of_a_surrogate_pair_costs_no_other_query(data: rt.Dataset, model: rt.Model) -> None:
    for encode in (model.encode_queries, model.encode_passages):
        assert encode([HALF, "what is abc"]).tobytes() == encode(["what is ?", "what is abc"]).tobytes()
    index = rt.build_index(model, data)
    assert index.search([HALF, "what is abc"]) == index.search(["what is ?", "what is abc"])
    queries = {f"q{n}": f"what is {n}" for n in range(200)} | {"half": HALF}
    judged = {"test": {name: {"d": 1} for name in queries if name != "half"}}
    dataset = rt.Dataset.from_dict({"d": "it"}, queries, judged)
    assert [row["reason"] for row in dataset.bad_rows] == ['"text" holds half of a surrogate pair']
    assert rt.evaluate(["bm25"], dataset).to_pandas()["ndcg_at_10"].tolist() == [1.0]
    with pytest.raises(rt.ConfigError, match="query_prompt: holds half of a surrogate pair"):
        rt.load_model(model.name, query_prompt=HALF)


def test_mining_again_finds_the_table(data: rt.Dataset, model: rt.Model, workplace: Path) -> None:
    first = rt.mine_hard_negatives(data, model, num_negatives=2)
    stamp = (first.path / "manifest.json").stat().st_mtime_ns
    again = rt.mine_hard_negatives(data, model, num_negatives=2)
    assert (again.path, (again.path / "manifest.json").stat().st_mtime_ns) == (first.path, stamp)
    other = rt.mine_hard_negatives(data, model, num_negatives=3)
    assert other.path != first.path
    given = rt.mine_hard_negatives(data, model, num_negatives=2, output="negatives/1")
    assert given.path == Path("negatives/1")
    assert given.to_pandas().equals(first.to_pandas())
    with pytest.raises(rt.StorageError, match=r"negatives/1: already exists|negatives/1: .*exists"):
        rt.mine_hard_negatives(data, model, output="negatives/1")


@pytest.mark.slow
def test_a_report_is_what_the_command_writes(data: rt.Dataset, model: rt.Model, workplace: Path) -> None:
    report = rt.evaluate({"lexical": "bm25", "dense": model}, data, calibrate=["precision=0.5"])
    assert report.path is None
    saved = report.save("results/first")
    assert report.path == saved
    content = Results.read(saved)
    assert content.models == report.metrics
    assert list(report.metrics) == ["lexical", "dense"]
    assert {frozenset((row["model"], row["against"])) for row in report.pairs()} == {frozenset(("lexical", "dense"))}
    assert "lexical" in str(report)
    frame = report.to_pandas()
    assert frame.loc[frame["model"] == "dense", "auc"].item() == report.metrics["dense"]["letters"]["auc"]
    assert (saved / "report.html").is_file()
    # Nothing is left besides what was asked for.
    assert {path.name for path in workplace.iterdir()} <= {"results", "mlflow.db"}


@pytest.mark.slow
def test_quantized_variants_are_evaluated(data: rt.Dataset, model: rt.Model) -> None:
    assert list(rt.evaluate({"dense": model}, data, truncate_dim=[12]).metrics) == ["dense", "dense-12-fp32"]


def test_search_finds_what_the_evaluation_ranks(data: rt.Dataset, model: rt.Model) -> None:
    index = rt.build_index(model, data)
    assert len(index) == 160
    one, other = index.search(["what is abcdef", "what is jihgfe"], top_k=3)
    assert [hit.score for hit in one] == sorted((hit.score for hit in one), reverse=True)
    assert index.search(["what is abcdef"], top_k=3) == [one]
    assert index.search(["what is jihgfe"], top_k=160, threshold=other[1].score) == [other[:2]]
    assert index.search([], top_k=3) == []
    scores = model.encode_queries(["what is abcdef"]) @ model.encode_passages([one[0].text]).T
    assert one[0].score == pytest.approx(scores.item(), abs=1e-5)


def test_an_approximate_index_is_written_and_opened(data: rt.Dataset, model: rt.Model) -> None:
    exact = rt.build_index(model, data).search(["what is abcdef"], top_k=3)
    for _ in range(2):
        index = rt.build_index(model, data, kind="flat", output="index")
        assert index.kind == "flat"
        assert [hit.document_id for hit in index.search(["what is abcdef"], top_k=3)[0]] == [
            hit.document_id for hit in exact[0]
        ]


def test_another_writer_is_an_error(data: rt.Dataset, workplace: Path) -> None:
    with one_writer(workplace / "taken"), pytest.raises(rt.StorageError, match="in use by"):
        rt.evaluate(["bm25"], data, output="taken")


@pytest.mark.slow
def test_lines_of_progress_go_to_standard_error(data: rt.Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    rt.evaluate(["bm25"], data)
    out, err = capsys.readouterr()
    assert out == ""
    assert "letters: 160 documents, split test" in err


ERRORS: list[tuple[Any, str]] = [
    (lambda d, m: rt.load_model("./nothing"), "model ./nothing: no such directory"),
    (lambda d, m: rt.load_model(m, truncate_dim=99), "truncate_dim: 99 is out of range"),
    (lambda d, m: rt.load_model(m, precision="fp8"), "precision: unknown value 'fp8'; give 'fp32', 'bf16' or 'int8'"),
    (lambda d, m: rt.load_model(m).encode_queries("one text"), "texts: is one text, not a list of texts"),
    (lambda d, m: rt.load_model(m).encode_passages([1]), "texts: text 0 has the type int, not str"),
    (lambda d, m: rt.load_model(m).encode_queries({"q": "x"}), "texts: has the type dict, but must be a list; give"),
    (
        lambda d, m: rt.load_model(m).encode_queries(pd.DataFrame({"text": ["a"]})),
        "texts: has the type DataFrame, but must be a list",
    ),
    (lambda d, m: rt.train(d, m, max_step=3), "train: unknown setting 'max_step'; did you mean 'max_steps'?"),
    (lambda d, m: rt.train(d, m, batch_size="64"), "train: batch_size is '64'; give a whole number"),
    (lambda d, m: rt.train(d, m, hard_negatives="no/table"), "negatives_table no/table: there is no negatives table"),
    (lambda d, m: rt.train(d, 3), "model: has the type int; give a name, a path"),
    (lambda d, m: rt.train(3, m), "data: has the type int; give the result of load_dataset, or a path"),
    (lambda d, m: rt.mine_hard_negatives(d, method="dense"), "model: 'dense' needs an encoder"),
    (lambda d, m: rt.evaluate("bm25", d), "models: is not a list with at least one model"),
    (lambda d, m: rt.evaluate([m], d, dtype=["int9"]), "dtype: 'int9' is invalid; did you mean 'int8'?"),
    (lambda d, m: rt.evaluate(["bm25"], d, dtype=["int8"]), "dtype: bm25 has no embeddings; leave it out"),
    (lambda d, m: rt.evaluate([m], d, rescore_multiplier=3), "rescore_multiplier: has no effect without dtype"),
    (lambda d, m: rt.build_index(m, d, kind="hnsw"), "output: an approximate index needs a directory"),
    (lambda d, m: rt.build_index(m, d, ef_search=3), "ef_search: has no effect on an exact index"),
    (lambda d, m: rt.build_index(m, d, kind="hnsw", output="x", efort=3), "build_index: unknown setting 'efort'"),
    (lambda d, m: rt.build_index(m, d).search(" x"), "queries: is one text, not a list of texts"),
    (lambda d, m: rt.build_index(m, d).search(["a"], threshold=float("nan")), "threshold: is not a number"),
]


def test_bad_input_is_one_line(
    data: rt.Dataset, tiny_encoder: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for call, expected in ERRORS:
        with pytest.raises(rt.UserError) as caught:
            call(data, str(tiny_encoder))
        line = str(caught.value)
        assert expected in line
        assert "\n" not in line
        assert " --" not in f" {line}"
        assert not any(workplace.iterdir()), expected


def test_every_ordered_collection_of_texts_is_encoded_alike(model: rt.Model) -> None:
    texts = ["what is abcdef", "a letter"]
    expected = model.encode_queries(texts)
    table = HubTable.from_dict({"text": texts})
    for same in (tuple(texts), pd.Series(texts), np.array(texts), iter(texts), table["text"]):
        np.testing.assert_array_equal(model.encode_queries(same), expected)


SIGNALED = """
import os, signal, sys
import raytriever as rt

signal.signal(signal.SIGTERM, lambda number, frame: print("mine"))
before = signal.getsignal(signal.SIGHUP)

rt.Dataset.from_dict(dict(d="a text"), dict(q="a question"), dict(test=dict(q=dict(d=1))), name="mine")
from raytriever.api.calls import working
with working("train"):
    os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGHUP) is before
print("ended")
"""


def test_a_program_keeps_its_own_handlers_of_signals(tmp_path: Path) -> None:
    done = run_python("-c", SIGNALED, variables={"RAYTRIEVER_CACHE": str(tmp_path)})
    assert done.stdout.split() == ["mine", "ended"]


def test_a_run_in_fp32_encodes_in_fp32_and_bf16_is_said(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "raytriever.models.device_and_precision.choose_precision", lambda precision, device: precision or "bf16"
    )
    run = tmp_path / "run"
    shutil.copytree(tiny_encoder, run / "model")
    for content, expected in (("{precision: fp32}", "fp32"), ("{precision: null}", "bf16"), ("", "bf16")):
        (run / "config.yaml").write_text(f"training: {content}\n")
        for name in (run / "model", Path(os.path.relpath(run / "model"))):
            model = rt.load_model(name)
            assert model.retriever.precision == expected
            line = f"{name}: encodes in bf16, which is faster on this device; precision='fp32' is more exact\n"
            assert (line in capsys.readouterr().err) == (expected == "bf16")
            assert precision_of(None, [None, "bm25", str(name)]) == (None if expected == "bf16" else "fp32")
    assert rt.load_model(run / "model", precision="bf16").retriever.precision == "bf16"
    assert "encodes in" not in capsys.readouterr().err
