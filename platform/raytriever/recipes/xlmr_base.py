"""XLM-RoBERTa-Base with the settings of the AUC paper: batch 32, as in its Tables 1 and 2.

Command: `raytriever train --recipe xlmr-base --dataset DATA --output runs/xlmr-base`

Needs: 25 GB of GPU memory for one worker, at full lengths. 278,043,648 parameters in float32 with gradient and two
moments, 16 bytes each: 4.4 GB. A step of 32 x (64 + 6 x 256) = 51,200 tokens, each of which keeps 42 bytes x 768
components x 12 blocks: 19.8 GB. The blocks' weights in bf16: 0.2 GB. The paper used two A100 (`--num-workers 2`),
half of the 19.8 GB on each. With `--activation-checkpointing` the 19.8 GB become 3.5 GB.

Paper, Table 1, MW: AUC / MRR / nDCG of .84 / .37 / .45 (NLI), .87 / .36 / .45 (NQ), .86 / .36 / .45 (SQuAD),
.84 / .37 / .45 (MS MARCO).

The learning rate is ours; the paper gives one for MiniLM only.
"""

from __future__ import annotations

from raytriever.config import Config
from raytriever.recipes.auc_paper import auc_paper


def xlmr_base() -> Config:
    """Return the settings of `FacebookAI/xlm-roberta-base`: batch 32, learning rate 2e-5."""
    return auc_paper("FacebookAI/xlm-roberta-base", batch_size=32, learning_rate=2e-5)
