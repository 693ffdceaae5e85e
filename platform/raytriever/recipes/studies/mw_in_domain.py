"""Paper 001, Table 1: MW and contrastive loss, each trained and measured on the same data set."""

from __future__ import annotations

from pathlib import Path

from raytriever.config import Config, Curriculum
from raytriever.config.study import Arm, Drawing, Measured, Study
from raytriever.data.config import DataConfig
from raytriever.losses.config import LossConfig
from raytriever.models.config import ModelConfig
from raytriever.retrieval.study_claims import Claim, above
from raytriever.training.config import TrainingConfig

METRICS = ("auc", "mrr_at_10", "ndcg_at_10")


def study(scale: str, data_root: Path | None, folder: Path) -> Study:
    """See `recipes.studies`."""
    measured = (Measured("pydocs", "pydocs", "test", METRICS),)
    arms = tuple(
        Arm(f"{row.lower()}-pydocs", row, measured, Curriculum(_config(loss)))
        for row, loss in (("CL", "infonce"), ("MW", "mw"))
    )
    return Study(
        name="mw-in-domain",
        title="MW against contrastive loss in domain",
        source="Table 1 of Optimizing What Matters",
        arms=(Arm("before", "before", measured, None, model="minilm"), *arms),
        seeds=1,
        baselines=("CL",),
        claims=(Claim("MW notably improves AUC across all data sets", "section 5.2", above("MW", "CL", ("auc",))),),
        drawings=(Drawing("roc", "roc"),),
    )


def _config(loss: str) -> Config:
    return Config(
        data=DataConfig(dataset="pydocs"),
        model=ModelConfig(passage_length=48),
        loss=LossConfig(loss=loss),
        training=TrainingConfig(batch_size=16, max_steps=4, eval_steps=4, dev_batches=1),
    )
