"""MiniLM with the settings of the AUC paper: batch 64, as in its Tables 1 and 2.

Command: `raytriever train --recipe minilm --dataset DATA --output runs/minilm`

Needs: 11 GB of GPU memory for one worker, at full lengths. 22,713,216 parameters in float32 with gradient and two
moments, 16 bytes each: 0.4 GB. A step of 64 x (64 + 6 x 256) = 102,400 tokens, each of which keeps 42 bytes x 384
components x 6 blocks: 9.9 GB. With `--activation-checkpointing` the 9.9 GB become 2.6 GB.

Paper, Table 1, MW: AUC / MRR / nDCG of .81 / .35 / .43 (NLI), .84 / .36 / .43 (NQ), .85 / .37 / .44 (SQuAD),
.81 / .34 / .43 (MS MARCO).

The encoder is part of the package, so the recipe runs offline. It has the size of the encoder in the paper, but is
already trained for retrieval. The paper starts from a language model without that training, such as
`--model nreimers/MiniLM-L6-H384-uncased`. The learning rate is that of the paper for batch 64, Tables 3 and 4.
"""

from __future__ import annotations

from raytriever.config import Config
from raytriever.recipes.auc_paper import auc_paper


def minilm() -> Config:
    """Return the settings of `minilm`: batch 64, learning rate 3e-5."""
    return auc_paper("minilm", batch_size=64, learning_rate=3e-5)
