"""What the recipes of *Optimizing What Matters: AUC-driven learning for robust neural retrieval* share.

Of its section 5.1: 5 hard negatives, temperature 0.01, 500 warm-up steps, at most 20 epochs, early stopping when the
evaluation loss no longer falls, mean MW loss (and InfoNCE, "CL", to compare with: `--loss infonce`); a batch of 16, 32
or 64 queries by size of the encoder, taken here as the global one.

The paper does not say, and so it is ours: AdamW with its usual weight decay, the encoders' own dropout of 0.1, lengths
of 64 and 256 tokens, mean pooling and cosine similarity, a look at the loss of about 1,024 dev queries every 500 steps,
and an end after 5 looks without a better one. BM25 finds the hard negatives.
"""

from __future__ import annotations

from raytriever.config import Config
from raytriever.data.config import DataConfig
from raytriever.losses.config import LossConfig
from raytriever.models.config import ModelConfig
from raytriever.training.config import TrainingConfig

DEV_QUERIES = 1024


def auc_paper(model: str, batch_size: int, learning_rate: float) -> Config:
    """The paper's settings around an encoder.

    Args:
        model: its name.
        batch_size: queries of a step, over all workers.
        learning_rate: AdamW's highest.
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
