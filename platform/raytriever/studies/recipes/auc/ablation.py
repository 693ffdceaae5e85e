"""Tables 3 and 4 of *Optimizing What Matters*: learning rate, batch and hard negatives, with contrastive and MW loss.

The paper names no data set; this study uses SQuAD. `full`: the folder `squad`. `small`: a subset of it, with batches of
16 and 32 instead of 64 and 128, and 1, 3 and 5 hard negatives instead of 3, 5 and 7. `smoke`: four settings on
docstrings.
"""

from __future__ import annotations

from pathlib import Path

from raytriever.studies.claims import Claim, above, every, steadier
from raytriever.studies.datasets import STDLIB, StudyDataset, Subset, pack_subset, pydocs_subset, whole_dataset
from raytriever.studies.definition import FULL, SMOKE, Arm, Drawing, Study
from raytriever.studies.recipes.auc.settings import FULL_SETS, LOSSES, Layer, build_curriculum, describe_training
from raytriever.studies.recipes.auc.tables import ABLATION, ABLATION_METRICS, PAPER, ablation_table

_CUT = Subset(train=1_500, dev=128, test=500, documents=2_500)
# Batches and numbers of hard negatives of the paper, and their replacements at smaller scales.
_BATCHES = {SMOKE: {64: 4, 128: 8}, FULL: {64: 64, 128: 128}}
_HARD = {SMOKE: {3: 1, 5: 2}, FULL: {3: 3, 5: 5, 7: 7}}
_SMALL_BATCHES, _SMALL_HARD = {64: 16, 128: 32}, {3: 1, 5: 3, 7: 5}


def study(scale: str, data_root: Path | None, folder: Path) -> Study:
    """Build the study (see `studies.recipes`)."""
    data = _data(scale, data_root, folder)
    batches, hard = _BATCHES.get(scale, _SMALL_BATCHES), _HARD.get(scale, _SMALL_HARD)
    arms = []
    for (loss, rate, batch, negatives), figures in ABLATION.items():
        if negatives not in hard:
            continue
        row = _row(loss, rate, batches[batch], hard[negatives])
        settings: Layer = {
            "data": {"negatives_per_query": hard[negatives]},
            "training": {"batch_size": batches[batch], "learning_rate": float(rate)},
        }
        arms.append(
            Arm(
                row.lower().replace(" ", "-"),
                row,
                (data.with_metrics(ABLATION_METRICS),),
                build_curriculum(scale, LOSSES[loss], data, settings=settings),
                coordinates={"loss": loss, "batch": f"{loss} {batches[batch]}", "hard negatives": hard[negatives]},
                # The result of the paper is printed only if the setting is the same.
                paper={(data.name, name): figure for name, figure in zip(ABLATION_METRICS, figures, strict=True)}
                if scale == FULL
                else {},
                queries=data.queries,
            )
        )
    rows = {loss: [arm.row for arm in arms if arm.coordinates["loss"] == loss] for loss in LOSSES}
    return Study(
        name="mw-ablation",
        title="Learning rate, batch and hard negatives under MW and contrastive loss",
        source=f"Tables 3 and 4 of {PAPER}",
        arms=tuple(arms),
        seeds=3 if scale not in (SMOKE, FULL) else 1,
        baselines=(rows["CL"][0],),
        heading=(
            describe_training(scale),
            "Rows: loss, learning rate, batch, hard negatives.",
            *data.lines,
        ),
        paper=(ablation_table(),),
        claims=_claims(rows["MW"], rows["CL"]),
        drawings=(
            Drawing("lines", "auc", "auc", x="hard negatives", by="batch"),
            Drawing("lines", "ndcg", "ndcg_at_10", x="hard negatives", by="batch"),
        ),
    )


def _data(scale: str, data_root: Path | None, folder: Path) -> StudyDataset:
    if scale == FULL:
        name, queries = FULL_SETS["SQuAD"]
        return whole_dataset(data_root, name, "SQuAD", queries=queries)
    return pydocs_subset(folder, STDLIB) if scale == SMOKE else pack_subset(data_root, folder, "squad", _CUT, "SQuAD")


def _row(loss: str, rate: str, batch: int, hard: int) -> str:
    return f"{loss} {rate} {batch} {hard}"


def _claims(mw: list[str], cl: list[str]) -> tuple[Claim, ...]:
    pairs = list(zip(mw, cl, strict=True))
    higher = every(*(above(ours, theirs, ("auc",)) for ours, theirs in pairs))
    lower = every(*(above(theirs, ours, ("mrr_at_10",)) for ours, theirs in pairs))
    sensitive = every(*(steadier(mw, cl, metric) for metric in ("auc", "ndcg_at_10")))
    return (
        Claim("MW has the higher AUC in every setting", "Tables 3 and 4", higher),
        Claim("CL has the higher MRR in every setting", "Tables 3 and 4", lower),
        Claim("MW is stable over batches and hard negatives, CL is more sensitive", "appendix B", sensitive),
    )
