"""Training settings of the studies of *Training dense retrievers with multiple positive passages*, by scale.

Section 4.4 of the paper: groups of G = 8 passages, at most M = 4 of them positives, and in-batch negatives. NQ: 40
epochs in batches of 64 at 1e-5. MS MARCO: 3 epochs in batches of 128 at 3e-5. Training starts from bert-base-uncased
and uses Tevatron. For settings that the paper does not give, `full` uses the defaults of Tevatron: the state of [CLS],
dot products, temperature 1, queries of 32 and passages of 128 tokens. Two settings are ours: 500 warm-up steps, and the
checkpoint with the best dev loss.

`small` is MiniLM on NFCorpus, whose training queries have 43 relevant passages on average and two grades of relevance.
Its hard negatives are drawn at random: passages that BM25 ranks first may well be relevant but not judged, and with
them training gains less on the dev split (nDCG@10 0.251 before; seed 0 of SingleLH, SumMargLH and LSEPair: 0.258,
0.268 and 0.256 with BM25's negatives, 0.279, 0.293 and 0.266 with random ones).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raytriever.config import Config, override
from raytriever.studies.datasets import (
    LENGTHS,
    PACKAGES,
    StudyDataset,
    Subset,
    pack_subset,
    pydocs_subset,
    whole_dataset,
)
from raytriever.studies.definition import FULL, SMALL, SMOKE, MeasuredDataset
from raytriever.studies.recipes.positives.tables import DEV, DL19, DL20, HYBRID

Layer = Mapping[str, Mapping[str, Any]]
LOSSES = {
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
MULTIPLE = ("Rand1LH", "JointLH", "SumMargLH", "LSEPair")
METRICS = ("ndcg_at_10", "mrr_at_10", "recall_at_100")
# Number of training queries: NQ of DPR; for MS MARCO the paper gives about 400k.
NQ, MS_MARCO = "nq", "msmarco"
_QUERIES = {NQ: 58_880, MS_MARCO: 400_000}
_FULL: Layer = {
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
    MS_MARCO: {"training": {"batch_size": 128, "epochs": 3.0, "learning_rate": 3e-5}},
}
_LENGTH_KEYS = ("query_length", "passage_length")
_SMALL: Layer = {
    "data": {"negatives_mix": "random=1"},
    "model": dict(zip(_LENGTH_KEYS, LENGTHS[SMALL], strict=True)),
    "loss": {"temperature": 0.05},
    "training": {
        "batch_size": 16,
        "max_steps": 40,
        "learning_rate": 5e-5,
        "warmup_steps": 5,
        "eval_steps": 10,
        "dev_batches": 3,
    },
}
_SMOKE: Layer = {
    "model": dict(zip(_LENGTH_KEYS, LENGTHS[SMOKE], strict=True)),
    "loss": {"temperature": 0.05},
    "training": {
        "batch_size": 4,
        "max_steps": 2,
        "learning_rate": 2e-5,
        "warmup_steps": 1,
        "eval_steps": 2,
        "dev_batches": 1,
    },
}
_NFCORPUS = Subset(train=1_500, dev=128, test=400, documents=3_400)


@dataclass(frozen=True)
class PassageGroup:
    """The passages of a query: `size` (G), of which at most `positives` (M) are relevant to it."""

    size: int
    positives: int


def usual_group(scale: str) -> PassageGroup:
    """Return G = 8 and M = 4; at smoke G = 4 and M = 2."""
    return PassageGroup(4, 2) if scale == SMOKE else PassageGroup(8, 4)


def objective_config(
    scale: str, name: str, data: StudyDataset, group: PassageGroup, source: str = "all", on: str = MS_MARCO
) -> Config:
    """Return the settings of one objective.

    SingleLH uses the positive of the lowest rank, as in the paper, and fills its group with hard negatives. The other
    objectives draw M positives again in each epoch; if a query has fewer, hard negatives fill the group.

    Args:
        scale: scale of the study, see above.
        name: name of the objective, one of `LOSSES`.
        data: training data.
        group: numbers of passages of a query.
        source: source of the positives, as a value of `--positives`.
        on: data set whose batch, epochs and learning rate are used at `full`: `NQ` or `MS_MARCO`.
    """
    base = override(Config(), {FULL: _FULL, SMOKE: _SMOKE}.get(scale, _SMALL))
    if scale == FULL:
        # The dev split of MS MARCO is measured, so validation uses another split.
        base = override(override(base, _OF_SET[on]), {"data": {"dev_split": "fit"}} if on == MS_MARCO else {})
    is_single = name == "SingleLH"
    positives = 1 if is_single else group.positives
    group_settings = {
        "dataset": data.location,
        "test_split": data.test,
        "positives": source,
        "positives_order": "ranked" if is_single else "drawn",
        "positives_per_query": positives,
        "negatives_per_query": group.size - positives,
    }
    return override(base, {"data": group_settings, "loss": {"loss": LOSSES[name]}})


def training_set(
    scale: str, data_root: Path | None, folder: Path, subset: Subset | None = None, on: str = MS_MARCO
) -> StudyDataset:
    """Return the data set to train on and to measure in domain.

    Args:
        scale: scale of the study, see above.
        data_root, folder: see `studies.recipes`.
        subset: subset at small and smoke, of which only `share`, `labels` and `by_llm` are used; None for all labels.
        on: folder at `full`: `nq` with splits `train`, `dev` and `test` and answers; `msmarco` with `train`, `fit`
            (validation queries), `dev`, `dl19`, `dl20` and `hybrid`. Positives of `train` have the
            source `human` or `llm`; the latter are ranked, as `raytriever annotate` writes them.
    """
    if scale == FULL:
        return whole_dataset(data_root, on, "NQ" if on == NQ else DEV, queries=_QUERIES[on])
    if scale == SMOKE:
        return pydocs_subset(
            folder, PACKAGES, groups=True, subset=subset and _with_sizes(subset, Subset(48, 16, 48, 300))
        )
    return pack_subset(
        data_root, folder, "nfcorpus-filtered", _with_sizes(subset, _NFCORPUS) if subset else _NFCORPUS, "NFCorpus"
    )


def _with_sizes(subset: Subset, sizes: Subset) -> Subset:
    """Return the subset with the numbers of queries and documents of `sizes`."""
    return replace(sizes, share=subset.share, labels=subset.labels, by_llm=subset.by_llm)


def describe_training(scale: str, group: PassageGroup) -> str:
    """Return a sentence that describes the trainings to the reader of the page."""
    if scale == FULL:
        sizes = f"G = {group.size}, M = {group.positives}"
        return f"As the paper trains bert-base-uncased: {sizes}, unless a row says otherwise."
    config = override(Config(), _SMOKE if scale == SMOKE else _SMALL)
    training, model = config.training, config.model
    negatives = " and random negatives for the rest" if config.data.negatives_mix else ""
    return (
        f"all-MiniLM-L6-v2, temperature {config.loss.temperature:g}; unless a row says otherwise, groups of "
        f"G = {group.size} passages with at most M = {group.positives} positives{negatives}, batches of "
        f"{training.batch_size}, {training.max_steps} steps, learning rate {training.learning_rate:g}; queries of "
        f"{model.query_length} and passages of {model.passage_length} tokens; the checkpoint with the "
        "lowest dev loss is measured."
    )


def hybrid_sets(data_root: Path | None, on_dev: tuple[str, ...]) -> tuple[MeasuredDataset, ...]:
    """Return the data sets that a training on MS MARCO is measured on at full: splits of one folder with one corpus.

    Args:
        data_root: see `studies.recipes`.
        on_dev: metrics on the dev split.
    """
    datasets = []
    for split, title, metrics in (
        ("dev", DEV, on_dev),
        ("dl19", DL19, ("ndcg_at_10",)),
        ("dl20", DL20, ("ndcg_at_10",)),
        ("hybrid", HYBRID, ("mrr_at_10", "ndcg_at_10")),
    ):
        datasets.append(whole_dataset(data_root, MS_MARCO, title, split).with_metrics(metrics))
    return tuple(datasets)
