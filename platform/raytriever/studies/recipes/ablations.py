"""Studies of section 6 of *Training dense retrievers with multiple positive passages*: groups, variants, labels.

Their data sets are those of `positives`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from raytriever.config import Curriculum, override
from raytriever.studies.claims import (
    Claim,
    above,
    alike,
    every,
    smallest,
    steadier,
)
from raytriever.studies.definition import Arm, Drawing, Study
from raytriever.studies.recipes import tables
from raytriever.studies.recipes.positives import (
    METRICS,
    MRR,
    MULTIPLE,
    QUERIES,
    deep_recall,
    hybrid_sets,
    training_set,
)
from raytriever.studies.recipes.scale import (
    MS_MARCO,
    NQ,
    StudyScale,
    lines_of,
)
from raytriever.studies.recipes.tables import DEV, POSITIVES_PAPER, fractions
from raytriever.studies.recipes.training import PassageGroup, describe_objectives, objective_config, usual_group


def ratio(scale: StudyScale) -> Study:
    """Figure 1: the share of positives in a group. A group has G passages, and at most M of them are positives.

    `full`: `msmarco`. `small`: batches of 8. `smoke`: smaller groups.
    """
    data = training_set(scale)
    metrics = METRICS[:2]
    measured = hybrid_sets(scale, MRR) if scale.is_full else (data.with_metrics(metrics),)
    paper_groups = ((8, 2), (8, 4), (16, 2), (16, 4), (16, 8))
    groups = scale.choose(((2, 1), (4, 1), (4, 2), (4, 3)), paper_groups, paper_groups)
    settings = [("SingleLH", size, 1) for size in dict.fromkeys(size for size, _ in groups)]
    settings += [(name, *one) for name in (("Rand1LH", "JointLH") if scale.is_smoke else MULTIPLE) for one in groups]
    small = {"training": {"batch_size": 8}}

    def row(name: str, size: int, most: int) -> str:
        return f"{name} {size} {most}"

    arms = []
    for name, size, most in settings:
        config = objective_config(scale, name, data, PassageGroup(size, most), "llm" if scale.is_full else "all")
        paper = {key: value / 100 for key, value in tables.RATIO.get((name, size, most), {}).items()}
        arms.append(
            Arm(
                f"{name.lower()}-{size}-{most}",
                row(name, size, most),
                measured,
                Curriculum(override(config, scale.choose({}, small, {}))),
                coordinates={"objective": name, "G": size, "M": most},
                paper=paper if scale.is_full else {},
                queries=data.queries,
            )
        )
    on = (measured[0].name,)
    rows = {name: [row(name, *group) for group in paper_groups] for name in MULTIPLE}
    steady = every(*(steadier(rows[name], rows["JointLH"], *MRR, on) for name in ("SumMargLH", "LSEPair")))
    dilutes = above(row("JointLH", 16, 2), row("JointLH", 16, 8), MRR, on)
    drop = every(*(above(row(name, 16, 4), row(name, 16, 8), MRR, on) for name in MULTIPLE))
    under = every(*(above(row("SingleLH", 16, 1), row(name, 16, 8), MRR, on) for name in ("LSEPair", "Rand1LH")))
    claims = (
        Claim("SumMargLH and LSEPair vary less with G and M than JointLH", "section 6.1 (1)", steady),
        Claim("At G = 16 JointLH loses MRR from M = 2 to 8", "section 6.1 (1)", dilutes),
        Claim("At G = 16 every objective loses MRR from M = 4 to 8", "section 6.1 (2)", drop),
        Claim("At G = 16 and M = 8 even LSEPair and Rand1LH are below SingleLH", "section 6.1 (2)", under),
    )
    return Study(
        name="ratio",
        title="Positives and negatives of a group",
        source=f"Figure 1 of {POSITIVES_PAPER}",
        arms=tuple(arms),
        seeds=scale.seeds,
        baselines=(row("SingleLH", groups[0][0], 1),),
        heading=(
            describe_objectives(scale, usual_group(scale)),
            *scale.choose((), ("Batches of 8.",), ()),
            "Rows: objective, G, M.",
            *lines_of([data]),
        ),
        paper=(tables.RATIO_TABLE,),
        claims=() if scale.is_smoke else claims,
        drawings=tuple(Drawing("lines", metric, metric, x="M", by="objective", panel="G") for metric in metrics),
    )


def variants(scale: StudyScale) -> Study:
    """Table 6: variants of LSEPair.

    LSEPair uses all pairs; its variants use only the hardest or easiest positives and negatives. `full`: `nq`. `small`:
    measured by nDCG, MRR and recall, because NFCorpus has no answers.
    """
    whole, worst = "LSEPair", "LSEPair_maxP"
    group, data = usual_group(scale), training_set(scale, NQ)
    metrics = tuple(metric for _, metric in tables.VARIANT_COLUMNS) if scale.is_full else METRICS
    arms = tuple(
        Arm(
            name.lower().replace("_", "-"),
            name,
            (data.with_metrics(metrics),),
            Curriculum(objective_config(scale, name, data, group, "llm" if scale.is_full else "all", NQ)),
            paper=fractions(tables.VARIANT_COLUMNS, figures) if scale.is_full else {},
            queries=data.queries,
        )
        for name, figures in tables.VARIANTS.items()
    )
    others = [name for name in tables.VARIANTS if name not in (whole, worst, "SumMargLH")]
    same = every(*(alike(name, whole, metrics) for name in others))
    return Study(
        name="variants",
        title="Variants of LSEPair",
        source=f"Table 6 of {POSITIVES_PAPER}",
        arms=arms,
        seeds=scale.seeds,
        baselines=(worst, whole),
        heading=(describe_objectives(scale, group), *lines_of([data])),
        paper=(tables.VARIANTS_TABLE,),
        claims=(
            Claim("LSEPair_maxP is the worst", "section 6.2", smallest(worst, metrics)),
            Claim("SumMargLH underperforms too", "section 6.2", above(whole, "SumMargLH", metrics)),
            Claim("The other variants do not differ significantly from LSEPair", "section 6.2", same),
        ),
    )


def budget(scale: StudyScale) -> Study:
    """Table 7: a budget of labels, used for more queries, or for more positives of each query.

    Positives outside the budget are removed from the training data, so a training may use them as negatives. `full`:
    `msmarco`, `msmarco-1-of-100`, `msmarco-2-of-50`, `msmarco-3-of-33` and `msmarco-4-of-25`, which hold the best
    positives of a random share of the training queries; 3, 3, 4, 5 and 5 epochs. `small`: a quarter of these epochs.
    """
    everything = training_set(scale)
    metrics = tuple(metric for _, metric in tables.BUDGET_COLUMNS) if scale.is_full else METRICS
    # All rows are measured on the whole data set.
    measured = hybrid_sets(scale, metrics)[:1] if scale.is_full else (everything.with_metrics(metrics),)
    shares = {"100 %": 1.0, "50 %": 1 / 2, "33.3 %": 1 / 3, "25 %": 1 / 4}
    # Epochs of section 6.3; for the whole set, which is the first row, those of section 4.4.
    epochs = dict(zip(tables.BUDGET, (3.0, 3.0, 4.0, 5.0, 5.0), strict=True))
    arms: list[Arm] = []
    for (most, share), figures in tables.BUDGET.items():
        data = everything
        if scale.is_full and arms:
            part = scale.whole(f"{MS_MARCO}-{most}-of-{round(100 * shares[share])}", DEV, "dev")
            data = replace(part, queries=round(QUERIES[MS_MARCO] * shares[share]))
        elif arms:
            data = training_set(scale, share=shares[share], labels=most)
        full = {"epochs": epochs[most, share]}
        small = {"epochs": 0.25 * epochs[most, share], "max_steps": None}
        length: dict[str, Any] = scale.choose({"max_steps": 2}, small, full)
        group, source = PassageGroup(8, most), "llm" if scale.is_full else "all"
        config = objective_config(scale, "LSEPair", data, group, source)
        arms.append(
            Arm(
                f"{most}-of-{share.split()[0]}",
                f"{most} of {share}",
                measured,
                Curriculum(override(config, {"data": {"positives_order": "ranked"}, "training": length})),
                paper=fractions(tables.BUDGET_COLUMNS, figures) if scale.is_full else {},
                queries=data.queries,
            )
        )
    whole, *fixed = (arm.row for arm in arms)
    recall = deep_recall(scale)
    falls = every(*(above(more, fewer, MRR) for more, fewer in pairwise(fixed)))
    level = every(*(alike(one, fixed[0], (recall,)) for one in fixed[1:]))
    better = every(*(above(whole, one, (*MRR, recall)) for one in fixed))
    lengths = (
        "Rows: positives per query, and the share of the queries with these positives; 0.75, 0.75, 1, 1.25 and 1.25 "
        "epochs, a quarter of the epochs of the paper."
    )
    return Study(
        name="budget",
        title="A budget of labels: more queries, or more positives of each",
        source=f"Table 7 of {POSITIVES_PAPER}",
        arms=tuple(arms),
        seeds=scale.seeds,
        baselines=(fixed[0],),
        heading=(
            describe_objectives(scale, PassageGroup(8, 4)),
            *scale.choose((), (lengths,), ()),
            *lines_of([everything]),
        ),
        paper=(tables.BUDGET_TABLE,),
        claims=(
            Claim("Under a fixed budget MRR falls with more positives a query", "section 6.3", falls),
            Claim("Recall changes only marginally", "section 6.3", level),
            Claim("Four positives of all queries are much better", "section 6.3", better),
        ),
    )


STUDIES: Mapping[str, Callable[[StudyScale], Study]] = {"ratio": ratio, "variants": variants, "budget": budget}
