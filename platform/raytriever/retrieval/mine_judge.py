"""A cross-encoder that judges pairs of a query and a passage: query and passage read together, one score.

It is a transformers directory for sequence classification with one label, weights as safetensors only, never with
code of its own. As sentence-transformers does, its score goes through a sigmoid unless its configuration names the
identity; so margins mean there what they mean here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from numpy import ndarray

from raytriever.errors import ModelError
from raytriever.models.quiet import quiet_transformers
from raytriever.models.tokenisation import load_tokenizer

# Tokens of a batch, padding included.
_TOKENS = 8_192
_REMEDY = "name a directory with config.json and model.safetensors of a cross-encoder"


class CrossEncoder:
    """Scores pairs; higher is more relevant.

    Args:
        directory: of the model.
        device: where it runs.
        precision: `fp32` or `bf16`, of its weights.

    Raises:
        ModelError: nothing usable is there: no such directory, no safetensors, no trained head, several labels.
    """

    def __init__(self, directory: Path | str, device: torch.device, precision: str) -> None:
        from safetensors import SafetensorError
        from transformers import AutoModelForSequenceClassification

        directory = Path(directory).expanduser()
        if not (directory / "config.json").is_file():
            raise ModelError("holds no config.json", str(directory), _REMEDY)
        try:
            with quiet_transformers(warnings=False):
                model, told = AutoModelForSequenceClassification.from_pretrained(
                    directory,
                    local_files_only=True,
                    use_safetensors=True,
                    trust_remote_code=False,
                    dtype=torch.float32,
                    output_loading_info=True,
                )
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ModelError(f"cannot be loaded ({reason})", str(directory), _REMEDY) from error
        if told["missing_keys"]:
            # transformers would go on with random weights in their stead.
            missing = sorted(told["missing_keys"])[0]
            raise ModelError(f"has no trained weights for {missing}", str(directory), _REMEDY)
        if model.config.num_labels != 1:
            raise ModelError(
                f"tells {model.config.num_labels} labels apart", str(directory), "name a cross-encoder of one score"
            )
        self._tokenizer = load_tokenizer(directory)
        self._length = min(self._tokenizer.model_max_length, _positions(model.config))
        self._model = model.to(device, torch.bfloat16 if precision == "bf16" else torch.float32).eval()
        self._sigmoid = "Identity" not in _activation(model.config)

    def __call__(self, queries: Sequence[str], passages: Sequence[str]) -> Float32[ndarray, " pairs"]:
        """The score of each pair, in batches of like length; of a pair that is too long the longer text is cut."""
        tokens = self._tokenizer(list(queries), list(passages), truncation=True, max_length=self._length, padding=False)
        lengths = np.array([len(ids) for ids in tokens["input_ids"]])
        order = np.argsort(-lengths, kind="stable")
        scores = np.empty(len(order), dtype=np.float32)
        start = 0
        with torch.inference_mode():
            while start < len(order):
                rows = order[start : start + max(1, _TOKENS // int(lengths[order[start]]))]
                batch = self._tokenizer.pad(
                    {name: [column[row] for row in rows] for name, column in tokens.items()}, return_tensors="pt"
                )
                logits = self._model(**batch.to(self._model.device)).logits[:, 0].float()
                scores[rows] = (logits.sigmoid() if self._sigmoid else logits).cpu().numpy()
                start += len(rows)
        return scores


def _positions(config: Any) -> int:
    """How many tokens the model can tell the places of; RoBERTa's begin to count after the padding's."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return 512
    return int(positions) - (config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta") else 0)


def _activation(config: Any) -> str:
    """The activation that sentence-transformers wrote into a configuration, now or in its earlier versions."""
    told = getattr(config, "sentence_transformers", None) or {}
    return str(told.get("activation_fn") or getattr(config, "sbert_ce_default_activation_function", None) or "")
