"""Losses of raytriever for `SentenceTransformerTrainer`.

A loss embeds the columns of a batch, and computes the same loss as raytriever's own training. With `mini_batch_size`,
`CachedLossMixin` of sentence-transformers embeds the batch twice, in mini-batches. Value and gradients do not change.
`docs/reference/losses.md` has the equations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from sentence_transformers.base.losses.gradcache import CachedLossMixin, has_static_embedding_input
from sentence_transformers.base.losses.merged_forward import embed_columns
from sentence_transformers.util import cos_sim, dot_score
from torch import Tensor, nn
from torch.nn import functional
from transformers.utils import logging

from raytriever.core.errors import ConfigError, DataError
from raytriever.core.setting_declarations import check_changed
from raytriever.losses.batch_and_temperature import RowRelevance
from raytriever.losses.build_loss import build_loss
from raytriever.losses.distributed import ALONE, current_workers
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.named_losses import GRADED_LOSSES, LOSSES, Paper
from raytriever.sentence_transformers.text_relevance import batch_relevance

logger = logging.get_logger(__name__)
_SIMILARITIES = {"cosine": cos_sim, "dot": dot_score}
_CACHING = ("mini_batch_size", "mini_batch_num_tokens", "show_progress_bar")
_DISTRIBUTION = Paper(
    "Alleviating Performance Degradation Caused by Out-of-Distribution Issues in Embedding-Based Retrieval",
    "Haotong Bao and others",
)
_GRADIENT_CACHING = Paper(
    "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup",
    "Luyu Gao and Yunyi Zhang and Jiawei Han and Jamie Callan",
    "2101.06983",
)


def _average(gradient: Tensor) -> Tensor:
    """Average a gradient of the loss's own parameter over the devices. DDP does not do this for the parameter."""
    workers = current_workers()
    return workers.all_reduce(gradient) / workers.size


class RetrievalLoss(CachedLossMixin, nn.Module):
    """Loss over the score matrix of a batch. The columns of the data set must be anchor, positives, negatives.

    Args:
        model: a `SentenceTransformer`.
        loss: name of a loss of `raytriever train --loss`, such as `lsepair`; a sum such as `mw+infonce`; or
            `FILE.py:NAME`.
        temperature: tau. Scores are divided by it; `triplet` does not use it.
        margin: margin of `triplet`: a positive should score this much above a negative.
        reduction: reduction of `mw`: the mean over pairs, or their sum divided by the number of anchors.
        threshold: score at which `bce` gives the probability 1/2 when training starts. The threshold is trained: its
            offset is `bias`, a parameter of this module.
        positive_weight: weight of a positive pair in `bce`; a negative pair has weight 1.
        loss_weights: weight of each loss of a sum, such as `1,0.3`.
        teacher_temperature: temperature of the teacher in `kl` and `margin-mse`; its scores are divided by it.
        distribution_weight: weight of the distribution regularizer, the mean of ||q - d||^2 over anchors and distinct
            documents. It keeps queries near the documents of the batch. A `MatryoshkaLoss` applies it to every
            dimension.
        seed: seed of the sampling of `rand1`.
        num_positives: number of columns of positives. They follow the anchors; all other columns are negatives. A row
            with fewer positives must repeat one of them.
        similarity_fct: `util.cos_sim` or `util.dot_score`; by default the similarity of the model.
        gather_across_devices: compare with the documents of all devices. Then the averaged gradients of DDP equal
            those of one process with the whole batch.
        ids_in_labels: the label column has an id (a whole number from 0) for each column of documents. By default,
            texts with equal tokens are one document.
        mini_batch_size: number of texts to embed at once, with gradient caching (Gao et al., 2021). This needs only
            the memory of a mini-batch, but uses the negatives of the whole batch.
        mini_batch_num_tokens: number of tokens to embed at once, instead of `mini_batch_size`.
        show_progress_bar: show a progress bar of the mini-batches.

    For `kl` and `margin-mse`, the label column has a teacher's score for each column of documents; NaN means no score.
    With one column of positives, `margin-mse` also accepts the teacher's margin between the positive and each negative,
    like `MarginMSELoss` of sentence-transformers.

    For `bce` and `cosent`, the label column may have graded relevance, 0 to 1: a number, or one for each column of
    documents; NaN means no label. Without a label, positives have 1. All other pairs of the batch have 0.

    Raises:
        ConfigError: an argument is out of range, or has no effect with the loss.
    """

    def __init__(
        self,
        model: Any,
        loss: str = "mw",
        *,
        temperature: float = 0.01,
        margin: float = 0.1,
        reduction: Literal["mean", "sum"] = "mean",
        threshold: float = LossConfig.threshold,
        positive_weight: float = 1.0,
        loss_weights: str | None = None,
        teacher_temperature: float = 1.0,
        distribution_weight: float = 0.0,
        seed: int = 0,
        num_positives: int = 1,
        similarity_fct: Callable[[Tensor, Tensor], Tensor] | None = None,
        gather_across_devices: bool = False,
        ids_in_labels: bool = False,
        mini_batch_size: int | None = None,
        mini_batch_num_tokens: int | None = None,
        show_progress_bar: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.settings = LossConfig(
            loss,
            temperature=temperature,
            margin=margin,
            reduction=reduction,
            threshold=threshold,
            positive_weight=positive_weight,
            loss_weights=loss_weights,
            teacher_temperature=teacher_temperature,
            distribution_weight=distribution_weight,
        )
        self.seed, self.num_positives, self.ids_in_labels = seed, num_positives, ids_in_labels
        self.similarity_fct = similarity_fct or _SIMILARITIES.get(model.similarity_fn_name)
        self.gather_across_devices = gather_across_devices
        self.mini_batch_size: Any = mini_batch_size
        self.mini_batch_num_tokens, self.show_progress_bar = mini_batch_num_tokens, show_progress_bar
        self.uses_gradient_cache = mini_batch_size is not None or mini_batch_num_tokens is not None
        for name in ("num_positives", "mini_batch_size", "mini_batch_num_tokens"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ConfigError(f"{number} is out of range", self._where(name), "give at least 1")
        if self.similarity_fct not in _SIMILARITIES.values():
            what = "is neither cos_sim nor dot_score"
            raise ConfigError(what, self._where("similarity_fct"), "give util.cos_sim or util.dot_score")
        if self.uses_gradient_cache and has_static_embedding_input(model):
            remedy = f"use {type(self).__name__} without mini_batch_size"
            raise ConfigError("a StaticEmbedding cannot use mini-batches", self._where("model"), remedy)
        try:
            built = build_loss(self.settings, self.similarity_fct is cos_sim)
            check_changed(self.settings)
        except ConfigError as error:
            raise error.at(self._where(error.where or "")) from error
        self._loss = (built,)  # a tuple hides the submodule: a cast would round its temperature
        self.bias: nn.Parameter | None = getattr(built, "bias", None)
        if self.bias is not None:
            self.bias.register_hook(_average)
        if ids_in_labels and self.settings.needs_teacher:
            raise ConfigError("the labels are teacher scores, not ids", self._where("ids_in_labels"), "leave it out")

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        """Return the loss of a batch. With gradient caching, its backward pass embeds the batch again.

        Raises:
            DataError: columns or labels do not fit the loss.
            LossInputError: an embedding is not finite.
        """
        columns = list(sentence_features)
        relevance = self._relevance(columns, labels)
        if self.uses_gradient_cache:
            return self._cached(columns, relevance)
        return self._compute(embed_columns(self.model, columns), relevance)

    def _cached(self, columns: list[dict[str, Tensor]], relevance: RowRelevance | None) -> Tensor:
        """Return the loss with gradient caching. Like the model, the bias gets its gradient in the backward pass."""
        bias, before = self.bias, None
        if bias is not None:
            before, bias.grad = bias.grad, None
        loss: Tensor = CachedLossMixin.forward_cached(self, columns, relevance)
        if bias is not None:
            own, bias.grad = bias.grad, before
            if own is not None:
                loss = loss + ((bias - bias.detach()) * own).sum()
        return loss

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: RowRelevance | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """Return the loss of the embeddings of all columns, in mini-batches. `labels` is the relevance of the batch."""
        value = self._compute([torch.cat(column) for column in reps], labels)
        if with_backward:
            value.backward()
            value = value.detach()
        return value

    @property
    def citation(self) -> str:
        """BibTeX entries of the losses, and of the regularizer and gradient caching if these are used."""
        papers = {term: LOSSES[term].paper for term in self.settings.terms if term in LOSSES}
        papers |= {"distribution": _DISTRIBUTION} if self.settings.distribution_weight else {}
        papers |= {"caching": _GRADIENT_CACHING} if self.uses_gradient_cache else {}
        return "".join(paper.bibtex(key) for key, paper in papers.items())

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings for the model card, without settings of the loss that have their defaults."""
        changed = {name: value for name, value in vars(self.settings).items() if value != vars(LossConfig())[name]}
        temperature = {} if self.settings.loss == "triplet" else {"temperature": self.settings.temperature}
        names = ["num_positives", "gather_across_devices", "ids_in_labels", *(["seed"] if self.seed else [])]
        names += _CACHING if self.uses_gradient_cache else []
        settings = {"loss": self.settings.loss, **temperature, **changed, "similarity_fct": self._similarity}
        return settings | {name: getattr(self, name) for name in names}

    @property
    def _similarity(self) -> str:
        return "cos_sim" if self.similarity_fct is cos_sim else "dot_score"

    def _where(self, argument: str) -> str:
        return f"{type(self).__name__}({argument})"

    def _relevance(self, columns: list[dict[str, Tensor]], labels: Tensor | None) -> RowRelevance | None:
        """Return the relevance of the batch. Call this before embedding, which may change the features in place."""
        name, documents = type(self).__name__, len(columns) - 1
        if documents < self.num_positives:
            raise DataError(
                f"the data set has {len(columns)} text columns, but {name} needs an anchor column and "
                f"{self.num_positives} columns of positives",
                remedy="give columns in this order: anchor, positives, negatives; or change num_positives",
            )
        named = None
        if self.ids_in_labels:
            if labels is None or labels.ndim != 2 or labels.shape[1] != documents or labels.is_floating_point():
                raise DataError(
                    "the label column has no ids of the documents",
                    self._where("ids_in_labels"),
                    f"give {documents} whole numbers per row, one for each column of documents",
                )
            named = labels
        return batch_relevance(
            columns,
            self.num_positives,
            current_workers() if self.gather_across_devices else ALONE,
            next(value.device for value in columns[0].values() if isinstance(value, Tensor)),
            named,
            self._teacher_scores(labels, documents) if self.settings.needs_teacher else None,
            self._graded_relevance(labels, documents),
            symmetric=self.settings.symmetric,
            seed=self.seed,
        )

    def _teacher_scores(self, labels: Tensor | None, documents: int) -> Tensor:
        """Return the teacher scores in the label column. Raise `DataError` if nothing can be learned from them."""
        name, takes_margins = type(self).__name__, "margin-mse" in self.settings.terms
        if documents < 2:
            raise DataError(
                f"the data set has one column of documents, but {name} compares the documents of a row, so it would "
                "train nothing",
                remedy="give columns in this order: anchor, positive, negatives; and a score for each document",
            )
        if takes_margins and documents == self.num_positives:
            raise DataError(
                f"all {documents} columns of documents are positives, but {name} learns margins above negatives",
                remedy="add columns of negatives, or change num_positives",
            )
        if takes_margins and labels is not None and self.num_positives == 1:
            margins = labels[:, None] if labels.ndim == 1 else labels
            if margins.ndim == 2 and margins.shape[1] == documents - 1:
                labels = torch.cat([torch.zeros_like(margins[:, :1]), -margins], 1)
        if labels is None or labels.ndim != 2 or labels.shape[1] != documents:
            shape = "there is no label column" if labels is None else f"the labels have shape {tuple(labels.shape)}"
            raise DataError(
                f"{shape}, but {name} needs a teacher's scores",
                remedy=f"give a label column with {documents} scores per row, one for each column of documents",
            )
        if not (is_finite := labels.isfinite()).all():
            if not is_finite.any():
                remedy = "correct the label column: use NaN only for documents without a score"
                raise DataError(f"all labels are NaN or infinite, so {name} would train nothing", remedy=remedy)
            if labels.isinf().any():
                raise DataError(f"a label for {name} is infinite", remedy="give finite labels (the teacher's scores)")
            logger.warning_once(f"{name}: labels have NaN. Documents without a score are left out of the loss.")
        return labels.to(torch.promote_types(labels.dtype, torch.float32))

    def _graded_relevance(self, labels: Tensor | None, documents: int) -> Tensor | None:
        """Return the labels as graded relevance; None if there are no labels or the loss does not read them."""
        is_read = not (self.ids_in_labels or self.settings.needs_teacher)
        if labels is None or not is_read or set(GRADED_LOSSES).isdisjoint(self.settings.terms):
            return None
        name, table = type(self).__name__, labels[:, None] if labels.ndim == 1 else labels
        if table.ndim != 2 or table.shape[1] != documents:
            what = f"the labels have shape {tuple(labels.shape)}, but {name} needs graded relevance"
            raise DataError(what, remedy=f"give {documents} numbers per row, one for each column of documents")
        if (outside := table[(table < 0) | (table > 1)]).numel():
            what = f"a label for {name} is {outside[0].item():g}, not between 0 and 1"
            raise DataError(what, remedy="scale the labels to 0 to 1")
        if not (table > 0).any():
            logger.warning_once(f"{name}: all labels of a batch are 0, so none of its documents is relevant.")
        return table.to(torch.promote_types(table.dtype, torch.float32))

    def _compute(self, embeddings: list[Tensor], relevance: RowRelevance | None) -> Tensor:
        """Return the loss of the columns' embeddings. For a batch without negatives it is 0."""
        if relevance is None:
            logger.warning_once(f"{type(self).__name__}: a batch has no negatives, so its loss is 0.")
            return torch.stack([tensor.sum() * 0 for tensor in (*embeddings, *self.parameters(recurse=False))]).sum()
        queries, passages = embeddings[0], torch.cat(embeddings[1:])
        with torch.autocast(queries.device.type, enabled=False):
            precise = torch.promote_types(queries.dtype, torch.float32)
            queries, passages = queries.to(precise), passages.to(precise)
            if self.similarity_fct is cos_sim:
                queries, passages = (functional.normalize(embeddings, dim=-1) for embeddings in (queries, passages))
            workers = current_workers() if self.gather_across_devices else ALONE
            value: Tensor = self._loss[0](queries, passages, relevance, workers).value
        return value


class MannWhitneyLoss(RetrievalLoss):
    """Mann-Whitney (MW) loss: compare every positive of the batch with every negative, also those of other anchors.

    It bounds the pooled AUC. Scores of different anchors become comparable, so one threshold is enough for all.

    Args:
        model: a `SentenceTransformer`.
        temperature: tau; scores are divided by it.
        arguments: further arguments of `RetrievalLoss`.
    """

    def __init__(self, model: Any, temperature: float = 0.01, **arguments: Any) -> None:
        super().__init__(model, "mw", temperature=temperature, **arguments)


class InfoNCELoss(RetrievalLoss):
    """InfoNCE: an anchor's first positive against all its negatives, as in MultipleNegativesRankingLoss.

    Args:
        model: a `SentenceTransformer`.
        temperature: tau; scores are divided by it.
        arguments: further arguments of `RetrievalLoss`.
    """

    def __init__(self, model: Any, temperature: float = 0.01, **arguments: Any) -> None:
        super().__init__(model, "infonce", temperature=temperature, **arguments)


class MarginMSELoss(RetrievalLoss):
    """MarginMSE: squared difference between the margins of model and teacher, over the documents of an anchor's row.

    Args:
        model: a `SentenceTransformer`.
        temperature: tau; scores are divided by it. With tau = 1 and dot products, this is the loss of the paper.
        arguments: further arguments of `RetrievalLoss`.
    """

    def __init__(self, model: Any, temperature: float = 0.01, **arguments: Any) -> None:
        super().__init__(model, "margin-mse", temperature=temperature, **arguments)
