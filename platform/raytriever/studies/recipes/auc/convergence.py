"""Table 5 of *Optimizing What Matters*: steps to the best checkpoint with MW and with contrastive loss.

`full`: as `mw-in-domain`, with early stopping. `small`: MiniLM on subsets of SNLI and SQuAD, two of the table's four
data sets, with one hard negative per query, up to 200 steps. The dev loss is computed every 10 steps, and training
stops after 8 validations without a better one. `smoke`: docstrings.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from raytriever.studies.claims import Claim, above
from raytriever.studies.datasets import (
    PACKAGES,
    STDLIB,
    StudyDataset,
    Subset,
    pack_subset,
    pydocs_subset,
    whole_dataset,
)
from raytriever.studies.definition import FULL, SMOKE, STEPS_TO_BEST, Arm, Drawing, Study
from raytriever.studies.recipes.auc.settings import FULL_SETS, LOSSES, Layer, build_curriculum, describe_training
from raytriever.studies.recipes.auc.tables import (
    CONVERGENCE,
    CONVERGENCE_SETS,
    METRICS,
    PAPER,
    SIZES,
    convergence_table,
)

_CUT = Subset(train=4_000, dev=192, test=300, documents=2_500)
_PACKS = (("snli", "SNLI"), ("squad", "SQuAD"))
# One hard negative, two data sets and 200 steps: with more, twelve trainings take over 90 minutes on two cores.
_SMALL: Layer = {
    "data": {"negatives_per_query": 1},
    "training": {"max_steps": 200, "eval_steps": 10, "dev_batches": 4, "patience": 8},
}
_SMOKE: Layer = {"training": {"max_steps": 6, "eval_steps": 2, "dev_batches": 1}}


def study(scale: str, data_root: Path | None, folder: Path) -> Study:
    """Build the study (see `studies.recipes`)."""
    sets = _sets(scale, data_root, folder)
    settings = {FULL: None, SMOKE: _SMOKE}.get(scale, _SMALL)
    sizes = SIZES if scale == FULL else SIZES[:1]
    arms = tuple(
        Arm(
            f"{size.lower()}-{row.lower()}-{one.name.lower().replace(' ', '-')}",
            row,
            (one.with_metrics(METRICS[-1:], (STEPS_TO_BEST,)),),
            build_curriculum(scale, loss, one, size, settings),
            block=size if scale == FULL else "",
            paper=_paper(size, row, one.name) if scale == FULL else {},
            queries=one.queries,
        )
        for size in sizes
        for row, loss in LOSSES.items()
        for one in sets
    )
    blocks = [f"{size} " for size in sizes] if scale == FULL else [""]
    return Study(
        name="mw-convergence",
        title="Steps to the best checkpoint under MW and contrastive loss",
        source=f"Table 5 of {PAPER}",
        arms=arms,
        seeds=3 if scale not in (SMOKE, FULL) else 1,
        baselines=("CL",),
        heading=(describe_training(scale, settings), *(line for one in sets for line in one.lines)),
        paper=(convergence_table(),),
        claims=tuple(
            Claim(f"{of}MW has a slower convergence rate", "appendix C", above(f"{of}MW", f"{of}CL", (STEPS_TO_BEST,)))
            for of in blocks
        ),
        drawings=(Drawing("curves", "dev-loss"),),
    )


def _sets(scale: str, data_root: Path | None, folder: Path) -> list[StudyDataset]:
    if scale == FULL:
        return [
            whole_dataset(data_root, FULL_SETS[name][0], name, queries=FULL_SETS[name][1]) for name in CONVERGENCE_SETS
        ]
    if scale == SMOKE:
        return [pydocs_subset(folder, part) for part in (STDLIB, PACKAGES)]
    return [
        pack_subset(data_root, folder, name, replace(_CUT, documents=1) if name == "snli" else _CUT, title)
        for name, title in _PACKS
    ]


def _paper(size: str, loss: str, dataset: str) -> dict[tuple[str, str], float]:
    return {(dataset, STEPS_TO_BEST): float(CONVERGENCE[size, loss][CONVERGENCE_SETS.index(dataset)])}
