"""How the studies of *Optimizing What Matters* train, by scale.

Its section 5.1: temperature 0.01 for both losses, 5 hard negatives, 500 warm-up steps, batches of 64, 32 and 16 by
size, at most 20 epochs, early stopping: `full` is the recipes `minilm`, `xlmr-base` and `xlmr-large`. `small` is MiniLM
as it is embedded, with temperature and losses of the paper and as much training as its time allows; `smoke` shows that
it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raytriever.config import Config, Curriculum, override
from raytriever.recipes.minilm import minilm
from raytriever.recipes.xlmr_base import xlmr_base
from raytriever.recipes.xlmr_large import xlmr_large
from raytriever.studies.datasets import LENGTHS, StudyDataset
from raytriever.studies.definition import FULL, SMALL, SMOKE
from raytriever.studies.recipes.auc.tables import SIZES

LOSSES = {"CL": "infonce", "MW": "mw"}
TEMPERATURE = 0.01
# Training queries: NLI as SimCSE has it (Gao et al., 2021), NQ as DPR has it, SQuAD 1.1, MS MARCO passages.
FULL_SETS: Mapping[str, tuple[str, int]] = {
    "NLI": ("nli", 275_601),
    "NQ": ("nq", 58_880),
    "SQuAD": ("squad", 87_599),
    "MS MARCO": ("msmarco", 502_939),
}
Layer = Mapping[str, Mapping[str, Any]]
_SIZES = dict(zip(SIZES, (minilm, xlmr_base, xlmr_large), strict=True))
_READ = ("query_length", "passage_length")
_SMALL: Layer = {
    "data": {"negatives_per_query": 3},
    "model": dict(zip(_READ, LENGTHS[SMALL], strict=True)),
    "training": {
        "batch_size": 32,
        "max_steps": 40,
        "learning_rate": 5e-5,
        "warmup_steps": 5,
        "eval_steps": 10,
        "dev_batches": 3,
    },
}
_SMOKE: Layer = {
    "data": {"negatives_per_query": 1},
    "model": dict(zip(_READ, LENGTHS[SMOKE], strict=True)),
    "training": {
        "batch_size": 8,
        "max_steps": 3,
        "learning_rate": 2e-5,
        "warmup_steps": 1,
        "eval_steps": 3,
        "dev_batches": 1,
    },
}


def build_curriculum(
    scale: str, loss: str, data: StudyDataset, size: str = SIZES[0], settings: Layer | None = None
) -> Curriculum:
    """One training.

    Args:
        scale: see above.
        loss: as `--loss` names it.
        data: that is trained on.
        size: of the encoder, one of the paper's; others than the first at `full` alone.
        settings: of this study or training, over those of the scale.
    """
    base = _SIZES[size]() if scale == FULL else override(Config(), _SMOKE if scale == SMOKE else _SMALL)
    config = override(base, {"data": {"dataset": data.location, "test_split": data.test}})
    config = override(config, {"loss": {"loss": loss, "temperature": TEMPERATURE}})
    return Curriculum(override(config, settings or {}))


def describe_training(scale: str, settings: Layer | None = None) -> str:
    """What a reader has to know of the trainings, in a sentence."""
    tau = (settings or {}).get("loss", {}).get("temperature", TEMPERATURE)
    if scale == FULL:
        return f"As the paper trains: temperature {tau}, 5 hard negatives (of BM25), at most 20 epochs, early stopping."
    config = override(override(Config(), _SMOKE if scale == SMOKE else _SMALL), settings or {})
    training, model = config.training, config.model
    return (
        f"all-MiniLM-L6-v2, temperature {tau}; where a row does not say otherwise batches of "
        f"{training.batch_size}, {config.data.negatives_per_query} hard negatives a query, {training.max_steps} steps, "
        f"learning rate {training.learning_rate:g}; queries of {model.query_length} and passages of "
        f"{model.passage_length} tokens; of each training the checkpoint of the lowest dev loss."
    )
