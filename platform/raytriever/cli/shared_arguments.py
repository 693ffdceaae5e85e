"""Settings and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path

from raytriever.cli.arguments import Argument, quote_command
from raytriever.cli.command import SettingsGroup
from raytriever.core.paths import EMBEDDINGS as EMBEDDINGS_PATH
from raytriever.data.data_settings import DataConfig
from raytriever.retrieval.external_encoders.endpoint_settings import ENCODER, EncoderConfig
from raytriever.training.training_settings import TrainingConfig

MODEL = SettingsGroup("model", EncoderConfig, "model, or the service of openai:NAME", *ENCODER)
DATA = SettingsGroup("data", DataConfig, "data", "dataset", "max_bad_rows")
PRECISION = SettingsGroup("training", TrainingConfig, "arithmetic", "precision")
PRECISION_AND_SEED = SettingsGroup("training", TrainingConfig, "arithmetic and random numbers", "precision", "seed")
EMBEDDINGS = Argument(
    "--embeddings",
    "embeddings of the passages by `raytriever encode` with --model (default: encode and cache them)",
    EMBEDDINGS_PATH,
)


def optional_path(text: str | None) -> Path | None:
    """Return the path of an argument; None if it is not given."""
    return Path(text) if text else None


def next_command(*words: object) -> str:
    """Return lines that suggest a command to run next."""
    return f"\nContinue with:\n  {quote_command('raytriever', *words)}"
