"""Sizes of a model that a plan needs, from its `config.json` or a known architecture; no weights are read."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import torch

from raytriever.models.config import ModelConfig
from raytriever.models.description import describe
from raytriever.models.encoder import Encoder
from raytriever.models.resolution import resolve_model
from raytriever.planning.config import SHAPES, PlanConfig
from raytriever.training.config import TrainingConfig
from raytriever.training.memory.arithmetic import WorkerTexts
from raytriever.training.memory.plan import MemoryPlan
from raytriever.training.memory.simulation import SimulatedEncoder, prepare_encoder, simulate, text_encoder_of
from raytriever.training.monitoring import Encoding

SPECIAL_TOKENS = 2  # of a text
CHUNK = 64  # texts of a chunk of gradient caching
# Sizes of XLM-R (Conneau et al., 2020, arXiv:1911.02116), in the order of `SHAPES`.
_SIZES: tuple[dict[str, Any], ...] = (
    {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
)
_VOCABULARY, _POSITIONS = 250_002, 514


@dataclass(frozen=True)
class ModelSize:
    """Sizes of an encoder.

    Args:
        weights: number of weights.
        width: components of an embedding.
        per_token, per_pair: FLOPs of a forward pass for each token, and for each pair of tokens of one text.
        longest: tokens at which a text is cut.
        token_bytes: bytes of a stored token.
        training_bytes: memory of a training worker with chunks of `CHUNK` texts.
    """

    weights: int
    width: int
    per_token: float
    per_pair: float
    longest: int
    token_bytes: int
    training_bytes: float

    @classmethod
    def of(cls, config: PlanConfig) -> ModelSize:
        """Build the model of a plan without data, and measure it.

        Raises:
            ModelError: the model does not exist, or transformers does not know its architecture.
        """
        device, precision = ("cuda", "bf16") if config.gpus else ("cpu", "fp32")
        if config.model in SHAPES:
            simulated, towers, longest = _of_shape(config.model, device, precision), 1, _POSITIONS - SPECIAL_TOKENS
        else:
            settings = ModelConfig(model=config.model)
            directory = resolve_model(config.model, weights=False)
            description = describe(directory, settings)
            simulated = simulate(directory, "passage", settings, description, device, precision)
            towers, longest = 1 if description.towers == "shared" else 2, description.passage_length
        encoder: Any = simulated.encoder
        work = Encoding.of(encoder.backbone)
        share = _share(config, encoder.width, longest)
        parts = MemoryPlan(simulated, towers, TrainingConfig(), share).parts(min(CHUNK, share.texts))
        weights = towers * sum(parameter.numel() for parameter in encoder.parameters())
        token_bytes = 2 if encoder.backbone.config.vocab_size <= 1 << 16 else 4
        # Backward takes twice the FLOPs of forward.
        return cls(weights, encoder.width, work.per_token / 3, work.per_pair / 3, longest, token_bytes, parts.total)


def _of_shape(name: str, device: str, precision: str) -> SimulatedEncoder:
    from transformers import XLMRobertaConfig

    config = XLMRobertaConfig(
        vocab_size=_VOCABULARY,
        max_position_embeddings=_POSITIONS,
        type_vocab_size=1,
        pad_token_id=1,
        **_SIZES[SHAPES.index(name)],
    )
    with torch.device("meta"):
        encoder = Encoder(text_encoder_of(config), "mean", normalise=True)
    return SimulatedEncoder(prepare_encoder(encoder, ModelConfig()), device, precision)


def _share(config: PlanConfig, width: int, longest: int) -> WorkerTexts:
    workers = max(1, config.gpus)
    queries = max(1, config.batch_size // workers)
    tokens = ceil(tokens_of(config.words_per_document, config, longest))
    return WorkerTexts(queries, queries * (1 + config.negatives_per_query), workers, tokens, width)


def tokens_of(words: float, config: PlanConfig, longest: int) -> float:
    """Return the tokens of a text that are encoded, special tokens included."""
    return min(words * config.tokens_per_word + SPECIAL_TOKENS, longest)
