"""Settings of the paper, and the sizes and memory that the docstrings of the recipes give."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, BertConfig, PreTrainedConfig, XLMRobertaConfig

from raytriever.experiments.recipes import RECIPES
from raytriever.training.run_config import check_config
from raytriever.training.training_settings import STRATEGIES

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


def test_the_learning_rate_of_minilm_is_that_of_the_paper() -> None:
    assert RECIPES["minilm"]().training.learning_rate == 3e-5


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


def state_gigabytes(parameters: int, strategy: str = "ddp", workers: int = 1, cached: bool = False) -> float:
    """Return the memory of weights, gradients and AdamW's moments of a worker within a step, all of them in float32.

    ZeRO shards the moments (stage 1), the gradients too (2; cached, a worker keeps their whole sum), and the weights
    too (3), of which a worker has all within a step (Rajbhandari et al., 2020, arXiv:1910.02054, figure 1). It adds a
    copy of the weights that a worker updates. FSDP2 shards all, and the weights of one block are not counted."""
    stage, fraction = int(strategy[-1]) if strategy.startswith("zero") else 0, -(-parameters // workers)
    if strategy == "fsdp2":
        return 16 * fraction / 1e9
    gradients = fraction if stage >= 2 and not cached else parameters
    moments = 2 * (fraction if stage else parameters)
    return 4 * (parameters + gradients + moments + fraction * (stage > 0) + fraction * (stage == 3)) / 1e9


def activation_gigabytes(tokens: int, dim: int, layers: int, checkpointing: bool = False) -> float:
    """Return what the blocks keep for backward in bf16, with masks of dropout and attention that keeps no scores."""
    block = 42 * tokens * dim
    return (4 * tokens * dim * layers + block if checkpointing else block * layers) / 1e9


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_memory_in_the_docstring_is_the_estimate(name: str) -> None:
    published, parameters = PUBLISHED[name]
    config = RECIPES[name]()
    docstring = " ".join(inspect.getdoc(RECIPES[name]).split())
    passages = config.data.positives_per_query + config.data.negatives_per_query
    tokens = config.training.batch_size * (config.model.query_length + passages * config.model.passage_length)
    shape = tokens, published.hidden_size, published.num_hidden_layers
    state, activations, recomputed = (
        state_gigabytes(parameters),
        activation_gigabytes(*shape),
        activation_gigabytes(*shape, checkpointing=True),
    )
    assert f"{tokens:,} tokens" in docstring
    assert f"16 bytes each: {state:.1f} GB" in docstring
    assert f"{published.num_hidden_layers} blocks: {activations:.1f} GB" in docstring
    assert f"the {activations:.1f} GB become {recomputed:.1f} GB" in docstring
    with torch.device("meta"):
        matrices = [p for p in AutoModel.from_config(published).encoder.parameters() if p.ndim > 1]
    blocks = 2 * sum(p.numel() for p in matrices) / 1e9
    (needed,) = re.findall(r"Needs: (\d+) GB", docstring)
    assert 0 <= int(needed) - (state + activations + blocks) < 1


def test_the_table_of_the_documentation() -> None:
    text = (Path(__file__).parents[4] / "docs" / "reference" / "recipes.md").read_text()
    sizes = [parameters for _, parameters in PUBLISHED.values()]
    expected = []
    for name in STRATEGIES:
        for workers in (1, 8) if name != "ddp" else (1,):
            cells = [f"{state_gigabytes(size, name, workers):.2f}" for size in sizes]
            cells.append(f"{state_gigabytes(sizes[0], name, workers, cached=True):.2f}")
            expected.append(f"| `{name}` | {workers} | {' | '.join(cells)} |")
    assert [row for row in text.splitlines() if row.startswith(("| `ddp`", "| `fsdp2`", "| `zero"))] == expected
