"""The losses of raytriever for `SentenceTransformerTrainer`.

`RetrievalLoss` explains the arguments that all losses have, such as `mini_batch_size` for gradient caching.
`docs/reference/losses.md` has the equations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from raytriever.errors import ConfigError, DataError
from raytriever.losses.loss import Loss
from raytriever.sentence_transformers.retrieval_loss import (
    INFONCE,
    KL,
    MANN_WHITNEY,
    MARGIN_MSE,
    MULTI_POSITIVE,
    TRIPLET,
    RetrievalLoss,
    logger,
)

_VARIANTS = ("maxp", "maxn", "minp", "minp-maxn")


@dataclass(eq=False, repr=False)
class MannWhitneyLoss(RetrievalLoss):
    """Mann-Whitney (MW) loss: every positive of the batch against every negative of the batch, across anchors.

    It bounds the pooled AUC: scores of different anchors become comparable, and one threshold can serve all of them.

    Args:
        temperature: tau, by which scores are divided.
        reduction: mean over pairs, or their sum divided by the number of anchors.
    """

    loss_name: ClassVar[str] = "mw"
    paper: ClassVar[str] = MANN_WHITNEY
    temperature: float = 0.01
    reduction: Literal["mean", "sum"] = "mean"


@dataclass(eq=False, repr=False)
class InfoNCELoss(RetrievalLoss):
    """InfoNCE: the first positive of an anchor against all its negatives; the library's MultipleNegativesRankingLoss.

    Args:
        temperature: tau, by which scores are divided.
    """

    loss_name: ClassVar[str] = "infonce"
    paper: ClassVar[str] = INFONCE
    temperature: float = 0.01


@dataclass(eq=False, repr=False)
class SymmetricInfoNCELoss(RetrievalLoss):
    """Mean of InfoNCE from anchor to document and from document to anchor.

    Args:
        temperature: tau, by which scores are divided.
    """

    loss_name: ClassVar[str] = "infonce-symmetric"
    paper: ClassVar[str] = INFONCE
    temperature: float = 0.01


@dataclass(eq=False, repr=False)
class Rand1Loss(RetrievalLoss):
    """InfoNCE on one of the positives of an anchor, drawn again in every batch.

    Args:
        temperature: tau, by which scores are divided.
        seed: seed of the draws.
    """

    loss_name: ClassVar[str] = "rand1"
    paper: ClassVar[str] = MULTI_POSITIVE
    temperature: float = 0.01
    seed: int = 0


@dataclass(eq=False, repr=False)
class JointLikelihoodLoss(RetrievalLoss):
    """Joint likelihood of all positives of an anchor: the mean of their negative log probabilities.

    Args:
        temperature: tau, by which scores are divided.
    """

    loss_name: ClassVar[str] = "joint"
    paper: ClassVar[str] = MULTI_POSITIVE
    temperature: float = 0.01


@dataclass(eq=False, repr=False)
class SumMarginalLoss(RetrievalLoss):
    """Marginal likelihood of the positives of an anchor: the negative log of the sum of their probabilities.

    Args:
        temperature: tau, by which scores are divided.
    """

    loss_name: ClassVar[str] = "summarg"
    paper: ClassVar[str] = MULTI_POSITIVE
    temperature: float = 0.01


@dataclass(eq=False, repr=False)
class LSEPairLoss(RetrievalLoss):
    """Log-sum-exp over all pairs of a positive and a negative of an anchor.

    Args:
        temperature: tau, by which scores are divided.
        variant: None for all positives and negatives; `maxp` or `minp` for the highest or lowest positive; `maxn` for
            the highest negative; `minp-maxn` for the lowest positive and the highest negative.
    """

    loss_name: ClassVar[str] = "lsepair"
    paper: ClassVar[str] = MULTI_POSITIVE
    temperature: float = 0.01
    variant: Literal["maxp", "maxn", "minp", "minp-maxn"] | None = None

    def _registered_name(self) -> str:
        if self.variant is None:
            return self.loss_name
        if self.variant not in _VARIANTS:
            raise ConfigError(f"{self.variant!r} is unknown", self._where("variant"), f"give {', '.join(_VARIANTS)}")
        return f"{self.loss_name}-{self.variant}"


@dataclass(eq=False, repr=False)
class TripletMarginLoss(RetrievalLoss):
    """Hinge over all pairs of a positive and a negative of an anchor, in-batch negatives included.

    Args:
        margin: a positive should score this much above a negative.
    """

    loss_name: ClassVar[str] = "triplet"
    paper: ClassVar[str] = TRIPLET
    margin: float = 0.1


@dataclass(eq=False, repr=False)
class WeightedSumLoss(RetrievalLoss):
    """Weighted sum of losses over one score matrix, such as MW, which compares anchors, and InfoNCE, which ranks.

    Args:
        loss: names of `raytriever train --loss`, joined by plus signs. Losses of a teacher's scores are refused.
        loss_weights: weight of each loss, separated by commas; 1 each by default.
        temperature: tau, by which scores are divided.
        margin: margin of `triplet`.
        reduction: reduction of `mw`.
    """

    loss: str = "mw+infonce"
    loss_weights: str | None = None
    temperature: float = 0.01
    margin: float = 0.1
    reduction: Literal["mean", "sum"] = "mean"

    @property
    def paper(self) -> str:  # type: ignore[override]
        """BibTeX entries of the losses."""
        papers = {each.loss_name: each.paper for each in _WITHOUT_TEACHER}
        return "".join(dict.fromkeys(papers.get(name, MULTI_POSITIVE) for name in self._settings().terms))

    def _registered_name(self) -> str:
        return self.loss

    def _build(self) -> Loss:
        if self._settings().needs_teacher:
            raise ConfigError("a loss learns a teacher's scores", self._where("loss"), "leave it out")
        return super()._build()


_WITHOUT_TEACHER = (MannWhitneyLoss, InfoNCELoss, SymmetricInfoNCELoss, TripletMarginLoss)


@dataclass(eq=False, repr=False)
class _TeacherLoss(RetrievalLoss):
    """Loss whose label column has a teacher's scores of the documents, one for each column of documents.

    A document whose score is NaN is left out, and a line says so once.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ids_in_labels:
            raise ConfigError("the labels are the teacher's scores", self._where("ids_in_labels"), "leave it out")

    def _teacher_scores(self, labels: Tensor | None, documents: int) -> Tensor:
        name = type(self).__name__
        if documents < 2:
            raise DataError(
                f"the data set has one column of documents, and {name} compares the documents of a row, so it would "
                "train nothing",
                remedy="give columns in this order: anchor, positive, negatives; and a score for each document",
            )
        if labels is None or labels.ndim != 2 or labels.shape[1] != documents:
            shape = "no label column" if labels is None else f"labels of shape {tuple(labels.shape)}"
            raise DataError(
                f"{shape}, and {name} reads a teacher's scores",
                remedy=f"give a label column with {documents} scores a row, one for each column of documents",
            )
        if not (is_finite := labels.isfinite()).all():
            if not is_finite.any():
                remedy = "correct the label column; a document without a score has NaN"
                raise DataError(f"all labels are NaN or infinite, so {name} would train nothing", remedy=remedy)
            if labels.isinf().any():
                raise DataError(f"a label of {name} is infinite", remedy="give finite scores")
            logger.warning_once(f"{name}: labels have NaN. Documents without a score are left out of the loss.")
        return labels.to(torch.promote_types(labels.dtype, torch.float32))


@dataclass(eq=False, repr=False)
class KLLoss(_TeacherLoss):
    """KL divergence from the teacher's distribution over an anchor's own documents. The labels are its scores.

    With dot products, the library's `DistillKLDivLoss(temperature=t)` is t² times this loss with both temperatures t.

    Args:
        temperature: tau, by which scores are divided.
        teacher_temperature: by which the teacher's scores are divided.
    """

    loss_name: ClassVar[str] = "kl"
    paper: ClassVar[str] = KL
    temperature: float = 0.01
    teacher_temperature: float = 1.0


@dataclass(eq=False, repr=False)
class MarginMSELoss(_TeacherLoss):
    """Squared difference between the model's and the teacher's margins of an anchor's own pairs.

    The labels are the teacher's scores of all documents, or, with one column of positives, their margins above each
    column of negatives, as for the library's loss of this name.

    Args:
        temperature: tau, by which scores are divided; 1 with dot products is the loss of the paper.
        teacher_temperature: by which the teacher's scores are divided.
    """

    loss_name: ClassVar[str] = "margin-mse"
    paper: ClassVar[str] = MARGIN_MSE
    temperature: float = 0.01
    teacher_temperature: float = 1.0

    def _teacher_scores(self, labels: Tensor | None, documents: int) -> Tensor:
        if documents == self.num_positives > 1:
            raise DataError(
                f"all {documents} columns of documents are positives, and MarginMSELoss learns margins above negatives",
                remedy="add columns of negatives, or change num_positives",
            )
        if labels is not None and self.num_positives == 1:
            margins = labels[:, None] if labels.ndim == 1 else labels
            if margins.ndim == 2 and margins.shape[1] == documents - 1:
                labels = torch.cat([torch.zeros_like(margins[:, :1]), -margins], 1)
        return super()._teacher_scores(labels, documents)
