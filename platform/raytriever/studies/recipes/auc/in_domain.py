"""Table 1 of *Optimizing What Matters*: MW and contrastive loss (CL), each trained and measured on the same data set.

`full`: MiniLM and both XLM-R on NLI, NQ, SQuAD and MS MARCO, folders `nli`, `nq`, `squad` and `msmarco` with splits
`train`, `dev` and `test`. `small`: MiniLM on subsets of SQuAD, SciFact and MedQuAD. `smoke`: docstrings.
"""

from __future__ import annotations

from pathlib import Path

from raytriever.studies.claims import Claim, above, no_worse_on_average
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
from raytriever.studies.recipes.auc.tables import METRICS, PAPER, SIZES, in_domain, in_domain_table

_CUT = Subset(train=1_500, dev=128, test=500, documents=2_500)
_PACKS = (("squad", "SQuAD"), ("scifact", "SciFact"), ("medquad", "MedQuAD"))


def study(scale: str, data_root: Path | None, folder: Path) -> Study:
    """Build the study (see `studies.recipes`)."""
    sets = _sets(scale, data_root, folder)
    sizes = SIZES if scale == FULL else SIZES[:1]
    arms = []
    for size in sizes:
        block = size if scale == FULL else ""
        for row, loss in LOSSES.items():
            arms += [
                Arm(
                    f"{size.lower()}-{row.lower()}-{one.name.lower().replace(' ', '-')}",
                    row,
                    (one.with_metrics(METRICS),),
                    build_curriculum(scale, loss, one, size),
                    block=block,
                    paper=in_domain(size, row, one.name),
                    queries=one.queries,
                )
                for one in sets
            ]
    everything = tuple(one.with_metrics(METRICS) for one in sets)
    return Study(
        name="mw-in-domain",
        title="MW against contrastive loss in domain",
        source=f"Table 1 of {PAPER}",
        arms=(*untrained_arms(scale, everything), *arms),
        seeds=3 if scale not in (SMOKE, FULL) else 1,
        baselines=("CL",),
        heading=(describe_training(scale), *(line for one in sets for line in one.lines)),
        paper=(in_domain_table(),),
        claims=tuple(claim for size in sizes for claim in _claims(f"{size} " if scale == FULL else "", size)),
        drawings=(Drawing("roc", "roc"), Drawing("scores", "scores")),
    )


def _sets(scale: str, data_root: Path | None, folder: Path) -> list[StudyDataset]:
    if scale == FULL:
        return [
            whole_dataset(data_root, folder_name, name, queries=count)
            for name, (folder_name, count) in FULL_SETS.items()
        ]
    if scale == SMOKE:
        return [pydocs_subset(folder, part) for part in (STDLIB, PACKAGES)]
    return [pack_subset(data_root, folder, name, _CUT, title) for name, title in _PACKS]


def _claims(block: str, size: str) -> list[Claim]:
    better, worse = f"{block}MW", f"{block}CL"
    claims = [
        Claim(f"{size}: MW notably improves AUC on all data sets", "section 5.2", above(better, worse, ("auc",))),
    ]
    if size == SIZES[-1]:
        text = f"{size}: MW improves all metrics"
        return [*claims, Claim(text, "section 5.2", above(better, worse, METRICS))]
    text = f"{size}: MW is at least on par with CL in MRR and nDCG, on average"
    return [*claims, Claim(text, "section 5.2", no_worse_on_average(better, worse, METRICS[1:]))]
