"""The model card has metadata that the hub reads, and no figure that was not evaluated."""

from __future__ import annotations

import json
from pathlib import Path

from evaluations import about_of, threshold_row
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results
from markdown_it import MarkdownIt

from raytriever.evaluation.results import Results
from raytriever.experiments.export.model_card import CardFacts, model_card
from raytriever.metrics.intervals import Proportion
from raytriever.models.description import Description

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
    for word in (
        "## Training",
        "## Results",
        "## Thresholds",
        "## Other runtimes",
        "model-index",
        "base_model",
        "null",
    ):
        assert word not in text
    assert "license" not in json.dumps(card().data.to_dict())


def test_prompts_are_listed_by_name() -> None:
    prompts = {"query": "q: ", "document": "", "scifact-query": "Instruct: find | it\nQuery: ", "empty": ""}
    card = model_card(CardFacts("mine", Description(query_prompt="q: ", prompts=prompts), 32))
    assert "queries begin with `q: `" in card
    assert '| scifact-query | "Instruct: find \\| it\\\\nQuery: " |' in card
    assert "| empty" not in card
    assert "| query |" not in card
    assert "## Prompts" not in model_card(CardFacts("mine", Description(prompts={"query": "q: "}), 32))
