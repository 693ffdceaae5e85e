"""Recipes for *Optimizing What Matters: AUC-driven learning for robust neural retrieval*.

Section 5.1 of the paper gives: 5 hard negatives, temperature 0.01, 500 warm-up steps, at most 20 epochs, early stopping
when the evaluation loss no longer falls, and the mean MW loss. InfoNCE ("CL") is its baseline: `--loss infonce`. The
batch has 16, 32 or 64 queries, depending on the size of the encoder; here it is the global batch.

The paper does not give the other settings, so these are ours: AdamW with its usual weight decay, the dropout of the
encoders (0.1), queries of at most 64 and passages of at most 256 tokens, mean pooling and cosine similarity. Every 500
steps the loss of about 1,024 dev queries is computed, and training ends after 5 validations without an improvement.
BM25 finds the hard negatives."""

from __future__ import annotations

from raytriever.data.data_settings import DataConfig
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.model_settings import ModelConfig
from raytriever.training.run_config import Config
from raytriever.training.training_settings import TrainingConfig

DEV_QUERIES = 1024


def auc_paper(model: str, batch_size: int, learning_rate: float) -> Config:
    """Return the settings of the paper for an encoder. `batch_size` is global. `learning_rate` is the peak value."""
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


def minilm() -> Config:
    """Return the settings for `minilm`: batch 64, as in Tables 1 and 2, and learning rate 3e-5.

    Command: `raytriever train --recipe minilm --dataset DATA --output runs/minilm`

    Needs: 11 GB of GPU memory for one worker, at full lengths. It stores 22,713,216 parameters with gradient and two
    moments, 16 bytes each: 0.4 GB. A step has 64 x (64 + 6 x 256) = 102,400 tokens. Each token keeps 42 bytes x 384
    components x 6 blocks: 9.9 GB. With `--activation-checkpointing` the 9.9 GB become 2.6 GB.

    Paper, Table 1, MW: AUC / MRR / nDCG of .81 / .35 / .43 (NLI), .84 / .36 / .43 (NQ), .85 / .37 / .44 (SQuAD),
    .81 / .34 / .43 (MS MARCO).

    The encoder is part of the package, so the recipe runs offline. It has the size of the encoder in the paper, but is
    already trained for retrieval. The paper starts from a language model without training for retrieval, such as
    `--model nreimers/MiniLM-L6-H384-uncased`. The learning rate is that of the paper for batch 64, Tables 3 and 4."""
    return auc_paper("minilm", batch_size=64, learning_rate=3e-5)


def xlmr_base() -> Config:
    """Return the settings for `FacebookAI/xlm-roberta-base`: batch 32, as in Tables 1 and 2, and learning rate 2e-5.

    Command: `raytriever train --recipe xlmr-base --dataset DATA --output runs/xlmr-base`

    Needs: 25 GB of GPU memory for one worker, at full lengths. It stores 278,043,648 parameters with gradient and two
    moments, 16 bytes each: 4.4 GB. A step has 32 x (64 + 6 x 256) = 51,200 tokens. Each token keeps 42 bytes x 768
    components x 12 blocks: 19.8 GB. The blocks' weights in bf16: 0.2 GB. The paper used two A100 (`--num-workers 2`),
    half of the 19.8 GB on each. With `--activation-checkpointing` the 19.8 GB become 3.5 GB.

    Paper, Table 1, MW: AUC / MRR / nDCG of .84 / .37 / .45 (NLI), .87 / .36 / .45 (NQ), .86 / .36 / .45 (SQuAD),
    .84 / .37 / .45 (MS MARCO).

    The learning rate is ours; the paper gives one for MiniLM only."""
    return auc_paper("FacebookAI/xlm-roberta-base", batch_size=32, learning_rate=2e-5)


def xlmr_large() -> Config:
    """Return the settings for `FacebookAI/xlm-roberta-large`: batch 16, as in Tables 1 and 2, and learning rate 1e-5.

    Command: `raytriever train --recipe xlmr-large --dataset DATA --output runs/xlmr-large`

    Needs: 36 GB of GPU memory for one worker, at full lengths. It stores 559,890,432 parameters with gradient and two
    moments, 16 bytes each: 9.0 GB. A step has 16 x (64 + 6 x 256) = 25,600 tokens. Each token keeps 42 bytes x 1024
    components x 24 blocks: 26.4 GB. The blocks' weights in bf16: 0.6 GB. The paper used two A100 (`--num-workers 2`),
    half of the 26.4 GB on each. With `--activation-checkpointing` the 26.4 GB become 3.6 GB.

    Paper, Table 1, MW: AUC / MRR / nDCG of .88 / .39 / .47 (NLI), .89 / .37 / .46 (NQ), .92 / .41 / .50 (SQuAD),
    .87 / .39 / .47 (MS MARCO).

    The learning rate is ours; the paper gives one for MiniLM only."""
    return auc_paper("FacebookAI/xlm-roberta-large", batch_size=16, learning_rate=1e-5)
