"""What makes training on a CPU cheaper: an attention and a dropout of our own in place of transformers' and torch's."""

from __future__ import annotations

from torch import nn

from raytriever.models.attention import use_cpu_attention
from raytriever.models.dropout import Dropout
from raytriever.models.retriever import Retriever


def train_on_cpu(retriever: Retriever) -> None:
    """Give every tower the attention and the dropout that are fast on a CPU, in place; parameters stay as they are."""
    for tower in {retriever.query, retriever.passage}:
        use_cpu_attention(tower.backbone)
    for name, part in list(retriever.named_modules()):
        if type(part) is nn.Dropout:
            retriever.set_submodule(name, Dropout(part.p).train(part.training))
