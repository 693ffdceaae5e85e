"""Cost of a study at the size of the paper, estimated before any data is opened: steps, operations, hours.

Operations are counted as in `training/monitoring/throughput.py`: 6 for each token and weight of the blocks, and 12 for
each layer, width and pair of tokens. All texts are assumed to have the longest length; most are shorter. The rate is
assumed: 30 % of the bf16 peak of an H100. The evaluation, which encodes every corpus once, is not included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from raytriever.config.settings import Config
from raytriever.studies.definition import Arm, Study
from raytriever.training.monitoring import peak_flops

# Blocks and width of the encoders that studies name, so that no model is downloaded for an estimate.
ENCODERS = {
    "minilm": (6, 384),
    "nreimers/MiniLM-L6-H384-uncased": (6, 384),
    "FacebookAI/xlm-roberta-base": (12, 768),
    "FacebookAI/xlm-roberta-large": (24, 1024),
    "google-bert/bert-base-uncased": (12, 768),
    "bert-base-uncased": (12, 768),
    "intfloat/e5-base-v2": (12, 768),
    "sentence-transformers/all-mpnet-base-v2": (12, 768),
    "BAAI/bge-base-en-v1.5": (12, 768),
}
LENGTHS = 64, 256  # tokens of queries and passages, if a recipe sets no length
GPU, GPU_SHARE = "NVIDIA H100", 0.3


@dataclass(frozen=True)
class ArmCost:
    """Cost of one training of an arm."""

    name: str
    steps: int
    operations: float


@dataclass(frozen=True)
class Cost:
    """Hours of all arms and seeds on a GPU at the assumed rate."""

    arms: tuple[ArmCost, ...]
    gpu_hours: float


def cost_of(study: Study, seeds: int) -> Cost:
    """Estimate the cost of a study."""
    arms = tuple(_arm_cost(arm) for arm in study.arms if arm.curriculum is not None)
    operations = seeds * sum(arm.operations for arm in arms)
    peak = peak_flops(GPU, "bf16")
    assert peak is not None
    return Cost(arms, operations / (GPU_SHARE * peak) / 3600)


def cost_text(study: Study, seeds: int, cost: Cost) -> str:
    """Return a text with the settings, the arms, and their cost."""
    width = max(len(arm.name) for arm in cost.arms)
    lines = [f"{study.title}: {study.source}, {len(cost.arms)} trainings x {seeds} seeds", *study.heading]
    settings = {arm.name: arm.curriculum.all_stages for arm in study.arms if arm.curriculum is not None}
    for arm in cost.arms:
        text = "; ".join(_format_settings(part.config) for part in settings[arm.name])
        lines.append(f"  {arm.name:<{width}}  {arm.steps:>9,} steps  {arm.operations:.1e} operations  {text}")
    lines.append(
        f"all seeds, at the longest lengths, without evaluation: {cost.gpu_hours:,.1f} GPU hours at "
        f"{GPU_SHARE:.0%} of an H100's bf16 peak (assumed, not measured)"
    )
    return "\n".join(lines)


def _arm_cost(arm: Arm) -> ArmCost:
    assert arm.curriculum is not None
    steps, operations = 0, 0.0
    for part in arm.curriculum.all_stages:
        config = part.config
        own = _steps(arm, config)
        steps += own
        data, model = config.data, config.model
        query = _operations_of_text(model.model, model.query_length or LENGTHS[0])
        passage = _operations_of_text(model.model, model.passage_length or LENGTHS[1])
        group = query + (data.positives_per_query + data.negatives_per_query) * passage
        operations += own * config.training.batch_size * group
    return ArmCost(arm.name, steps, operations)


def _steps(arm: Arm, config: Config) -> int:
    training = config.training
    if training.max_steps is not None:
        return training.max_steps
    assert arm.queries is not None  # every recipe gives the queries of an epoch
    return math.ceil((training.epochs or 1.0) * arm.queries / training.batch_size)


def _operations_of_text(encoder: str, length: float) -> float:
    """Return the operations of one text, forward and backward."""
    layers, width = ENCODERS[encoder]
    return 6 * 12 * layers * width**2 * length + 12 * layers * width * length**2


def _format_settings(config: Config) -> str:
    data, model, training, loss = config.data, config.model, config.training, config.loss
    length = f"{training.max_steps:,} steps" if training.max_steps else f"{training.epochs or 1.0:g} epochs"
    return (
        f"{model.model} on {data.dataset}, {loss.title}, batch {training.batch_size}, "
        f"{data.positives_per_query}+{data.negatives_per_query} passages, lr {training.learning_rate:g}, {length}"
    )
