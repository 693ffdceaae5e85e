"""Workload of a plan: quantities that several stages share, computed from settings, model and measured coefficients.

Sizes of a model follow from its `config.json` or a known architecture; no weights are read.

`benchmarks/coefficients.py` writes the coefficients into `coefficients.json`, with the machine, the day and the command
of their measurement. Those of a GPU are computed from the operations of the encoder, because nothing has been measured
on one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil, log2
from pathlib import Path
from typing import Any

import torch

from raytriever.encoding.writer import EmbeddingPlan, shard_rows
from raytriever.index.exact.search import MOST_ROWS
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

FILE = Path(__file__).with_name("coefficients.json")
GB = 1e9
_LARGE = 768  # width from which a GPU's share of its peak is that of a large encoder
SPECIAL_TOKENS = 2  # of a text
CHUNK = 64  # texts of a chunk of gradient caching
# Sizes of XLM-R (Conneau et al., 2020, arXiv:1911.02116), in the order of `SHAPES`.
_SIZES: tuple[dict[str, Any], ...] = (
    {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
)
_VOCABULARY, _POSITIONS = 250_002, 514


@dataclass(frozen=True)
class Measurement:
    """Coefficients of one command.

    Args:
        kind: `measured` or `computed`.
        machine: processor with its vector instructions, or what was computed.
        date: Date of the measurement, YYYY-MM-DD.
        values: coefficients by name; seconds are those of one core.
    """

    kind: str
    machine: str
    date: str
    command: str
    values: dict[str, float]


@cache
def measurements() -> tuple[Measurement, ...]:
    """Return all coefficients, grouped by the command that measured them."""
    return tuple(Measurement(**group) for group in json.loads(FILE.read_text(encoding="utf-8")))


def rates() -> dict[str, float]:
    """Return the value of each coefficient by name."""
    return {name: value for group in measurements() for name, value in group.values.items()}


@dataclass(frozen=True)
class ModelSize:
    """Sizes of an encoder.

    Args:
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
        """Build the model of a plan without data, and measure it."""
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


@dataclass(frozen=True)
class Workload:
    """Corpus, model and cluster of a plan, and coefficients by name, in seconds of one core."""

    config: PlanConfig
    model: ModelSize
    rates: Mapping[str, float]

    @property
    def words(self) -> float:
        """Words of all documents."""
        return self.config.documents * self.config.words_per_document

    @property
    def token_bytes(self) -> float:
        """Bytes of the tokens of all documents, without special tokens."""
        return self.words * self.config.tokens_per_word * self.model.token_bytes

    @property
    def cores(self) -> int:
        """Cores of all nodes."""
        return self.config.all_nodes * self.config.cores_per_node

    @property
    def bytes_per_second(self) -> float:
        """Bytes a second that all nodes together read or write."""
        return self.config.all_nodes * self.config.read_per_node * GB

    @property
    def process_bytes(self) -> float:
        """Memory of a process that has imported what it needs."""
        return self.rates["process.bytes"]

    @property
    def comparisons(self) -> float:
        """Comparisons of a sort of all documents."""
        return self.config.documents * log2(max(2, self.config.documents))

    @property
    def id_seconds(self) -> float:
        """Seconds of ordering the documents by id, for equal scores."""
        return self.comparisons * self.rates["search.ids_seconds_per_comparison"]

    @property
    def id_bytes(self) -> float:
        """Memory of ordering the documents by id."""
        return self.config.documents * self.rates["search.ids_bytes_per_document"]

    @property
    def block_bytes(self) -> float:
        """Embeddings that a search holds at a time, and their copy in another arithmetic."""
        return 2 * 4 * min(MOST_ROWS, self.config.documents) * self.model.width

    @property
    def store(self) -> EmbeddingPlan:
        """Plan of the store of the embeddings of all documents."""
        rows = self.config.documents
        return EmbeddingPlan(
            model="",
            model_digest="",
            dataset="",
            data_digest="",
            side="passage",
            prefix="",
            length=0,
            pooling="mean",
            similarity="cosine",
            precision="bf16",
            dtype=self.config.dtype,
            rows=rows,
            width=self.model.width,
            shard_rows=shard_rows(rows, self.config.gpus > 0),
        )

    def hashing(self, amount: float) -> float:
        """Return the seconds of comparing bytes with their digests, or of computing these, in one process."""
        return amount * max(1 / (self.config.read_per_node * GB), self.rates["digest.seconds_per_byte"])

    def flops(self, words: float) -> float:
        """Return the FLOPs of a forward pass of one text."""
        tokens = tokens_of(words, self.config, self.model.longest)
        return self.model.per_token * tokens + self.model.per_pair * tokens**2

    def flops_per_second(self, work: str) -> float:
        """Return the useful FLOP/s of the cluster when it encodes or trains."""
        if not self.config.gpus:
            nodes = self.config.all_nodes if work == "encode" else 1
            return nodes * self.config.cores_per_node / self.rates[f"{work}.core_seconds_per_flop"]
        size = "large" if self.model.width >= _LARGE else "small"
        return self.config.gpus * self.config.gpu_tflops * 1e12 * self.rates[f"gpu.{work}_share_{size}"]

    def products(self, queries: int, gpus: int, cores: int) -> float:
        """Return the seconds of scoring all documents for some queries, on GPUs or else on cores."""
        scores = queries * self.config.documents
        if not self.config.gpus:
            return scores * self.model.width * self.rates["search.seconds_per_product"] / cores
        traffic = scores * self.rates["gpu.search_bytes_per_score"] / self.rates["gpu.bytes_per_second"]
        return (scores * 2 * self.model.width / (self.config.gpu_tflops * 1e12) + traffic) / gpus
