"""Figure 1 of *Training dense retrievers with multiple positive passages*: the share of positives in a group.

A group has G passages, and at most M of them are positives. `full`: `msmarco`. `small`: a subset of NFCorpus,
batches of 8. `smoke`: docstrings, smaller groups.
"""

from __future__ import annotations

from pathlib import Path

from raytriever.config import Curriculum, override
from raytriever.studies.claims import Claim, above, every, steadier
from raytriever.studies.definition import FULL, SMOKE, Arm, Drawing, Study
from raytriever.studies.recipes.positives.settings import (
    METRICS,
    MULTIPLE,
    PassageGroup,
    describe_training,
    hybrid_sets,
    objective_config,
    training_set,
    usual_group,
)
from raytriever.studies.recipes.positives.tables import PAPER, RATIO, ratio_table

_GROUPS = {SMOKE: ((2, 1), (4, 1), (4, 2), (4, 3))}
_PAPER_GROUPS = ((8, 2), (8, 4), (16, 2), (16, 4), (16, 8))


def study(scale: str, data_root: Path | None, folder: Path) -> Study:
    """Build the study (see `studies.recipes`)."""
    data = training_set(scale, data_root, folder)
    metrics = METRICS[:2]
    measured = hybrid_sets(data_root, ("mrr_at_10",)) if scale == FULL else (data.with_metrics(metrics),)
    groups = _GROUPS.get(scale, _PAPER_GROUPS)
    names = ("Rand1LH", "JointLH") if scale == SMOKE else MULTIPLE
    settings = [("SingleLH", size, 1) for size in dict.fromkeys(size for size, _ in groups)]
    settings += [(name, size, most) for name in names for size, most in groups]
    arms = []
    for name, size, most in settings:
        config = objective_config(scale, name, data, PassageGroup(size, most), "llm" if scale == FULL else "all")
        if scale not in (SMOKE, FULL):
            config = override(config, {"training": {"batch_size": 8}})
        arms.append(
            Arm(
                f"{name.lower()}-{size}-{most}",
                _row(name, size, most),
                measured,
                Curriculum(config),
                coordinates={"objective": name, "G": size, "M": most},
                paper={key: value / 100 for key, value in RATIO.get((name, size, most), {}).items()}
                if scale == FULL
                else {},
                queries=data.queries,
            )
        )
    batches = ("Batches of 8.",) if scale not in (SMOKE, FULL) else ()
    return Study(
        name="ratio",
        title="Positives and negatives of a group",
        source=f"Figure 1 of {PAPER}",
        arms=tuple(arms),
        seeds=3 if scale not in (SMOKE, FULL) else 1,
        baselines=(_row("SingleLH", groups[0][0], 1),),
        heading=(describe_training(scale, usual_group(scale)), *batches, "Rows: objective, G, M.", *data.lines),
        paper=(ratio_table(),),
        claims=() if scale == SMOKE else _claims(measured[0].name),
        drawings=tuple(Drawing("lines", metric, metric, x="M", by="objective", panel="G") for metric in metrics),
    )


def _row(name: str, size: int, most: int) -> str:
    return f"{name} {size} {most}"


def _claims(home: str) -> tuple[Claim, ...]:
    top, on = ("mrr_at_10",), (home,)
    rows = {name: [_row(name, *group) for group in _PAPER_GROUPS] for name in MULTIPLE}
    steady = every(*(steadier(rows[name], rows["JointLH"], "mrr_at_10", on) for name in ("SumMargLH", "LSEPair")))
    dilutes = above(_row("JointLH", 16, 2), _row("JointLH", 16, 8), top, on)
    drop = every(*(above(_row(name, 16, 4), _row(name, 16, 8), top, on) for name in MULTIPLE))
    under = every(*(above(_row("SingleLH", 16, 1), _row(name, 16, 8), top, on) for name in ("LSEPair", "Rand1LH")))
    return (
        Claim("SumMargLH and LSEPair vary less with G and M than JointLH", "section 6.1 (1)", steady),
        Claim("At G = 16 JointLH loses MRR from M = 2 to 8", "section 6.1 (1)", dilutes),
        Claim("At G = 16 every objective loses MRR from M = 4 to 8", "section 6.1 (2)", drop),
        Claim("At G = 16 and M = 8 even LSEPair and Rand1LH are below SingleLH", "section 6.1 (2)", under),
    )
