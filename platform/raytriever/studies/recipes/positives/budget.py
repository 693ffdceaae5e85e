"""Table 7 of *Training dense retrievers with multiple positive passages*: a budget of labels.

The same number of labels is used for more queries, or for more positives of each query. Positives outside the budget
are removed from the training data, so a training may use them as negatives. `full`: `msmarco`, `msmarco-1-of-100`,
`msmarco-2-of-50`, `msmarco-3-of-33` and `msmarco-4-of-25`, which hold the best positives of a random share of the
training queries; 3, 3, 4, 5 and 5 epochs. `small`: subsets of NFCorpus, a quarter of these epochs. `smoke`:
docstrings.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from raytriever.config import Curriculum, override
from raytriever.studies.claims import Claim, above, alike, every
from raytriever.studies.datasets import StudyDataset, Subset, whole_dataset
from raytriever.studies.definition import FULL, SMOKE, Arm, Study
from raytriever.studies.recipes.positives.settings import (
    METRICS,
    MS_MARCO,
    PassageGroup,
    describe_training,
    hybrid_sets,
    objective_config,
    training_set,
)
from raytriever.studies.recipes.positives.tables import BUDGET, BUDGET_COLUMNS, DEV, PAPER, budget_table, fractions

_WHOLE = (4, "100 %")
_SHARES = {"100 %": 1.0, "50 %": 1 / 2, "33.3 %": 1 / 3, "25 %": 1 / 4}
# Epochs of section 6.3; for the whole set those of section 4.4.
_EPOCHS = {(4, "100 %"): 3.0, (1, "100 %"): 3.0, (2, "50 %"): 4.0, (3, "33.3 %"): 5.0, (4, "25 %"): 5.0}
_QUARTER = 0.25
GROUP = 8
_LENGTHS = (
    "Rows: positives per query, and the share of the queries with these positives; 0.75, 0.75, 1, 1.25 and 1.25 "
    "epochs, a quarter of the epochs of the paper."
)


def study(scale: str, data_root: Path | None, folder: Path) -> Study:
    """Build the study (see `studies.recipes`)."""
    everything = training_set(scale, data_root, folder)
    metrics = tuple(metric for _, metric in BUDGET_COLUMNS) if scale == FULL else METRICS
    # All rows are measured on the whole data set.
    measured = hybrid_sets(data_root, metrics)[:1] if scale == FULL else (everything.with_metrics(metrics),)
    arms = []
    for setting, figures in BUDGET.items():
        most, share = setting
        data = everything if setting == _WHOLE else _budget_data(scale, data_root, folder, setting)
        config = objective_config(scale, "LSEPair", data, PassageGroup(GROUP, most), "llm" if scale == FULL else "all")
        config = override(config, {"data": {"positives_order": "ranked"}, "training": _length(scale, setting)})
        arms.append(
            Arm(
                f"{most}-of-{share.split()[0]}",
                _row(setting),
                measured,
                Curriculum(config),
                paper=fractions(BUDGET_COLUMNS, figures) if scale == FULL else {},
                queries=data.queries,
            )
        )
    return Study(
        name="budget",
        title="A budget of labels: more queries, or more positives of each",
        source=f"Table 7 of {PAPER}",
        arms=tuple(arms),
        seeds=3 if scale not in (SMOKE, FULL) else 1,
        baselines=(_row((1, "100 %")),),
        heading=(
            describe_training(scale, PassageGroup(GROUP, 4)),
            *([_LENGTHS] if scale not in (SMOKE, FULL) else []),
            *everything.lines,
        ),
        paper=(budget_table(),),
        claims=_claims("recall_at_1000" if scale == FULL else "recall_at_100"),
    )


def _budget_data(scale: str, data_root: Path | None, folder: Path, setting: tuple[int, str]) -> StudyDataset:
    """Return the training data of a budget."""
    most, share = setting
    if scale == FULL:
        full = training_set(scale, data_root, folder)
        part = whole_dataset(data_root, f"{MS_MARCO}-{most}-of-{round(100 * _SHARES[share])}", DEV, "dev")
        return replace(part, queries=round((full.queries or 0) * _SHARES[share]))
    return training_set(scale, data_root, folder, Subset(0, 0, 0, 0, share=_SHARES[share], labels=most))


def _length(scale: str, setting: tuple[int, str]) -> dict[str, float | int | None]:
    if scale == SMOKE:
        return {"max_steps": 2}
    if scale == FULL:
        return {"epochs": _EPOCHS[setting]}
    return {"epochs": _QUARTER * _EPOCHS[setting], "max_steps": None}


def _row(setting: tuple[int, str]) -> str:
    return f"{setting[0]} of {setting[1]}"


def _claims(recall: str) -> tuple[Claim, ...]:
    whole_set, *fixed = (_row(setting) for setting in BUDGET)
    falls = every(*(above(more, fewer, ("mrr_at_10",)) for more, fewer in pairwise(fixed)))
    recalls = every(*(alike(one, fixed[0], (recall,)) for one in fixed[1:]))
    everything = every(*(above(whole_set, one, ("mrr_at_10", recall)) for one in fixed))
    return (
        Claim("Under a fixed budget MRR falls with more positives a query", "section 6.3", falls),
        Claim("Recall changes only marginally", "section 6.3", recalls),
        Claim("Four positives of all queries are much better", "section 6.3", everything),
    )
