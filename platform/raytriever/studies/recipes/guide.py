"""False negatives and the losses: MW and contrastive loss (CL), each with and without a guide that masks them.

This study is ours. Under MW a false negative is compared with every positive of the batch, under CL with one. So the
guide should matter more for MW.

`small`: two data sets on which negatives are often false. Of NFCorpus, training keeps one positive of each query and
the others, 42 on average, are documents like any other: 1.7 % of the negatives in a batch of 32 and 19 % of a query's
own hard negatives (BM25) are judged relevant (seed 0, 20 batches). Of SNLI, nearly every premise has one hypothesis
that follows from it, and hypotheses are as general as "A person is outside": what else follows is not judged. The guide
is all-MiniLM-L6-v2 as published, from which training starts too, with margin 0 as in GISTEmbed. `full`: NQ and MS
MARCO, with the settings of *Optimizing What Matters*. `smoke`: docstrings.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from raytriever.studies.claims import Claim, above, every, larger_gain, no_worse_on_average
from raytriever.studies.datasets import (
    PACKAGES,
    STDLIB,
    StudyDataset,
    Subset,
    pack_subset,
    pydocs_subset,
    untrained_arms,
    whole_dataset,
)
from raytriever.studies.definition import FULL, SMOKE, Arm, Drawing, Study
from raytriever.studies.recipes.auc.settings import FULL_SETS, LOSSES, build_curriculum, describe_training
from raytriever.studies.recipes.auc.tables import METRICS

GUIDE = "minilm"
WITH_GUIDE = " + guide"
_CUT = Subset(train=1_500, dev=128, test=500, documents=2_500)
_SMOKE_CUT = Subset(train=48, dev=16, test=48, documents=300, labels=1)


def study(scale: str, data_root: Path | None, folder: Path) -> Study:
    """Build the study (see `studies.recipes`)."""
    sets = _sets(scale, data_root, folder)
    arms = [
        Arm(
            f"{row.lower()}{'-guide' if guide else ''}-{one.name.lower().replace(' ', '-')}",
            f"{row}{WITH_GUIDE if guide else ''}",
            (one.with_metrics(METRICS),),
            build_curriculum(scale, loss, one, settings={"loss": {"guide": guide}}),
            queries=one.queries,
        )
        for one in sets
        for row, loss in LOSSES.items()
        for guide in (None, GUIDE)
    ]
    return Study(
        name="guide",
        title="False negatives masked by a guide",
        source="ours; the masking is that of GISTEmbed (Solatorio, 2024, arXiv:2402.16829)",
        arms=(*untrained_arms(scale, tuple(one.with_metrics(METRICS) for one in sets)), *arms),
        seeds=3 if scale not in (SMOKE, FULL) else 1,
        baselines=tuple(LOSSES),
        heading=(
            describe_training(scale),
            "Guide: all-MiniLM-L6-v2 as published, with its own lengths; margin 0.",
            *(line for one in sets for line in one.lines),
        ),
        claims=_claims(sets[0].name),
        drawings=(Drawing("gains", "gains"), Drawing("roc", "roc")),
    )


def _sets(scale: str, data_root: Path | None, folder: Path) -> list[StudyDataset]:
    """Return the data sets; in the first one, training does not know most of the relevant documents."""
    if scale == FULL:
        return [
            whole_dataset(data_root, FULL_SETS[name][0], name, queries=FULL_SETS[name][1])
            for name in ("MS MARCO", "NQ")
        ]
    if scale == SMOKE:
        return [
            pydocs_subset(folder, STDLIB, groups=True, subset=_SMOKE_CUT),
            pydocs_subset(folder, PACKAGES),
        ]
    return [
        pack_subset(data_root, folder, "nfcorpus-filtered", replace(_CUT, labels=1), "NFCorpus"),
        pack_subset(data_root, folder, "snli", _CUT, "SNLI"),
    ]


def _claims(hidden: str) -> tuple[Claim, ...]:
    """Return the claims, which were written before the first run."""
    stated = "stated before the run"
    rows = [(f"{row}{WITH_GUIDE}", row) for row in LOSSES]
    where = f"{hidden}, whose training queries keep one positive" if hidden == "NFCorpus" else hidden
    return (
        *(
            Claim(
                f"On {where}, the guide improves {title} with both losses",
                stated,
                every(*(above(guided, plain, (metric,), (hidden,)) for guided, plain in rows)),
            )
            for title, metric in (("AUC", "auc"), ("nDCG@10", "ndcg_at_10"))
        ),
        Claim(
            f"On {hidden}, MW gains more AUC from the guide than CL",
            stated,
            larger_gain(rows[1], rows[0], "auc", hidden),
        ),
        Claim(
            "On average over the data sets, the guide costs at most 0.01 of nDCG@10 with either loss",
            stated,
            every(*(no_worse_on_average(guided, plain, ("ndcg_at_10",)) for guided, plain in rows)),
        ),
    )
