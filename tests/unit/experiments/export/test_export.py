"""Exported graphs give the embeddings of the encoder; the model card has no figure that was not measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluations import about_of, threshold_row
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results
from markdown_it import MarkdownIt
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from raytriever.cli.main import run
from raytriever.core.errors import ConfigError, ModelError, StorageError
from raytriever.core.setting_declarations import check_options
from raytriever.data.data_settings import DataConfig
from raytriever.evaluation.results import Results
from raytriever.experiments.export.export_model import export
from raytriever.experiments.export.export_settings import ExportConfig
from raytriever.experiments.export.model_card import CardFacts, model_card
from raytriever.experiments.export.onnx_and_openvino import FILES, PACKAGES, open_graph
from raytriever.losses.loss_settings import LossConfig
from raytriever.metrics.intervals import Proportion
from raytriever.models.description import Description
from raytriever.models.encoder import Encoder
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.training.run_config import Config, dump_config

TEXTS = ["one", "two words", "", "a much longer text, with punctuation; it is cut at its maximum length " * 3]


def ignore(line: str) -> None:
    """Ignore a progress line."""


def with_dense(encoder: Path, folder: Path, include_prompt: bool) -> ModelConfig:
    """Write a model with a Dense module by sentence-transformers."""
    modules = [Transformer(str(encoder)), Pooling(32, "max", include_prompt=include_prompt), Dense(32, 12)]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder / "dense"))
    return ModelConfig(str(folder / "dense"), query_prompt="query: ")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_a_graph_has_the_dense_module(tiny_encoder: Path, tmp_path: Path, backend: str) -> None:
    config = with_dense(tiny_encoder, tmp_path, include_prompt=True)
    (parity,) = export(config, ExportConfig(formats=backend), tmp_path / "out", ignore)
    assert parity.difference < 1e-5
    exported = load_retriever(ModelConfig(str(tmp_path / "out")))
    assert exported.dim == 12
    batch = exported.pad(exported.token_ids(TEXTS, "passage"))
    graph = open_graph(tmp_path / "out" / FILES[backend], backend)(batch)
    with torch.inference_mode():
        np.testing.assert_allclose(graph, exported.encode(batch, "passage").numpy(), atol=1e-5)


def test_a_graph_cannot_leave_a_prompt_out(tiny_encoder: Path, tmp_path: Path) -> None:
    config = with_dense(tiny_encoder, tmp_path, include_prompt=False)
    with pytest.raises(ModelError, match="leaves the prompt out of pooling, which a graph cannot do"):
        export(config, ExportConfig(formats="onnx"), tmp_path / "out", ignore)
    assert not (tmp_path / "out").exists()


def test_prompts_of_data_sets_are_exported(tiny_encoder: Path, tmp_path: Path) -> None:
    prompts = {"letters": {"query": "Find: ", "passage": "Text: "}}
    output = tmp_path / "out"
    words = ["--model", str(tiny_encoder), "--dataset-prompts", json.dumps(prompts), "--output", str(output)]
    assert run("export", words) == 0
    model = SentenceTransformer(str(output), device="cpu")
    assert {name: model.prompts[f"letters-{name}"] for name in ("query", "document")} == {
        "query": "Find: ",
        "document": "Text: ",
    }
    exported = load_retriever(ModelConfig(str(output)))
    used = exported.prompts_of("letters")
    assert (used.query, used.passage) == ("Find: ", "Text: ")
    contents = exported.contents(TEXTS, "query", used.query)
    with torch.inference_mode():
        batch = exported.pad(exported.assemble(contents, "query"))
        own = exported.encode(batch, "query").numpy()
    np.testing.assert_allclose(
        model.encode(TEXTS, prompt_name="letters-query", normalize_embeddings=True), own, atol=2e-6
    )
    assert np.abs(own - model.encode(TEXTS, normalize_embeddings=True)).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooling", "similarity", "towers"),
    [("mean", "cosine", "shared"), ("cls", "dot", "shared"), ("last", "dot", "separate")],
)
def test_graphs_give_the_embeddings_of_the_encoder(
    tiny_encoder: Path, tmp_path: Path, pooling: str, similarity: str, towers: str
) -> None:
    config = ModelConfig(str(tiny_encoder), pooling=pooling, similarity=similarity, towers=towers, passage_length=24)
    parities = export(config, ExportConfig(formats="onnx,openvino"), tmp_path / "out", ignore)
    assert {(parity.backend, parity.side) for parity in parities} == {
        (backend, side)
        for backend in ("onnx", "openvino")
        for side in (("passage",) if towers == "shared" else ("query", "passage"))
    }
    exported = load_retriever(ModelConfig(str(tmp_path / "out"))).eval()
    batch = exported.pad(exported.token_ids(TEXTS, "passage"))  # other texts and sizes than it was exported with
    with torch.inference_mode():
        expected = exported.encode(batch, "passage").numpy()
    passage_tower = tmp_path / "out" if towers == "shared" else tmp_path / "out" / "document_0_Transformer"
    for backend in ("onnx", "openvino"):
        np.testing.assert_allclose(open_graph(passage_tower / FILES[backend], backend)(batch), expected, atol=2e-6)
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(model.encode_document(TEXTS), expected, atol=2e-6)
    assert "onnx/model.onnx" in (tmp_path / "out" / "README.md").read_text()


def test_a_graph_with_other_embeddings_is_refused(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tower: Encoder = load_retriever(ModelConfig(str(tiny_encoder))).passage.eval()

    def rounded(tokens: dict[str, torch.Tensor]) -> np.ndarray:
        with torch.inference_mode():
            return tower(tokens).numpy().round(2)

    monkeypatch.setattr("raytriever.experiments.export.export_model.open_graph", lambda path, backend: rounded)
    monkeypatch.setattr("raytriever.experiments.export.export_model.write_graph", lambda *_: tmp_path)
    with pytest.raises(ModelError, match="the graph differs from the encoder: onnx"):
        export(ModelConfig(str(tiny_encoder)), ExportConfig(formats="onnx"), tmp_path / "out", ignore)
    assert not (tmp_path / "out").exists()


def test_the_card_of_a_run_has_its_data_loss_and_metrics(tiny_encoder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    export(ModelConfig(str(tiny_encoder)), ExportConfig(), run / "model", ignore)
    loss = LossConfig("own/loss.py:hinge")
    (run / "config.yaml").write_text(dump_config(Config(data=DataConfig(dataset="letters"), loss=loss)))
    (run / "evaluation").mkdir()
    Results(models={"after": {"letters": {"auc": 0.75}}}, about={"letters": about_of(9)}).write(run / "evaluation")
    for number, model in enumerate((run, run / "model")):
        export(ModelConfig(str(model)), ExportConfig(), tmp_path / f"out{number}", ignore)
        card = (tmp_path / f"out{number}" / "README.md").read_text()
        assert "`letters` with the loss `hinge`" in card
        assert "| this model | 0.7500 |" in card


def test_an_export_checks_its_settings_before_it_writes(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, output = ModelConfig(str(tiny_encoder)), tmp_path / "out"
    with pytest.raises(ConfigError, match="formats: 'onnx,tflite' is invalid; choose from onnx, openvino"):
        check_options(ExportConfig(formats="onnx,tflite"))
    with pytest.raises(StorageError, match=r"holds no results\.json"):
        export(config, ExportConfig(evaluation=str(tmp_path)), output, ignore)
    Results(systems={"BM25": {"model": "bm25"}}).write(tmp_path)
    with pytest.raises(StorageError, match="is an evaluation of bm25, not "):
        export(config, ExportConfig(evaluation=str(tmp_path)), output, ignore)
    monkeypatch.setitem(PACKAGES, "onnx", ("onnx", "nowhere_to_be_found"))
    with pytest.raises(ConfigError, match=r"onnx needs nowhere_to_be_found; pip install 'raytriever\[export\]'"):
        export(config, ExportConfig(formats="onnx"), output, ignore)
    assert not output.exists()
    output.mkdir()
    with pytest.raises(StorageError, match="exists"):
        export(config, ExportConfig(), output, ignore)


def test_an_unreachable_hub_gives_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    from raytriever.experiments.export.export_model import push_to_hub

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "nothing")
    with pytest.raises(
        ModelError, match=r"push_to_hub someone/model: the upload to the hub failed \(.+\); check the name"
    ):
        push_to_hub(tmp_path, "someone/model")


CONFIG = {"model": {"model": "minilm"}, "data": {"dataset": "company/docs"}, "loss": {"loss": "infonce"}}
TRAINED = Results(
    models={
        "bm25": {"docs": {"ndcg_at_10": 0.5, "auc": 0.8}},
        "before": {"docs": {"ndcg_at_10": 0.55, "auc": 0.85}},
        "after": {"docs": {"ndcg_at_10": 0.66123456, "auc": 0.9}},
    },
    about={"docs": about_of(9)},
)
ROW = threshold_row(
    dataset="other set",
    model="mine",
    threshold=0.625,
    chosen=0.9,
    fractions={
        "coverage": Proportion(1, 30, 0.006, 0.167),
        "top_precision": Proportion(1, 1, 0.207, 1.0),
        "pair_precision": Proportion(8, 10, 0.49, 0.943),
        "pair_recall": Proportion(8, 90, 0.046, 0.166),
    },
    notes=["Few answers: 1 of 30 queries of test have one."],
)
RESULTS = Results(
    models={"mine": {"other set": {"ndcg_at_10": 0.4, "auc": None}}},
    about={"other set": about_of(30)},
    thresholds=[ROW],
)


def card(**facts: object) -> ModelCard:
    return ModelCard(model_card(CardFacts("mine", Description(query_prompt="query: "), 384, **facts)))  # type: ignore[arg-type]


def test_the_hub_reads_the_metrics() -> None:
    parsed = card(licence="apache-2.0", config=CONFIG, trained=TRAINED, results=RESULTS)
    data = parsed.data.to_dict()
    assert data["license"] == "apache-2.0"
    assert data["base_model"] == "sentence-transformers/all-MiniLM-L6-v2"
    name, results = model_index_to_eval_results(data["model-index"])
    metrics = {
        (result.dataset_name, result.dataset_split, result.metric_type): result.metric_value for result in results
    }
    assert name == "mine"
    assert metrics == {
        ("docs", "test", "ndcg_at_10"): 0.66123,
        ("docs", "test", "auc"): 0.9,
        ("other set", "test", "ndcg_at_10"): 0.4,
    }
    assert all(" " not in result.dataset_type for result in results)


def test_the_card_shows_data_prefixes_results_and_thresholds() -> None:
    text = card(config=CONFIG, trained=TRAINED, results=RESULTS).text
    assert "Trained by raytriever on `company/docs` with the loss `infonce`" in text
    assert "queries begin with `query: `" in text
    assert "| this model | 0.6612 | 0.9000 |" in text
    row = "| other set | mine | precision 0.9 | score | 0.625 | 0.900 | 1 of 30 = 0.033 (0.006 to 0.167) | 1 of 1 = "
    row += "1.000 (0.207 to 1.000) | - | 8 of 10 = 0.800 (0.490 to 0.943) | 8 of 90 = 0.089 (0.046 to 0.166) | 0.100 |"
    assert row in text
    assert "- other set, mine, precision 0.9: Few answers: 1 of 30 queries" in text


def test_no_text_of_the_settings_leaves_its_code_block() -> None:
    """Somebody else may have written them, and a hub shows the card as HTML."""
    text = card(config=CONFIG | {"note": "x\n````\n<img src=x>\n"}, trained=TRAINED, results=RESULTS).text
    tokens = MarkdownIt("commonmark").parse(text)
    assert "<img src=x>" in "".join(token.content for token in tokens if token.type == "fence")
    assert "<img" not in "".join(token.content for token in tokens if token.type != "fence")


def test_the_card_omits_sections_without_facts(tmp_path: Path) -> None:
    text = model_card(CardFacts("mine", Description(), 384))
    titles = ("## Training", "## Results", "## Thresholds", "## Other runtimes")
    assert not [word for word in (*titles, "model-index", "base_model", "null") if word in text]
    assert "license" not in json.dumps(card().data.to_dict())


def test_prompts_are_listed_by_name() -> None:
    prompts = {"query": "q: ", "document": "", "scifact-query": "Instruct: find | it\nQuery: ", "empty": ""}
    card = model_card(CardFacts("mine", Description(query_prompt="q: ", prompts=prompts), 32))
    assert "queries begin with `q: `" in card
    assert '| scifact-query | "Instruct: find \\| it\\\\nQuery: " |' in card
    assert "| empty" not in card
    assert "| query |" not in card
    assert "## Prompts" not in model_card(CardFacts("mine", Description(prompts={"query": "q: "}), 32))
