"""XLM-RoBERTa-Large with the settings of the AUC paper: batch 16, as in its Tables 1 and 2.

Command: `raytriever train --recipe xlmr-large --dataset DATA --output runs/xlmr-large`

Needs: 36 GB of GPU memory for one worker, at full lengths. 559,890,432 parameters in float32 with gradient and two
moments, 16 bytes each: 9.0 GB. A step of 16 x (64 + 6 x 256) = 25,600 tokens, each of which keeps 42 bytes x 1024
components x 24 blocks: 26.4 GB. The blocks' weights in bf16: 0.6 GB. The paper used two A100 (`--num-workers 2`),
half of the 26.4 GB on each. With `--activation-checkpointing` the 26.4 GB become 3.6 GB.

Paper, Table 1, MW: AUC / MRR / nDCG of .88 / .39 / .47 (NLI), .89 / .37 / .46 (NQ), .92 / .41 / .50 (SQuAD),
.87 / .39 / .47 (MS MARCO).

The learning rate is ours; the paper gives one for MiniLM only.
"""

from __future__ import annotations

from raytriever.config import Config
from raytriever.recipes.auc_paper import auc_paper


def xlmr_large() -> Config:
    """Return the settings of `FacebookAI/xlm-roberta-large`: batch 16, learning rate 1e-5."""
    return auc_paper("FacebookAI/xlm-roberta-large", batch_size=16, learning_rate=1e-5)
