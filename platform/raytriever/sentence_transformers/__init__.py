"""Losses and an evaluator for the trainer of sentence-transformers. The rest of the package does not need them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from raytriever.core.errors import ConfigError
from raytriever.core.lazy_imports import lazy_names

if TYPE_CHECKING:
    from raytriever.sentence_transformers.evaluator import PooledAUCEvaluator
    from raytriever.sentence_transformers.losses import InfoNCELoss, MannWhitneyLoss, MarginMSELoss, RetrievalLoss

OLDEST = 6  # the first release with the gradient caching that the losses extend

try:
    _installed = version("sentence-transformers")
except PackageNotFoundError:
    _installed = "0"
if int(_installed.partition(".")[0]) < OLDEST:
    raise ConfigError(
        "sentence-transformers is not installed"
        if _installed == "0"
        else f"sentence-transformers {_installed} is too old",
        "raytriever.sentence_transformers",
        "pip install 'raytriever[sentence-transformers]'",
    )

__all__ = ["InfoNCELoss", "MannWhitneyLoss", "MarginMSELoss", "PooledAUCEvaluator", "RetrievalLoss"]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "raytriever.sentence_transformers.evaluator": ("PooledAUCEvaluator",),
        "raytriever.sentence_transformers.losses": (
            "InfoNCELoss",
            "MannWhitneyLoss",
            "MarginMSELoss",
            "RetrievalLoss",
        ),
    },
)
