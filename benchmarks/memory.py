"""Planned memory of training against bytes that torch's allocator reports on a CPU.

Run: `python benchmarks/memory.py [--json PATH]`. A decoder like Qwen3 (8 layers of dimension 512) and an encoder like
XLM-R (6 layers of dimension 384) run one chunk forward and backward: all weights and LoRA adapters, with and without
activation checkpointing, in fp32 and bf16, with the attention of a CPU (`cpu`) and with torch's fused attention
(`fused`), which keeps on a CPU what the planner expects of CUDA. Each figure is planned / allocated."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import torch
from transformers import PretrainedConfig, Qwen3Config, XLMRobertaConfig

from ends import End, parser, report
from raytriever.models.model_settings import ModelConfig
from raytriever.training.memory.memory_of_states import WorkerTexts
from raytriever.training.memory.memory_plan import MemoryPlan
from raytriever.training.memory.simulated_encoder import SimulatedEncoder, use_float32_norms
from raytriever.training.optimizer_and_schedule import build_optimizer
from raytriever.training.training_settings import TrainingConfig

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from allocations import chunk_peak, encoder_of

TOLERANCE = 0.1
TEXTS, TOKENS = 8, 128


def config_of(name: str) -> PretrainedConfig:
    """Return the configuration of a model."""
    if name == "decoder":
        return Qwen3Config(
            vocab_size=8_000,
            hidden_size=512,
            intermediate_size=1536,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=64,
        )
    return XLMRobertaConfig(
        vocab_size=8_000,
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=6,
        max_position_embeddings=514,
        pad_token_id=1,
    )


def state_ratio(name: str, model: ModelConfig) -> float:
    """Return planned / real bytes of weights, gradients and optimizer states after one step."""
    real = encoder_of(config_of(name), model)
    optimizer = build_optimizer(real, 1e-4, 0.01)
    ids = torch.zeros(2, 16, dtype=torch.long)
    real({"input_ids": ids, "attention_mask": torch.ones_like(ids)}).sum().backward()
    optimizer.step()
    tensors = [*real.parameters(), *(p.grad for p in real.parameters() if p.grad is not None)]
    tensors += [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    simulated = SimulatedEncoder(encoder_of(config_of(name), model, "meta"), "cuda", "fp32")
    parts = MemoryPlan(simulated, 1, TrainingConfig(), WorkerTexts(8, 8, 1, 16, 512)).parts(1)
    planned = parts.weights + parts.gradients + parts.optimizer
    return planned / sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def main() -> None:
    """Compare every combination."""
    options = parser(__doc__).parse_args()
    ends: dict[str, End] = {}

    def compare(name: str, ratio: float) -> None:
        ends[f"{name} (x)"] = End(ratio, f"1 +- {TOLERANCE}", abs(ratio - 1) <= TOLERANCE)

    for name, rank in product(("decoder", "encoder"), (0, 16)):
        trained = f"LoRA of rank {rank}" if rank else "all weights"
        compare(f"{name}, {trained}: weights, gradients, moments", state_ratio(name, ModelConfig(lora_rank=rank)))
        for checkpointing, precision, kernels in product((False, True), ("fp32", "bf16"), ("cpu", "fused")):
            model = ModelConfig(lora_rank=rank, activation_checkpointing=checkpointing)
            real = encoder_of(config_of(name), model, "cpu", precision)
            if kernels == "fused":
                use_float32_norms(real)  # as autocast does on CUDA, for which the other plan is
            device = "cpu" if kernels == "cpu" else "cuda"
            simulated = SimulatedEncoder(encoder_of(config_of(name), model, "meta", precision), device, precision)
            how = f"{precision}, {kernels}{', checkpointing' if checkpointing else ''}"
            ratio = simulated.chunk_bytes(TEXTS, TOKENS).peak / chunk_peak(real, precision, TEXTS, TOKENS)
            compare(f"{name}, {trained}: chunk, {how}", ratio)
    report(f"memory plan, {TEXTS} texts of {TOKENS} tokens", ends, options.json)


if __name__ == "__main__":
    main()
