"""One tower: a transformer, a pooling, a cut if one is asked for, and normalisation where the similarity is cosine."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from raytriever.errors import ModelError
from raytriever.models.lora import DROPOUT
from raytriever.models.pooling import POOLING
from raytriever.models.quiet import quiet_transformers

TokenBatch = dict[str, Tensor]


class Encoder(nn.Module):
    """Tokens to embeddings `[texts, width]`, float32.

    Args:
        backbone: a transformers model that answers with `last_hidden_state`.
        pooling: `mean`, `cls` or `last`.
        normalise: scale every embedding to length one, so that a dot product is the cosine.
        truncate_dim: how many first components are kept, before that; None for all.
    """

    def __init__(self, backbone: nn.Module, pooling: str, normalise: bool, truncate_dim: int | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = pooling
        self.normalise = normalise
        self.truncate_dim = truncate_dim
        # A pooler head receives no gradient here; left trainable it would break DDP, dropped it would leave a
        # directory that AutoModel completes with random weights.
        pooler = getattr(backbone, "pooler", None)
        if isinstance(pooler, nn.Module):
            pooler.requires_grad_(False)

    def forward(self, tokens: TokenBatch) -> Float[Tensor, "texts width"]:
        """Encode one padded batch of `input_ids` and `attention_mask` (and `token_type_ids` where used)."""
        return self.embed(self.backbone(**tokens).last_hidden_state, tokens["attention_mask"])

    def embed(
        self, states: Float[Tensor, "texts tokens hidden"], mask: Int64[Tensor, "texts tokens"]
    ) -> Float[Tensor, "texts width"]:
        """Embeddings out of the last states of the tokens."""
        pooled = POOLING[self.pooling](states, mask)
        if self.truncate_dim is not None:
            pooled = pooled[:, : self.truncate_dim]
        return nn.functional.normalize(pooled, dim=-1) if self.normalise else pooled


def load_backbone(directory: Path) -> nn.Module:
    """A transformers model from a local directory, safetensors only, never with the repository's own code."""
    from safetensors import SafetensorError
    from transformers import AutoModel

    try:
        with quiet_transformers():
            model: nn.Module = AutoModel.from_pretrained(
                directory,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
            )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"cannot be loaded ({reason})",
            str(directory),
            "name a directory with config.json and model.safetensors",
        ) from error
    return model


def set_dropout(module: nn.Module, probability: float) -> None:
    """Give every dropout of a transformer the same probability, its attention's included; adapters keep theirs."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Dropout) and DROPOUT not in name.split("."):
            part.p = probability
