"""Table 4 of *Training dense retrievers with multiple positive passages*: human and LLM positives in one group.

Four objectives are trained on groups of one human positive and further positives of an LLM. `full`: `msmarco`, the
human positive first. `small`: a subset of NFCorpus; the positive of the highest grade of each training query replaces
the human one, and the others replace those of the LLM. It is measured on NFCorpus and on the passages of TREC DL 2019.
`smoke`: docstrings; the own passage of a sentence first, then those of its siblings.
"""

from __future__ import annotations

from pathlib import Path

from raytriever.config import Curriculum
from raytriever.studies.claims import Claim, best, every, second_at_worst, smallest
from raytriever.studies.datasets import StudyDataset, Subset, pack_subset, untrained_arms
from raytriever.studies.definition import FULL, SMOKE, Arm, MeasuredDataset, Study
from raytriever.studies.recipes.positives.settings import (
    METRICS,
    MULTIPLE,
    describe_training,
    hybrid_sets,
    objective_config,
    training_set,
    usual_group,
)
from raytriever.studies.recipes.positives.tables import HETEROGENEOUS, MIXED_COLUMNS, PAPER, fractions, table

# Only `by_llm` is used; the sizes are those of `positives.settings`.
ONE_HUMAN = Subset(train=0, dev=0, test=0, documents=0, by_llm=True)
SIMULATED_SOURCES = (
    "For each training query the positive of the highest grade counts as human, and the others as positives of an LLM."
)
_PASSAGES = Subset(train=0, dev=0, test=100, documents=5_000)


def study(scale: str, data_root: Path | None, folder: Path) -> Study:
    """Build the study (see `studies.recipes`)."""
    group = usual_group(scale)
    data, others = mixed_sets(scale, data_root, folder)
    measured = mixed_measured(scale, data_root, data, others)
    arms = [
        Arm(
            name.lower(),
            name,
            measured,
            Curriculum(objective_config(scale, name, data, group, "human-first")),
            paper=fractions(MIXED_COLUMNS, HETEROGENEOUS[name]) if scale == FULL else {},
            queries=data.queries,
        )
        for name in MULTIPLE
    ]
    arms = untrained_arms(scale, measured) + arms
    lines = [line for one in (data, *others) for line in one.lines]
    return Study(
        name="heterogeneous",
        title="Objectives for several positives: one human positive, the others of an LLM",
        source=f"Table 4 of {PAPER}",
        arms=tuple(arms),
        seeds=3 if scale not in (SMOKE, FULL) else 1,
        baselines=("Rand1LH",),
        heading=(describe_training(scale, group), *([SIMULATED_SOURCES] if scale != FULL else []), *lines),
        paper=(table(4, "human and LLM positives", MIXED_COLUMNS, HETEROGENEOUS),),
        claims=_claims("recall_at_1000" if scale == FULL else "recall_at_100", measured[0].name),
    )


def mixed_sets(scale: str, data_root: Path | None, folder: Path) -> tuple[StudyDataset, list[StudyDataset]]:
    """Return the training data, with positives of both sources, and the data sets that are only measured."""
    data = training_set(scale, data_root, folder, ONE_HUMAN)
    if scale in (SMOKE, FULL):
        return data, []
    return data, [pack_subset(data_root, folder, "trec-dl19-mini", _PASSAGES, "TREC-DL19-mini")]


def mixed_measured(
    scale: str, data_root: Path | None, data: StudyDataset, others: list[StudyDataset]
) -> tuple[MeasuredDataset, ...]:
    """Return the data sets that each row is measured on."""
    if scale == FULL:
        return hybrid_sets(data_root, ("mrr_at_10", "recall_at_1000"))
    return (data.with_metrics(METRICS), *(one.with_metrics(("ndcg_at_10",)) for one in others))


def _claims(recall: str, home: str) -> tuple[Claim, ...]:
    top = ("mrr_at_10",)
    lowest = smallest("SumMargLH", (recall,), (home,), MULTIPLE)
    breadth = every(best("JointLH", (recall,), (home,), MULTIPLE), smallest("JointLH", top, (home,), MULTIPLE))
    return (
        Claim(
            "LSEPair is best or second on all metrics",
            "section 5.2 (1)",
            second_at_worst("LSEPair", MULTIPLE, (*top, "ndcg_at_10", recall)),
        ),
        Claim("SumMargLH has the lowest recall", "section 5.2 (2)", lowest),
        Claim("JointLH has the highest recall and the lowest MRR", "section 5.2 (3)", breadth),
    )
