"""What a study would cost at the paper's size, before anything is opened: steps, operations, hours.

Arithmetic is counted as `training/monitoring/throughput.py` counts it, 6 operations a weight of the blocks and token
and 12 a layer, width and pair of tokens, at full lengths: no text is longer, most are shorter. Two rates turn it into
hours. One was measured: MiniLM trained on SQuAD in bf16 on 2 CPU cores (`benchmarks/results/train-2026-11-21.json`).
The other was not: 30 % of the bf16 peak of an H100, as docs/explanation/cluster-costs.md assumes. Measuring, which
encodes every corpus once, comes on top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from raytriever.config.settings import Config
from raytriever.studies.definition import Arm, Study
from raytriever.training.monitoring.throughput import peak_flops

# Blocks and width of the encoders that studies name; nothing is fetched only to be counted.
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
LENGTHS = 64, 256  # of queries and passages, where a recipe leaves them to the encoder's own files
# Examples a second of that benchmark, and the mean lengths of its queries and passages, cut at 128.
MEASURED_RATE, MEASURED_LENGTHS, MEASURED_ENCODER = 39.70007388182485, (13.0, 117.0), "minilm"
GPU, GPU_SHARE = "NVIDIA H100", 0.3


@dataclass(frozen=True)
class ArmCost:
    """What training one arm once takes.

    Args:
        name: of the arm.
        steps: at most.
        operations: of the encoder, forward and backward.
    """

    name: str
    steps: int
    operations: float


@dataclass(frozen=True)
class Cost:
    """What a study takes.

    Args:
        arms: each once.
        gpu_hours: of all arms and seeds on one GPU, assumed.
        cpu_hours: on the 2 cores whose rate was measured.
    """

    arms: tuple[ArmCost, ...]
    gpu_hours: float
    cpu_hours: float


def cost_of(study: Study, seeds: int) -> Cost:
    """Count a study.

    Raises:
        ValueError: the recipe names an encoder that is not among `ENCODERS`, or epochs of an unknown number of queries.
    """
    arms = tuple(_arm_cost(arm) for arm in study.arms if arm.curriculum is not None)
    whole = seeds * sum(arm.operations for arm in arms)
    peak = peak_flops(GPU, "bf16")
    assert peak is not None
    query, passage = MEASURED_LENGTHS
    rate = MEASURED_RATE * (_text(MEASURED_ENCODER, query) + _text(MEASURED_ENCODER, passage))
    return Cost(arms, whole / (GPU_SHARE * peak) / 3600, whole / rate / 3600)


def cost_text(study: Study, seeds: int, cost: Cost) -> str:
    """The setting, the arms, and what they take, for the person."""
    width = max(len(arm.name) for arm in cost.arms)
    lines = [f"{study.title}: {study.source}, {len(cost.arms)} trainings x {seeds} seeds", *study.heading]
    settings = {arm.name: arm.curriculum.all_stages for arm in study.arms if arm.curriculum is not None}
    for arm in cost.arms:
        told = "; ".join(_setting(part.config) for part in settings[arm.name])
        lines.append(f"  {arm.name:<{width}}  {arm.steps:>9,} steps  {arm.operations:.1e} operations  {told}")
    lines.append(
        f"all seeds, at full lengths, training alone: {cost.gpu_hours:,.1f} GPU hours at {GPU_SHARE:.0%} of an H100's "
        f"bf16 peak (assumed, not measured); {cost.cpu_hours:,.0f} hours at the rate measured on 2 CPU cores"
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
        query = _text(model.model, model.query_length or LENGTHS[0])
        passage = _text(model.model, model.passage_length or LENGTHS[1])
        group = query + (data.positives_per_query + data.negatives_per_query) * passage
        operations += own * config.training.batch_size * group
    return ArmCost(arm.name, steps, operations)


def _steps(arm: Arm, config: Config) -> int:
    training = config.training
    if training.max_steps is not None:
        return training.max_steps
    if arm.queries is None:
        raise ValueError(f"{arm.name}: its recipe does not tell how many queries an epoch has")
    return math.ceil((training.epochs or 1.0) * arm.queries / training.batch_size)


def _text(encoder: str, length: float) -> float:
    """Operations of one text, forward and backward."""
    if encoder not in ENCODERS:
        raise ValueError(f"{encoder!r} is not among the encoders that can be counted")
    layers, width = ENCODERS[encoder]
    return 6 * 12 * layers * width**2 * length + 12 * layers * width * length**2


def _setting(config: Config) -> str:
    data, model, training, loss = config.data, config.model, config.training, config.loss
    length = f"{training.max_steps:,} steps" if training.max_steps else f"{training.epochs or 1.0:g} epochs"
    return (
        f"{model.model} on {data.dataset}, {loss.loss}, batch {training.batch_size}, "
        f"{data.positives_per_query}+{data.negatives_per_query} passages, lr {training.learning_rate:g}, {length}"
    )
