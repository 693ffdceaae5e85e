"""Settings of the paper, and the sizes that the docstrings of the recipes give."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from transformers import AutoModel, BertConfig, PreTrainedConfig, XLMRobertaConfig

from raytriever.experiments.recipes import RECIPES
from raytriever.training.run_config import check_config

PAPER = {"xlmr-large": 16, "xlmr-base": 32, "minilm": 64}
_XLMR: dict[str, Any] = {
    "vocab_size": 250002,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "layer_norm_eps": 1e-5,
}
# The published `config.json` of each.
PUBLISHED: dict[str, tuple[PreTrainedConfig, int]] = {
    "xlmr-large": (
        XLMRobertaConfig(
            hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, **_XLMR
        ),
        559_890_432,
    ),
    "xlmr-base": (
        XLMRobertaConfig(
            hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, **_XLMR
        ),
        278_043_648,
    ),
    "minilm": (
        BertConfig(
            vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
        ),
        22_713_216,
    ),
}


@pytest.mark.parametrize(("name", "batch"), PAPER.items())
def test_the_settings_are_those_of_the_paper(name: str, batch: int) -> None:
    config = RECIPES[name]()
    check_config(config)
    assert (config.loss.loss, config.loss.temperature, config.loss.reduction) == ("mw", 0.01, "mean")
    assert (config.data.negatives_per_query, config.data.positives_per_query) == (5, 1)
    training = config.training
    assert (training.batch_size, training.epochs, training.max_steps, training.warmup_steps) == (batch, 20, None, 500)
    assert training.dev_batches * batch == 1024
    assert name != "minilm" or training.learning_rate == 3e-5


@pytest.mark.parametrize("name", RECIPES)
def test_each_call_returns_a_new_config_and_the_docstring_has_the_command(name: str) -> None:
    assert RECIPES[name]() == RECIPES[name]()
    docstring = inspect.getdoc(RECIPES[name])
    assert "Command: `raytriever train" in docstring
    if name != "pydocs":
        assert f"--recipe {name} " in docstring


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_encoder_has_the_size_in_the_docstring(name: str) -> None:
    published, parameters = PUBLISHED[name]
    with torch.device("meta"):
        model = AutoModel.from_config(published)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    docstring = inspect.getdoc(RECIPES[name])
    assert f"{parameters:,} parameters" in docstring
