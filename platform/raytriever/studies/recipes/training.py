"""Settings of the trainings of the two papers, by scale. `smoke` only shows that a study runs.

*Optimizing What Matters*, section 5.1: temperature 0.01 for both losses, 5 hard negatives, 500 warm-up steps, batches
of 64, 32 and 16 by size, at most 20 epochs, early stopping. `full` uses the recipes `minilm`, `xlmr-base` and
`xlmr-large`. `small` uses the embedded MiniLM with temperature and losses of the paper and a short training.

*Training dense retrievers with multiple positive passages*, section 4.4: groups of G = 8 passages, at most M = 4 of
them positives, and in-batch negatives. NQ: 40 epochs in batches of 64 at 1e-5. MS MARCO: 3 epochs in batches of 128 at
3e-5. Training starts from bert-base-uncased and uses Tevatron. For settings that the paper does not give, `full` uses
the defaults of Tevatron: the state of [CLS], dot products, temperature 1, queries of 32 and passages of 128 tokens. Two
settings are ours: 500 warm-up steps, and the checkpoint with the best dev loss.

`small` of that paper is MiniLM on NFCorpus, whose training queries have 43 relevant passages on average and two grades
of relevance. Its hard negatives are drawn at random: passages that BM25 ranks first may well be relevant but not
judged, and with them training gains less on the dev split (nDCG@10 0.251 before; seed 0 of SingleLH, SumMargLH and
LSEPair: 0.258, 0.268 and 0.256 with BM25's negatives, 0.279, 0.293 and 0.266 with random ones).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raytriever.config import Config, Curriculum, override
from raytriever.recipes.auc_paper import minilm, xlmr_base, xlmr_large
from raytriever.studies.definition import SMALL, SMOKE, MeasuredDataset
from raytriever.studies.recipes.scale import LENGTHS, MS_MARCO, NQ, StudyScale
from raytriever.studies.recipes.tables import SIZES

Layer = Mapping[str, Mapping[str, Any]]
LOSSES = {"CL": "infonce", "MW": "mw"}
TEMPERATURE = 0.01
OBJECTIVE_LOSSES = {
    "SingleLH": "infonce",
    "Rand1LH": "rand1",
    "JointLH": "joint",
    "SumMargLH": "summarg",
    "LSEPair": "lsepair",
    "LSEPair_maxP": "lsepair-maxp",
    "LSEPair_maxN": "lsepair-maxn",
    "LSEPair_minP": "lsepair-minp",
    "LSEPair_minP_maxN": "lsepair-minp-maxn",
}
_SIZES = dict(zip(SIZES, (minilm, xlmr_base, xlmr_large), strict=True))
_ON_POSITIVES: Layer = {
    "model": {
        "model": "google-bert/bert-base-uncased",
        "pooling": "cls",
        "similarity": "dot",
        "query_length": 32,
        "passage_length": 128,
    },
    "loss": {"temperature": 1.0},
    "training": {"warmup_steps": 500, "dropout": 0.1, "eval_steps": 1000, "dev_batches": 8, "patience": 1000},
}
_OF_SET: Mapping[str, Layer] = {
    NQ: {"training": {"batch_size": 64, "epochs": 40.0, "learning_rate": 1e-5}},
    # The dev split of MS MARCO is measured, so validation uses another split.
    MS_MARCO: {"training": {"batch_size": 128, "epochs": 3.0, "learning_rate": 3e-5}, "data": {"dev_split": "fit"}},
}


def _short(scale: str, batch_size: int, steps: int, temperature: float, data: Mapping[str, Any]) -> Config:
    """Return the settings of a short training of MiniLM, at `SMALL` or `SMOKE`."""
    training = (
        {"learning_rate": 5e-5, "warmup_steps": 5, "eval_steps": 10, "dev_batches": 3}
        if scale == SMALL
        else {"learning_rate": 2e-5, "warmup_steps": 1, "eval_steps": steps, "dev_batches": 1}
    )
    settings: Layer = {
        "data": data,
        "model": dict(zip(("query_length", "passage_length"), LENGTHS[scale], strict=True)),
        "loss": {"temperature": temperature},
        "training": {"batch_size": batch_size, "max_steps": steps, **training},
    }
    return override(Config(), settings)


_OF_LOSSES = {
    SMALL: _short(SMALL, 32, 40, TEMPERATURE, {"negatives_per_query": 3}),
    SMOKE: _short(SMOKE, 8, 3, TEMPERATURE, {"negatives_per_query": 1}),
}
_OF_OBJECTIVES = {
    SMALL: _short(SMALL, 16, 40, 0.05, {"negatives_mix": "random=1"}),
    SMOKE: _short(SMOKE, 4, 2, 0.05, {}),
}


def build_curriculum(
    scale: StudyScale, loss: str, data: MeasuredDataset, size: str = SIZES[0], settings: Layer | None = None
) -> Curriculum:
    """Return the curriculum of a training of *Optimizing What Matters*.

    Args:
        loss: name of the loss, as a value of `--loss`.
        size: size of the encoder, one of `SIZES`; only the first one is used below `full`.
        settings: settings of this study or training; they override those of the scale.
    """
    base = _SIZES[size]() if scale.is_full else _OF_LOSSES[scale.name]
    config = override(base, {"data": {"dataset": data.dataset, "test_split": data.split}})
    config = override(config, {"loss": {"loss": loss, "temperature": TEMPERATURE}})
    return Curriculum(override(config, settings or {}))


def describe_training(scale: StudyScale, settings: Layer | None = None, encoder: str = "all-MiniLM-L6-v2") -> str:
    """Return a sentence that describes the trainings of `build_curriculum` to the reader of the page.

    The settings override those of the scale; `encoder` is trained below `full`.
    """
    if scale.is_full:
        tau = (settings or {}).get("loss", {}).get("temperature", TEMPERATURE)
        return f"As the paper trains: temperature {tau}, 5 hard negatives (of BM25), at most 20 epochs, early stopping."
    config = override(_OF_LOSSES[scale.name], settings or {})
    count = config.data.negatives_per_query
    negatives = "1 hard negative" if count == 1 else f"{count} hard negatives"
    batches = f"batches of {config.training.batch_size}, {negatives} per query"
    return _describe(encoder, config, batches)


def _describe(encoder: str, config: Config, batches: str) -> str:
    training, model = config.training, config.model
    return (
        f"{encoder}; unless a row says otherwise, temperature {config.loss.temperature:g}, {batches}, "
        f"{training.max_steps} steps, learning rate {training.learning_rate:g}; queries of {model.query_length} "
        f"and passages of {model.passage_length} tokens; the checkpoint with the lowest dev loss is measured."
    )


@dataclass(frozen=True)
class PassageGroup:
    """The passages of a query: `size` (G), of which at most `positives` (M) are relevant to it."""

    size: int
    positives: int


def usual_group(scale: StudyScale) -> PassageGroup:
    """Return G = 8 and M = 4; at smoke G = 4 and M = 2."""
    return scale.choose(PassageGroup(4, 2), PassageGroup(8, 4), PassageGroup(8, 4))


def objective_config(
    scale: StudyScale, name: str, data: MeasuredDataset, group: PassageGroup, source: str = "all", on: str = MS_MARCO
) -> Config:
    """Return the settings of one objective of *Training dense retrievers with multiple positive passages*.

    SingleLH uses the positive of the lowest rank, as in the paper, and fills its group with hard negatives. The other
    objectives draw M positives again in each epoch; if a query has fewer, hard negatives fill the group.

    Args:
        name: name of the objective, one of `OBJECTIVE_LOSSES`.
        source: source of the positives, as a value of `--positives`.
        on: data set whose batch, epochs and learning rate are used at `full`: `NQ` or `MS_MARCO`.
    """
    base = override(override(Config(), _ON_POSITIVES), _OF_SET[on]) if scale.is_full else _OF_OBJECTIVES[scale.name]
    is_single = name == "SingleLH"
    positives = 1 if is_single else group.positives
    group_settings = {
        "dataset": data.dataset,
        "test_split": data.split,
        "positives": source,
        "positives_order": "ranked" if is_single else "drawn",
        "positives_per_query": positives,
        "negatives_per_query": group.size - positives,
    }
    return override(base, {"data": group_settings, "loss": {"loss": OBJECTIVE_LOSSES[name]}})


def describe_objectives(scale: StudyScale, group: PassageGroup) -> str:
    """Return a sentence that describes the trainings of `objective_config` to the reader of the page."""
    if scale.is_full:
        sizes = f"G = {group.size}, M = {group.positives}"
        return f"As the paper trains bert-base-uncased: {sizes}, unless a row says otherwise."
    config = _OF_OBJECTIVES[scale.name]
    negatives = " and random negatives for the rest" if config.data.negatives_mix else ""
    batches = (
        f"groups of G = {group.size} passages with at most M = {group.positives} positives{negatives}, batches of "
        f"{config.training.batch_size}"
    )
    return _describe("all-MiniLM-L6-v2", config, batches)
