"""Figure 8 of the out-of-distribution paper: the weight lambda of the distribution regulariser, and approximate search.

The study measures retrieval by exact search, the distance of queries and passages (MMD^2, and the mean distance of a
query and its positives), and the candidates that HNSW scores for queries, divided by those for held-out passages, both
at recall@10 of 0.95. The paper shows curves and prints no numbers. Its encoders are coCondenser and RetroMAE,
fine-tuned with the official settings of MS MARCO, which it does not repeat.

`full`: `msmarco` with the settings of `multi-positive` for one positive, and bert-base-uncased instead of coCondenser.
`small`: MiniLM on a subset of SQuAD. `smoke`: docstrings.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from raytriever.config import Curriculum, override
from raytriever.studies.claims import Claim, above, every
from raytriever.studies.datasets import (
    STDLIB,
    UNTRAINED,
    StudyDataset,
    Subset,
    pack_subset,
    pydocs_subset,
    untrained_arms,
)
from raytriever.studies.definition import FULL, OOD, SMOKE, Arm, Drawing, Study
from raytriever.studies.recipes.auc.settings import build_curriculum, describe_training
from raytriever.studies.recipes.positives.settings import PassageGroup, objective_config, training_set
from raytriever.studies.recipes.positives.settings import describe_training as describe_full_training

PAPER = "Alleviating performance degradation caused by out-of-distribution issues in embedding-based retrieval"
WEIGHTS = (0.0, 0.001, 0.01, 0.05, 0.1)
TEMPERATURE = 0.05
_METRICS = ("ndcg_at_10", "recall_at_100")
_CUT = Subset(train=1_500, dev=128, test=500, documents=4_000)


def study(scale: str, data_root: Path | None, folder: Path) -> Study:
    """Build the study (see `studies.recipes`)."""
    data = _data(scale, data_root, folder)
    measured = (data.with_metrics(_METRICS, (OOD,)),)
    weights = (WEIGHTS[0], *WEIGHTS[-2:]) if scale == SMOKE else WEIGHTS
    arms = [
        Arm(
            f"lambda-{weight:g}",
            _row(weight),
            measured,
            _curriculum(scale, data, weight),
            coordinates={"lambda": weight},
            queries=data.queries,
        )
        for weight in weights
    ]
    arms = untrained_arms(scale, measured) + arms
    about = (
        describe_full_training(scale, PassageGroup(8, 1))
        if scale == FULL
        else describe_training(scale, {"loss": {"temperature": TEMPERATURE}})
    )
    return Study(
        name="lambda",
        title="The weight of the distribution regulariser",
        source=f"Figure 8 of {PAPER}",
        arms=tuple(arms),
        seeds=3 if scale not in (SMOKE, FULL) else 1,
        baselines=(_row(0.0),),
        heading=(
            about,
            "Loss: InfoNCE plus lambda times the mean squared distance of a query and its passages.",
            *data.lines,
        ),
        claims=_claims(scale),
        drawings=tuple(
            Drawing("lines", name, name, x="lambda")
            for name in (*_METRICS[:1], "mmd2", "query_positive_l2", "candidates_ratio")
        ),
    )


def _data(scale: str, data_root: Path | None, folder: Path) -> StudyDataset:
    if scale == FULL:
        return training_set(scale, data_root, folder)
    return pydocs_subset(folder, STDLIB) if scale == SMOKE else pack_subset(data_root, folder, "squad", _CUT, "SQuAD")


def _curriculum(scale: str, data: StudyDataset, weight: float) -> Curriculum:
    if scale == FULL:
        config = objective_config(scale, "SingleLH", data, PassageGroup(8, 1), "human")
        return Curriculum(override(config, {"loss": {"distribution_weight": weight}}))
    return build_curriculum(
        scale, "infonce", data, settings={"loss": {"temperature": TEMPERATURE, "distribution_weight": weight}}
    )


def _row(weight: float) -> str:
    return f"lambda {weight:g}"


def _claims(scale: str) -> tuple[Claim, ...]:
    steps = list(pairwise(WEIGHTS)) if scale != SMOKE else [(0.0, 0.05), (0.05, 0.1)]
    closer = every(*(above(_row(less), _row(more), ("query_positive_l2",)) for less, more in steps))
    gap = above(_row(0.0), _row(WEIGHTS[-1]), ("mmd2",))
    small = [weight for weight in WEIGHTS if 0 < weight < 0.05]
    cheaper = every(*(above(_row(0.0), _row(weight), ("candidates_ratio",)) for weight in small))
    claims = [
        Claim("The larger lambda, the closer are queries and their positives", "Figure 8", closer),
        Claim("The regulariser reduces the MMD of queries and passages", "section 4, Figure 7", gap),
        Claim("Below 0.05 approximate search gets cheaper", "appendix F", cheaper),
        Claim("At 0.1 retrieval suffers", "appendix F", above(_row(0.0), _row(0.1), _METRICS[:1])),
    ]
    if scale != FULL:
        drifts = above(_row(0.0), UNTRAINED, ("mmd2",))
        claims.append(Claim("InfoNCE alone drives queries and passages apart", "section 2, Figure 3", drifts))
    return tuple(claims)
