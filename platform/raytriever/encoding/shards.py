"""Encoder of one shard of a store: read or make its tokens, encode them, commit the embeddings.

1. Prepared tokens are used if they are of this tokenizer and prefix; else the texts are tokenised.
2. Before each batch its number is written to a mark next to the shards. A process that dies leaves the mark, so the
   process that gets the shard next knows at which batch that was.
3. The texts of that batch are then tried one by one in a process of their own (`crashes`). A text that kills it twice
   more is left out; if no text does, the death was an accident, and the batch is encoded as usual.

A batch that kills `TRIES` processes although no single text of it does ends the work with one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.data.prepare.tokenisation import Tokenisation
from raytriever.encoding.crashes import LOADING, CrashRecord, find_fatal_texts
from raytriever.encoding.encode import batches, check_finite, encode_contents, token_budget
from raytriever.encoding.writer import WORK, StoreWriter
from raytriever.errors import ModelError
from raytriever.models.retriever import Retriever, Side
from raytriever.models.tokenisation import content_tokenizer_json

TRIES = 3


class SideTexts:
    """The texts and the contents of one side of a data set, by position."""

    def __init__(self, dataset: RetrievalDataset, side: Side) -> None:
        self.side = side
        self.name = dataset.name
        self.digest = dataset.documents.digest if side == "passage" else dataset.queries.digest
        self.texts: Sequence[str] = dataset.passages() if side == "passage" else dataset.queries.texts
        tokens = dataset.tokens
        self._tokens = None if tokens is None else tokens.documents if side == "passage" else tokens.queries
        self._tokenised = tokens.digest if tokens else None

    def contents(self, retriever: Retriever, rows: range) -> list[ndarray]:
        """Token ids of some rows, as prepared for this retriever, or made now."""
        if self._tokens is not None and self._tokenised == tokenisation_of(retriever).digest:
            return self._tokens.take(np.array(rows))
        return retriever.contents(self.texts[rows.start : rows.stop], self.side)


@dataclass
class ShardEncoder:
    """Encodes shards of a store; sent to the processes that do it, which load the encoder and open the data set.

    Args:
        work: the store.
        load: loads the encoder onto this process's device.
        place: where any process opens the data set; see `RetrievalDataset`.
        done: hears how many texts were encoded.
    """

    work: StoreWriter
    load: Callable[[], Retriever]
    place: str
    done: Callable[[int], None] | None = None

    @cached_property
    def retriever(self) -> Retriever:
        """Loaded when first asked for, which is behind the first mark."""
        return self.load()

    @cached_property
    def corpus(self) -> SideTexts:
        """Opened when first asked for."""
        return SideTexts(open_dataset(self.place, []), self.work.plan.side)

    def __call__(self, number: int) -> None:
        """Encode and commit one shard.

        Raises:
            ModelError: an embedding is not finite, or the encoder's process dies over and over.
        """
        plan = self.work.plan
        if self.work.is_whole(number):
            return  # by one who died before it could tell
        rows = plan.rows_of(number)
        mark = CrashRecord.of(self.work.path / WORK, number)
        with mark.at(LOADING):
            if mark.deaths.count(LOADING) >= TRIES:
                raise ModelError(f"{TRIES} processes died loading it", plan.model, "free some memory")
            contents = self.corpus.contents(self.retriever, rows)
            budget = plan.batch_tokens or token_budget(self.retriever)
            self._examine(mark, contents, budget, rows)
            try:
                embeddings = encode_contents(
                    self.retriever, contents, self.corpus.side, budget, mark.killers, mark.leave, self.done
                )
            except torch.OutOfMemoryError as error:
                raise ModelError(
                    f"{budget:,} tokens are too many for the GPU's memory", "--batch-tokens", "give fewer"
                ) from error
            check_finite(embeddings, self.corpus.side, lambda row: self.corpus.texts[row], rows.start)
            self.work.write(number, embeddings, {rows.start + row: why for row, why in mark.killers.items()})
        mark.remove()

    def _examine(self, mark: CrashRecord, contents: list[ndarray], budget: int, rows: range) -> None:
        """Find the texts that kill in the batches at which processes died."""
        side = self.corpus.side
        parts = batches([len(ids) for ids in self.retriever.assemble(contents, side)], budget)
        for batch in mark.unexamined(len(parts)):
            found = find_fatal_texts(self.load, [contents[row] for row in parts[batch]], side)
            mark.killers |= {parts[batch][place]: why for place, why in found.items()}
            mark.examined.append(batch)
        for batch in mark.examined:
            if mark.deaths.count(batch) >= TRIES:
                raise ModelError(
                    f"{TRIES} processes died over a batch of {len(parts[batch])} texts, none of which does it alone",
                    f"{self.corpus.name}, row {rows.start + min(parts[batch]) + 1} and others",
                    "lower --batch-tokens, or free memory",
                )


def encode_in_process(encoder: ShardEncoder, missing: Sequence[int], advance: Callable[[int], None]) -> None:
    """The runner that needs nothing."""
    encoder.done = advance
    for number in missing:
        encoder(number)


def tokenisation_of(retriever: Retriever) -> Tokenisation:
    """How data sets are tokenised for a retriever."""
    prefixes = retriever.description.query_prefix, retriever.description.passage_prefix
    return Tokenisation(content_tokenizer_json(retriever.tokenizer), *prefixes)
