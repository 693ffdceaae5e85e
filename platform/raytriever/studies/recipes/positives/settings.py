"""How the studies of *Training dense retrievers with multiple positive passages* train, by scale.

Its section 4.4: groups of G = 8 passages, at most M = 4 of them positives, in-batch negatives beside them; NQ for 40
epochs in batches of 64 at 1e-5, MS MARCO for 3 epochs in batches of 128 at 3e-5, from bert-base-uncased by Tevatron.
What it does not say is taken as Tevatron has it by default: the state of [CLS], dot products, temperature 1, queries of
32 and passages of 128 tokens. That is `full`, up to ours: 500 warm-up steps, and of all looks at a dev loss the best.

`small` is MiniLM on NFCorpus, whose training queries have 43 relevant passages on average and two grades of relevance.
Its hard negatives are drawn at random: what BM25 ranks first there may well be relevant and only not judged, and
against that one gains less on the dev split (nDCG@10 0.251 before; seed 0 of SingleLH, SumMargLH and LSEPair: 0.258,
0.268 and 0.256 with BM25's negatives, 0.279, 0.293 and 0.266 with random ones).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
# Training queries: NQ as DPR has it; of MS MARCO the paper says about 400k.
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
_READ = ("query_length", "passage_length")
_SMALL: Layer = {
    "data": {"negatives_mix": "random=1"},
    "model": dict(zip(_READ, LENGTHS[SMALL], strict=True)),
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
    "model": dict(zip(_READ, LENGTHS[SMOKE], strict=True)),
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
class Group:
    """The passages of a query: `size` (G), of which at most `positives` (M) are relevant to it."""

    size: int
    positives: int


def usual_group(scale: str) -> Group:
    """G = 8 and M = 4, less at smoke."""
    return Group(4, 2) if scale == SMOKE else Group(8, 4)


def objective_config(
    scale: str, name: str, data: StudyDataset, group: Group, source: str = "all", on: str = MS_MARCO
) -> Config:
    """The settings of one objective.

    SingleLH takes the positive of the lowest rank, as the paper does, and hard negatives for the rest of its group;
    the others draw M positives anew each epoch, fewer where there are no more, and hard negatives in their place.

    Args:
        scale: see above.
        name: one of `LOSSES`.
        data: that is trained on.
        group: the passages of a query.
        source: whose positives, as `--positives` names them.
        on: whose batch, epochs and learning rate, at `full`: `NQ` or `MS_MARCO`.
    """
    base = override(Config(), {FULL: _FULL, SMOKE: _SMOKE}.get(scale, _SMALL))
    if scale == FULL:
        # MS MARCO's dev split is the one that is measured.
        base = override(override(base, _OF_SET[on]), {"data": {"dev_split": "fit"}} if on == MS_MARCO else {})
    alone = name == "SingleLH"
    positives = 1 if alone else group.positives
    drawn = {
        "dataset": data.location,
        "test_split": data.test,
        "positives": source,
        "positives_order": "ranked" if alone else "drawn",
        "positives_per_query": positives,
        "negatives_per_query": group.size - positives,
    }
    return override(base, {"data": drawn, "loss": {"loss": LOSSES[name]}})


def training_set(
    scale: str, data_root: Path | None, folder: Path, cut: Subset | None = None, on: str = MS_MARCO
) -> StudyDataset:
    """What is trained and, in domain, measured on.

    Args:
        scale: see above.
        data_root, folder: see `studies.recipes`.
        cut: of small and smoke; the usual one where there is none. Only what it does with training queries counts.
        on: the folder at `full`: `nq` with splits `train`, `dev` and `test` and answers; `msmarco` with `train`, `fit`
            (queries looked at while training), `dev`, `dl19`, `dl20` and `hybrid`. Positives of `train` are of source
            `human` and `llm`, the latter ranked, as `jobs/annotate.py` writes them.
    """
    if scale == FULL:
        return whole_dataset(data_root, on, "NQ" if on == NQ else DEV, queries=_QUERIES[on])
    if scale == SMOKE:
        return pydocs_subset(folder, PACKAGES, groups=True, subset=cut and _as(cut, Subset(48, 16, 48, 300)))
    return pack_subset(data_root, folder, "nfcorpus-filtered", _as(cut, _NFCORPUS) if cut else _NFCORPUS, "NFCorpus")


def _as(cut: Subset, sizes: Subset) -> Subset:
    """What a cut does with training queries, at other sizes."""
    return Subset(sizes.train, sizes.dev, sizes.test, sizes.documents, cut.share, cut.labels, cut.by_llm)


def describe_training(scale: str, group: Group) -> str:
    """What a reader has to know of the trainings, in a sentence."""
    if scale == FULL:
        sizes = f"G = {group.size}, M = {group.positives}"
        return f"As the paper trains bert-base-uncased: {sizes}, unless a row says otherwise."
    config = override(Config(), _SMOKE if scale == SMOKE else _SMALL)
    training, model = config.training, config.model
    drawn = " and negatives drawn at random for the rest" if config.data.negatives_mix else ""
    return (
        f"all-MiniLM-L6-v2, temperature {config.loss.temperature:g}; where a row does not say otherwise groups of "
        f"G = {group.size} passages with at most M = {group.positives} positives{drawn}, batches of "
        f"{training.batch_size}, {training.max_steps} steps, learning rate {training.learning_rate:g}; queries of "
        f"{model.query_length} and passages of {model.passage_length} tokens; of each training the checkpoint of the "
        "lowest dev loss."
    )


def hybrid_sets(data_root: Path | None, on_dev: tuple[str, ...]) -> tuple[MeasuredDataset, ...]:
    """What training on MS MARCO is measured on at full: splits of one folder, whose corpus is the same.

    Args:
        data_root: see `studies.recipes`.
        on_dev: metrics on the dev split.
    """
    found = []
    for split, title, metrics in (
        ("dev", DEV, on_dev),
        ("dl19", DL19, ("ndcg_at_10",)),
        ("dl20", DL20, ("ndcg_at_10",)),
        ("hybrid", HYBRID, ("mrr_at_10", "ndcg_at_10")),
    ):
        found.append(whole_dataset(data_root, MS_MARCO, title, split).with_metrics(metrics))
    return tuple(found)
