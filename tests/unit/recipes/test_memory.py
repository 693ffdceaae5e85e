"""Estimates of memory, compared with real tensors and with the table of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training_memory import StateMemory, activation_memory, state_memory
from transformers import AutoModel, XLMRobertaConfig

from raytriever.training.config import STRATEGIES
from raytriever.training.optimizer import build_optimizer

LARGE, BASE, MINILM = 559_890_432, 278_043_648, 22_713_216
WORKERS = (1, 8)


def test_the_estimate_for_one_process_equals_its_tensors() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.Linear(20, 10))
    module[0].requires_grad_(False)
    trained = sum(p.numel() for p in module[1].parameters())
    optimizer = build_optimizer(module, 1e-3, 0.01)
    module(torch.randn(2, 30)).sum().backward()
    optimizer.step()

    def size(tensors: list[torch.Tensor]) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    parameters = list(module.parameters())
    moments = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    expected = StateMemory(size(parameters), size([p.grad for p in parameters if p.grad is not None]), size(moments))
    assert state_memory(sum(p.numel() for p in parameters), trained=trained) == expected


def backward_bytes(layers: int, checkpointing: bool, texts: int = 2, length: int = 64) -> int:
    """Return the bytes that real blocks keep for backward, without weights and their casts."""
    width = 256
    model = AutoModel.from_config(
        XLMRobertaConfig(
            vocab_size=99,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            intermediate_size=4 * width,
            max_position_embeddings=80,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            use_cache=False,
        )
    ).train()
    if checkpointing:
        model._set_gradient_checkpointing(True, lambda *a: torch.utils.checkpoint.checkpoint(*a, use_reentrant=False))
    weights = {tuple(p.shape) for p in model.parameters()} | {tuple(p.shape)[::-1] for p in model.parameters()}
    held: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tuple(tensor.shape) not in weights:
            held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    tokens = torch.randint(5, 90, (texts, length))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), torch.autocast("cpu", torch.bfloat16):
        states = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state
    assert states.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in held.values())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_estimate_of_activations_equals_real_blocks(checkpointing: bool) -> None:
    tokens, width = 2 * 64, 256
    measured = backward_bytes(4, checkpointing) - backward_bytes(2, checkpointing)
    estimates = [activation_memory(tokens, width, layers, checkpointing, dropout=False) for layers in (2, 4)]
    assert measured == pytest.approx(estimates[1] - estimates[0], rel=0.02)


def expected_rows() -> list[str]:
    """Return the rows of docs/reference/recipes.md."""
    rows = []
    for name in STRATEGIES:
        for workers in WORKERS:
            cells = [f"{state_memory(n, name, workers).total / 1e9:.2f}" for n in (LARGE, BASE, MINILM)]
            between = f"{state_memory(LARGE, name, workers, cached=True).total / 1e9:.2f}"
            rows.append(f"| `{name}` | {workers} | {' | '.join(cells)} | {between} |")
    return [row for row in rows if not (row.startswith("| `ddp`") and "| 1 |" not in row)]


def test_the_table_of_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "recipes.md").read_text()
    assert [row for row in text.splitlines() if row.startswith(("| `ddp`", "| `fsdp2`", "| `zero"))] == expected_rows()
