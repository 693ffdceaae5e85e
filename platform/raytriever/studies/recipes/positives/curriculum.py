"""Table 5 of *Training dense retrievers with multiple positive passages*: a curriculum of two stages.

Each objective is trained on positives of an LLM first; then InfoNCE is trained on human positives. Section 4.3: the
second stage has one epoch, with the same batch and learning rate. Further rows show each objective after the first
stage alone, to test whether the second stage brings them closer. `full`: `msmarco`. `small`: a subset of NFCorpus,
sources as in `heterogeneous`, 40 steps and then 20. `smoke`: docstrings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raytriever.config import Curriculum, Stage, override
from raytriever.studies.claims import Claim, mostly_above, steadier
from raytriever.studies.datasets import StudyDataset
from raytriever.studies.definition import FULL, SMOKE, Arm, Study
from raytriever.studies.recipes.positives.heterogeneous import SIMULATED_SOURCES, mixed_measured, mixed_sets
from raytriever.studies.recipes.positives.settings import (
    METRICS,
    MULTIPLE,
    PassageGroup,
    describe_training,
    objective_config,
    usual_group,
)
from raytriever.studies.recipes.positives.tables import CURRICULUM, MIXED_COLUMNS, OBJECTIVES, PAPER, fractions, table

_FIRST = "first stage"


def study(scale: str, data_root: Path | None, folder: Path) -> Study:
    """Build the study (see `studies.recipes`)."""
    group = usual_group(scale)
    data, others = mixed_sets(scale, data_root, folder)
    measured = mixed_measured(scale, data_root, data, others)
    arms = []
    for name in OBJECTIVES:
        alone, both = _stages(scale, name, data, group)
        paper = fractions(MIXED_COLUMNS, CURRICULUM[name]) if scale == FULL else {}
        arms.append(Arm(f"{name.lower()}-first", f"{name}, {_FIRST}", measured, alone, queries=data.queries))
        arms.append(Arm(name.lower(), name, measured, both, paper=paper, queries=data.queries))
    arms.sort(key=lambda arm: arm.row.endswith(_FIRST))
    lines = [line for one in (data, *others) for line in one.lines]
    after, before = list(OBJECTIVES), [f"{name}, {_FIRST}" for name in OBJECTIVES]
    return Study(
        name="curriculum",
        title="Positives of an LLM first, then human positives",
        source=f"Table 5 of {PAPER}",
        arms=tuple(arms),
        seeds=3 if scale not in (SMOKE, FULL) else 1,
        baselines=("SingleLH", "Rand1LH"),
        heading=(
            describe_training(scale, group),
            "Then the second stage: InfoNCE on human positives" + _second_stage(scale) + ".",
            *([SIMULATED_SOURCES] if scale != FULL else []),
            *lines,
        ),
        paper=(table(5, "after the second stage", MIXED_COLUMNS, CURRICULUM),),
        claims=(
            Claim(
                "Most objectives for several positives end above SingleLH",
                "section 5.3 (1)",
                mostly_above(MULTIPLE, "SingleLH", METRICS if scale != FULL else ("mrr_at_10", "ndcg_at_10")),
            ),
            Claim(
                "The second stage brings the objectives closer",
                "section 5.3 (2)",
                steadier(after, before, "mrr_at_10", (measured[0].name,)),
            ),
        ),
    )


def _second_stage(scale: str) -> str:
    return {FULL: ", one epoch", SMOKE: ", 2 steps"}.get(scale, ", 20 steps")


def _stages(scale: str, name: str, data: StudyDataset, group: PassageGroup) -> tuple[Curriculum, Curriculum]:
    """Return the curriculum of the first stage alone, and that of both stages."""
    first = objective_config(scale, name, data, group, "llm")
    second = objective_config(scale, "SingleLH", data, group, "human")
    lengths: dict[str, dict[str, Any]] = {FULL: {"epochs": 1.0}, SMOKE: {"max_steps": 2}}
    second = override(second, {"training": lengths.get(scale, {"max_steps": 20})})
    return Curriculum(first), Curriculum(first, (Stage("llm", first), Stage("human", second)))
