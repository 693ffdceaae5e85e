"""A model handed over: other runtimes answer as the encoder does, and what fails leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from raytriever.cli.main import run
from raytriever.errors import ConfigError, ModelError, StorageError
from raytriever.export.config import ExportConfig
from raytriever.export.graph import FILES, PACKAGES, GraphRunner
from raytriever.export.model import export
from raytriever.models.config import ModelConfig
from raytriever.models.encoder import Encoder
from raytriever.models.retriever import load_retriever
from raytriever.options import check_options

TEXTS = ["one", "two words", "", "a much longer text, with punctuation; it is cut at its maximum length " * 3]


def told(line: str) -> None:
    """Nobody listens."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooling", "similarity", "towers"),
    [("mean", "cosine", "shared"), ("cls", "dot", "shared"), ("last", "dot", "separate")],
)
def test_graphs_answer_as_the_encoder(
    tiny_encoder: Path, tmp_path: Path, pooling: str, similarity: str, towers: str
) -> None:
    config = ModelConfig(str(tiny_encoder), pooling=pooling, similarity=similarity, towers=towers, passage_length=24)
    found = export(config, ExportConfig(formats="onnx,openvino"), tmp_path / "out", told)
    assert {(one.form, one.side) for one in found} == {
        (form, side)
        for form in ("onnx", "openvino")
        for side in (("passage",) if towers == "shared" else ("query", "passage"))
    }
    again = load_retriever(ModelConfig(str(tmp_path / "out"))).eval()
    batch = again.pad(again.token_ids(TEXTS, "passage"))  # other texts and sizes than it was exported with
    with torch.inference_mode():
        wanted = again.encode(batch, "passage").numpy()
    place = tmp_path / "out" if towers == "shared" else tmp_path / "out" / "document_0_Transformer"
    for form in ("onnx", "openvino"):
        np.testing.assert_allclose(GraphRunner(place / FILES[form], form).encode(batch), wanted, atol=2e-6)
    read = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(read.encode_document(TEXTS), wanted, atol=2e-6)
    assert "onnx/model.onnx" in (tmp_path / "out" / "README.md").read_text()


def test_a_graph_that_answers_otherwise_is_refused(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        """A runtime that loses the third digit."""

        def __init__(self, path: Path, form: str) -> None:
            self.tower: Encoder = load_retriever(ModelConfig(str(tiny_encoder))).passage.eval()

        def encode(self, tokens: dict[str, torch.Tensor]) -> np.ndarray:
            with torch.inference_mode():
                return self.tower(tokens).numpy().round(2)

    monkeypatch.setattr("raytriever.export.model.GraphRunner", Wrong)
    monkeypatch.setattr("raytriever.export.model.write_graph", lambda *_: tmp_path)
    with pytest.raises(ModelError, match="the graph differs from the encoder: onnx"):
        export(ModelConfig(str(tiny_encoder)), ExportConfig(formats="onnx"), tmp_path / "out", told)
    assert not (tmp_path / "out").exists()


def test_a_run_tells_what_it_is_made_of(tiny_encoder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    export(ModelConfig(str(tiny_encoder)), ExportConfig(), run / "model", told)
    (run / "config.yaml").write_text("data:\n  dataset: letters\nloss:\n  name: mw\nmodel:\n  model: tiny\n")
    (run / "metrics.json").write_text(json.dumps({"dataset": "letters", "split": "test", "after": {"auc": 0.75}}))
    for number, model in enumerate((run, run / "model")):
        export(ModelConfig(str(model)), ExportConfig(), tmp_path / f"out{number}", told)
        card = (tmp_path / f"out{number}" / "README.md").read_text()
        assert "`letters` with the loss `mw`" in card
        assert "| this model | 0.7500 |" in card


def test_what_is_asked_for_is_looked_at_first(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, output = ModelConfig(str(tiny_encoder)), tmp_path / "out"
    with pytest.raises(ConfigError, match="--formats: 'onnx,tflite' is invalid; choose from onnx, openvino"):
        check_options(ExportConfig(formats="onnx,tflite"))
    with pytest.raises(StorageError, match=r"holds no results\.json"):
        export(config, ExportConfig(evaluation=str(tmp_path)), output, told)
    (tmp_path / "results.json").write_text(
        json.dumps({"format": 1, "models": {}, "systems": {"BM25": {"model": "bm25"}}, "calibration": [], "about": {}})
    )
    with pytest.raises(StorageError, match="measured bm25, not "):
        export(config, ExportConfig(evaluation=str(tmp_path)), output, told)
    monkeypatch.setitem(PACKAGES, "onnx", ("onnx", "nowhere_to_be_found"))
    with pytest.raises(ConfigError, match=r"onnx needs nowhere_to_be_found; pip install 'raytriever\[export\]'"):
        export(config, ExportConfig(formats="onnx"), output, told)
    assert not output.exists()
    output.mkdir()
    with pytest.raises(StorageError, match="exists"):
        export(config, ExportConfig(), output, told)


def test_a_hub_that_is_not_reached_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    from raytriever.export.model import push_to_hub

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "nothing")
    with pytest.raises(
        ModelError, match=r"--push-to-hub someone/model: the hub did not take it \(.+\); check the name"
    ):
        push_to_hub(tmp_path, "someone/model")


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--licence", "not a licence", "give an SPDX identifier such as apache-2.0"),
        ("--licence", "", "give an SPDX identifier"),
        ("--push-to-hub", "a b", "give the name of a repository as OWNER/NAME"),
        ("--push-to-hub", "alone", "give the name of a repository"),
        ("--push-to-hub", "a/b/c", "give the name of a repository"),
        ("--push-to-hub", "a/" + "b" * 96, "give the name of a repository"),
    ],
)
def test_what_is_no_name_on_the_hub_is_refused_before_anything_is_written(
    tmp_path: Path, flag: str, value: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", ["--model", "minilm", "--output", str(tmp_path / "out"), flag, value]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
