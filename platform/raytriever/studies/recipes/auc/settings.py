"""Training settings of the studies of *Optimizing What Matters*, by scale.

Section 5.1 of the paper: temperature 0.01 for both losses, 5 hard negatives, 500 warm-up steps, batches of 64, 32 and
16 by size, at most 20 epochs, early stopping. `full` uses the recipes `minilm`, `xlmr-base` and `xlmr-large`. `small`
uses the embedded MiniLM with temperature and losses of the paper and a short training. `smoke` only shows that the
study runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raytriever.config import Config, Curriculum, override
from raytriever.recipes.auc_paper import minilm, xlmr_base, xlmr_large
from raytriever.studies.datasets import LENGTHS, StudyDataset
from raytriever.studies.definition import FULL, SMALL, SMOKE
from raytriever.studies.recipes.auc.tables import SIZES

LOSSES = {"CL": "infonce", "MW": "mw"}
TEMPERATURE = 0.01
# Folder and number of training queries: NLI of SimCSE (Gao et al., 2021), NQ of DPR, SQuAD 1.1, MS MARCO passages.
FULL_SETS: Mapping[str, tuple[str, int]] = {
    "NLI": ("nli", 275_601),
    "NQ": ("nq", 58_880),
    "SQuAD": ("squad", 87_599),
    "MS MARCO": ("msmarco", 502_939),
}
Layer = Mapping[str, Mapping[str, Any]]
_SIZES = dict(zip(SIZES, (minilm, xlmr_base, xlmr_large), strict=True))
_LENGTH_KEYS = ("query_length", "passage_length")
_SMALL: Layer = {
    "data": {"negatives_per_query": 3},
    "model": dict(zip(_LENGTH_KEYS, LENGTHS[SMALL], strict=True)),
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
    "model": dict(zip(_LENGTH_KEYS, LENGTHS[SMOKE], strict=True)),
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
    """Return the curriculum of one training.

    Args:
        scale: scale of the study, see above.
        loss: name of the loss, as a value of `--loss`.
        data: training data.
        size: size of the encoder, one of `SIZES`; only the first one is used below `full`.
        settings: settings of this study or training; they override those of the scale.
    """
    base = _SIZES[size]() if scale == FULL else override(Config(), _SMOKE if scale == SMOKE else _SMALL)
    config = override(base, {"data": {"dataset": data.location, "test_split": data.test}})
    config = override(config, {"loss": {"loss": loss, "temperature": TEMPERATURE}})
    return Curriculum(override(config, settings or {}))


def describe_training(scale: str, settings: Layer | None = None, encoder: str = "all-MiniLM-L6-v2") -> str:
    """Return a sentence that describes the trainings to the reader of the page.

    Args:
        scale: scale of the study.
        settings: settings of the study; they override those of the scale.
        encoder: encoder that is trained below `full`.
    """
    tau = (settings or {}).get("loss", {}).get("temperature", TEMPERATURE)
    if scale == FULL:
        return f"As the paper trains: temperature {tau}, 5 hard negatives (of BM25), at most 20 epochs, early stopping."
    config = override(override(Config(), _SMOKE if scale == SMOKE else _SMALL), settings or {})
    training, model = config.training, config.model
    return (
        f"{encoder}, temperature {tau}; unless a row says otherwise, batches of "
        f"{training.batch_size}, {config.data.negatives_per_query} hard negatives per query, "
        f"{training.max_steps} steps, learning rate {training.learning_rate:g}; queries of {model.query_length} "
        f"and passages of {model.passage_length} tokens; the checkpoint with the lowest dev loss is measured."
    )
