"""Table 6 of *Training dense retrievers with multiple positive passages*: variants of LSEPair.

LSEPair uses all pairs; its variants use only the hardest or easiest positives and negatives. `full`: `nq`. `small`: a
subset of NFCorpus, measured by nDCG, MRR and recall, because it has no answers. `smoke`: docstrings.
"""

from __future__ import annotations

from pathlib import Path

from raytriever.config import Curriculum
from raytriever.studies.claims import Claim, above, alike, every, smallest
from raytriever.studies.definition import FULL, SMOKE, Arm, Study
from raytriever.studies.recipes.positives.settings import (
    METRICS,
    NQ,
    describe_training,
    objective_config,
    training_set,
    usual_group,
)
from raytriever.studies.recipes.positives.tables import PAPER, VARIANT_COLUMNS, VARIANTS, fractions, table

_WHOLE, _WORST = "LSEPair", "LSEPair_maxP"


def study(scale: str, data_root: Path | None, folder: Path) -> Study:
    """Build the study (see `studies.recipes`)."""
    group = usual_group(scale)
    data = training_set(scale, data_root, folder, on=NQ)
    metrics = tuple(metric for _, metric in VARIANT_COLUMNS) if scale == FULL else METRICS
    arms = tuple(
        Arm(
            name.lower().replace("_", "-"),
            name,
            (data.with_metrics(metrics),),
            Curriculum(objective_config(scale, name, data, group, "llm" if scale == FULL else "all", NQ)),
            paper=fractions(VARIANT_COLUMNS, figures) if scale == FULL else {},
            queries=data.queries,
        )
        for name, figures in VARIANTS.items()
    )
    others = [name for name in VARIANTS if name not in (_WHOLE, _WORST, "SumMargLH")]
    return Study(
        name="variants",
        title="Variants of LSEPair",
        source=f"Table 6 of {PAPER}",
        arms=arms,
        seeds=3 if scale not in (SMOKE, FULL) else 1,
        baselines=(_WORST, _WHOLE),
        heading=(describe_training(scale, group), *data.lines),
        paper=(table(6, "NQ", VARIANT_COLUMNS, VARIANTS),),
        claims=(
            Claim("LSEPair_maxP is the worst", "section 6.2", smallest(_WORST, metrics)),
            Claim("SumMargLH underperforms too", "section 6.2", above(_WHOLE, "SumMargLH", metrics)),
            Claim(
                "The other variants do not differ significantly from LSEPair",
                "section 6.2",
                every(*(alike(name, _WHOLE, metrics) for name in others)),
            ),
        ),
    )
