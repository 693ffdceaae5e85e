"""Shared settings of the recipes for *Optimizing What Matters: AUC-driven learning for robust neural retrieval*.

Section 5.1 of the paper gives: 5 hard negatives, temperature 0.01, 500 warm-up steps, at most 20 epochs, early stopping
when the evaluation loss no longer falls, and the mean MW loss. InfoNCE ("CL") is its baseline: `--loss infonce`. The
batch has 16, 32 or 64 queries, depending on the size of the encoder; here it is the global batch.

The paper does not give the other settings, so these are ours: AdamW with its usual weight decay, the dropout of the
encoders (0.1), lengths of 64 and 256 tokens, mean pooling, cosine similarity, a validation on the loss of about 1,024
dev queries every 500 steps, and an end after 5 validations without an improvement. BM25 finds the hard negatives.
"""

from __future__ import annotations

from raytriever.config import Config
from raytriever.data.config import DataConfig
from raytriever.losses.config import LossConfig
from raytriever.models.config import ModelConfig
from raytriever.training.config import TrainingConfig

DEV_QUERIES = 1024


def auc_paper(model: str, batch_size: int, learning_rate: float) -> Config:
    """Return the settings of the paper for an encoder.

    Args:
        model: name of the encoder.
        batch_size: queries of a step, over all workers.
        learning_rate: peak learning rate of AdamW.
    """
    return Config(
        data=DataConfig(negatives_per_query=5),
        model=ModelConfig(model=model, query_length=64, passage_length=256),
        loss=LossConfig(loss="mw", temperature=0.01),
        training=TrainingConfig(
            batch_size=batch_size,
            epochs=20,
            learning_rate=learning_rate,
            warmup_steps=500,
            dropout=0.1,
            eval_steps=500,
            dev_batches=DEV_QUERIES // batch_size,
            patience=5,
        ),
    )
