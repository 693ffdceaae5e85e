"""The guide, a frozen encoder that masks false negatives. Also the texts of a batch, tokenized for the guide.

The guide's tokenizer, prompts, lengths and pooling come from its own files. Its weights are loaded separately, even if
training starts from the same model, and never change. Checkpoints store only their digest.

The tokens of a prepared data set are used if they were made with the guide's tokenizer and prompts. Otherwise the
loader's thread tokenizes the texts of each batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from raytriever.core.errors import ModelError, flag_of, setting
from raytriever.core.paths import MODEL
from raytriever.core.unknown_names import did_you_mean
from raytriever.data.combine_datasets import starts_of
from raytriever.data.dataset import RetrievalDataset
from raytriever.losses.false_negative_mask import MASKED, MOST_MASKED
from raytriever.models.inference import TOKEN_BUDGET
from raytriever.models.model_settings import ModelConfig
from raytriever.models.packing import Buckets, TokenBatch
from raytriever.models.prompts import SIDES, Side
from raytriever.models.retriever import Retriever
from raytriever.retrieval.encoding.encode_texts import encode_contents
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
from raytriever.retrieval.encoding.shard_encoder import SideTexts

NEARLY_ALL = 0.95  # a query is logged if at least this fraction of its negatives is masked


@dataclass(frozen=True)
class Guide:
    """Frozen encoder that masks false negatives, on the device of training."""

    name: str
    retriever: Retriever

    @classmethod
    def load(cls, name: str, precision: str, device: torch.device) -> Guide:
        """Load the model `name` as a guide."""
        with guide_errors(name):
            retriever = load_for_encoding(ModelConfig(model=name), precision, device)
        return cls(name, retriever.requires_grad_(False))

    def check(self) -> None:
        """Embed a test sentence as query and as passage. Raises `ModelError` if an embedding has NaN or infinity."""
        for side in SIDES:
            contents = self.retriever.contents(["What does the guide make of this sentence?"], side)
            if not np.isfinite(encode_contents(self.retriever, contents, side)).all():
                what = f"the embedding of a {side} holds NaN or infinity"
                remedy = f"check the model's weights, or give {setting('precision')} fp32"
                raise ModelError(what, setting("guide", self.name), remedy)

    @cached_property
    def digest(self) -> str:
        """Digest (16 hexadecimal digits) of the weights, the tokenizer and all settings that affect embeddings."""
        config = ModelConfig(model=self.name)
        weights = [self.retriever.digest(config, side) for side in SIDES]
        decides = json.dumps([weights, asdict(self.retriever.description)], sort_keys=True, default=str)
        return hashlib.sha256(decides.encode()).hexdigest()[:16]

    def encode(self, chunk: TokenBatch, side: Side) -> Tensor:
        """Return the embeddings of a chunk of a batch, in float32 and without gradient."""
        with torch.no_grad():
            return self.retriever.encode(chunk, side).float()


@contextmanager
def guide_errors(name: str) -> Iterator[None]:
    """Add the setting `guide` to a `ModelError` raised in the block, and suggest a similar model if there is one."""
    try:
        yield
    except ModelError as error:
        hint = did_you_mean(name, MODEL.names)
        where = name if error.where in (None, name) else f"{name} ({error.where})"
        what, _, remedy = error.args
        raise ModelError(what, setting("guide", where), hint if hint.startswith("did") else remedy) from error


class MaskingWatch:
    """Detector of queries for which the guide masks nearly all negatives. It logs the first such query of a run."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log, self._has_logged = log, False

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Check the metrics of `step` (the first step is 1)."""
        most = metrics.get(MOST_MASKED, 0.0)
        if most < NEARLY_ALL or self._has_logged:
            return
        self._has_logged = True
        self._log(
            f"Step {step}: the guide masks {most:.0%} of the negatives of a query ({metrics[MASKED]:.1%} of all). The "
            f"guide gives the query's positive a low similarity. Check such pairs, lower "
            f"{flag_of('guide_margin')}, or give another {flag_of('guide')}."
        )


class GuideTexts:
    """Texts of a data set, tokenized for the guide."""

    def __init__(self, guide: Retriever, dataset: RetrievalDataset) -> None:
        self._guide = guide
        query_starts, document_starts = starts_of(dataset)
        parts = getattr(dataset, "parts", ()) or (dataset,)
        self._starts: dict[Side, ndarray] = {"query": query_starts, "passage": document_starts}
        self._sides: dict[Side, list[SideTexts]] = {
            side: [SideTexts(dataset, side) for dataset in parts] for side in SIDES
        }

    def passes(self, queries: ndarray, passages: ndarray, chunk: int | None = None) -> list[tuple[Buckets, Side]]:
        """Return the queries and documents at these positions as inputs of the guide, in chunks.

        The guide keeps no activations, so it is fastest with the chunk size of inference, often less than `chunk`."""
        most = TOKEN_BUDGET[next(self._guide.parameters()).device.type]
        most = most if chunk is None else min(chunk, most)
        return [(self._buckets(queries, "query", most), "query"), (self._buckets(passages, "passage", most), "passage")]

    def _buckets(self, rows: ndarray, side: Side, most: int) -> Buckets:
        dataset_of = np.searchsorted(self._starts[side], rows, side="right") - 1
        contents, prompts = [rows] * len(rows), [""] * len(rows)
        for dataset in np.unique(dataset_of).tolist():
            slots = np.flatnonzero(dataset_of == dataset).tolist()
            own = (rows[slots] - self._starts[side][dataset]).tolist()
            tokens, prompt = self._sides[side][dataset].read(self._guide, own)
            by_text = [prompt] * len(slots) if isinstance(prompt, str) else prompt
            for slot, content, text_prompt in zip(slots, tokens, by_text, strict=True):
                contents[slot], prompts[slot] = content, text_prompt
        return self._guide.batch_of(contents, side, prompts, most)
