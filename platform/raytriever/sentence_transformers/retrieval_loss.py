"""Base class of the losses for sentence-transformers, and the regulariser.

A loss embeds the columns of a batch and calls the loss of raytriever's own training on the embeddings. With
`mini_batch_size`, the library's `CachedLossMixin` embeds the batch in mini-batches, twice; value and gradients are the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar

import torch
from sentence_transformers.base.losses.gradcache import CachedLossMixin, has_static_embedding_input
from sentence_transformers.base.losses.merged_forward import embed_columns
from sentence_transformers.util import cos_sim, dot_score
from torch import Tensor, nn
from torch.nn import functional
from transformers.utils import logging

from raytriever.errors import ConfigError, DataError, render
from raytriever.losses.batch import BatchIds
from raytriever.losses.config import LossConfig
from raytriever.losses.distributed import ALONE, current_workers
from raytriever.losses.loss import Loss
from raytriever.losses.registry import build_loss
from raytriever.sentence_transformers.batch import find_ids

# BibTeX entries of the papers of the losses, for the model card that sentence-transformers writes.
MANN_WHITNEY = """
@misc{optimizing-what-matters,
    title={Optimizing What Matters: {AUC}-Driven Learning for Robust Neural Retrieval},
    author={Anonymous},
    note={Under double-blind review}
}
"""

INFONCE = """
@misc{oord2019representationlearningcontrastivepredictive,
    title={Representation Learning with Contrastive Predictive Coding},
    author={Aaron van den Oord and Yazhe Li and Oriol Vinyals},
    year={2019},
    eprint={1807.03748},
    archivePrefix={arXiv},
    primaryClass={cs.LG}
}
"""

MULTI_POSITIVE = """
@misc{multiple-positive-passages,
    title={Training Dense Retrievers with Multiple Positive Passages},
    author={Benben Wang and Minghao Tang and Hengran Zhang and Jiafeng Guo and Keping Bi}
}
"""

TRIPLET = """
@misc{schroff2015facenet,
    title={{FaceNet}: A Unified Embedding for Face Recognition and Clustering},
    author={Florian Schroff and Dmitry Kalenichenko and James Philbin},
    year={2015},
    eprint={1503.03832},
    archivePrefix={arXiv},
    primaryClass={cs.CV}
}
"""

KL = """
@misc{santhanam2022colbertv2,
    title={{ColBERTv2}: Effective and Efficient Retrieval via Lightweight Late Interaction},
    author={Keshav Santhanam and Omar Khattab and Jon Saad-Falcon and Christopher Potts and Matei Zaharia},
    year={2022},
    eprint={2112.01488},
    archivePrefix={arXiv},
    primaryClass={cs.IR}
}
"""

MARGIN_MSE = """
@misc{hofstätter2021improving,
    title={Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge Distillation},
    author={Sebastian Hofstätter and Sophia Althammer and Michael Schröder and Mete Sertkan and Allan Hanbury},
    year={2021},
    eprint={2010.02666},
    archivePrefix={arXiv},
    primaryClass={cs.IR}
}
"""

DISTRIBUTION = """
@misc{bao-out-of-distribution,
    title={Alleviating Performance Degradation Caused by Out-of-Distribution Issues in Embedding-Based Retrieval},
    author={Haotong Bao and Jianjin Zhang and Qi Chen and Weihao Han and Zhengxin Zeng and Ruiheng Chang and
            Mingzheng Li and Hao Sun and Weiwei Deng and Feng Sun and Qi Zhang}
}
"""

GRADCACHE = """
@misc{gao2021scaling,
    title={Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup},
    author={Luyu Gao and Yunyi Zhang and Jiawei Han and Jamie Callan},
    year={2021},
    eprint={2101.06983},
    archivePrefix={arXiv},
    primaryClass={cs.LG}
}
"""


logger = logging.get_logger(__name__)
_CACHING = ("mini_batch_size", "mini_batch_num_tokens", "show_progress_bar")
_CONSTANTS = ("temperature", "margin", "reduction", "teacher_temperature", "loss_weights")
_SIMILARITIES = {"cosine": cos_sim, "dot": dot_score}


@dataclass(eq=False, repr=False)
class RetrievalLoss(CachedLossMixin, nn.Module):
    """Loss over the score matrix of a batch, for the columns (anchor, positives, negatives) in the data set's order.

    Args:
        model: a `SentenceTransformer`.
        num_positives: number of columns of positives, after that of the anchors; all other columns are negatives. A row
            with fewer positives repeats one of them.
        similarity_fct: `util.cos_sim` or `util.dot_score`; by default the similarity of the model.
        gather_across_devices: compare with the documents of all devices. Gradients are then those of one process with
            the whole batch, after the average of DDP.
        ids_in_labels: the label column has the ids of the documents, one for each column of documents: whole numbers
            from 0. Without it, texts with equal tokens are one document.
        mini_batch_size: number of texts that are embedded at once, with gradient caching (Gao et al., 2021): the memory
            of a mini-batch, and the negatives of the whole batch.
        mini_batch_num_tokens: number of tokens that are embedded at once, instead of `mini_batch_size`.
        show_progress_bar: show the mini-batches.
    """

    model: Any
    _: KW_ONLY
    num_positives: int = 1
    similarity_fct: Callable[[Tensor, Tensor], Tensor] | None = None
    gather_across_devices: bool = False
    ids_in_labels: bool = False
    mini_batch_size: int | None = None
    mini_batch_num_tokens: int | None = None
    show_progress_bar: bool = False

    loss_name: ClassVar[str]
    paper: ClassVar[str]
    # Set by `DistributionRegularizer`.
    distribution_weight: ClassVar[float] = 0.0

    def __new__(cls, *_: Any, **__: Any) -> Any:
        """Initialise the module: the constructor of a dataclass can assign a model to it only afterwards."""
        module = super().__new__(cls)
        nn.Module.__init__(module)
        return module

    def __post_init__(self) -> None:
        if self.num_positives < 1:
            raise ConfigError(f"{self.num_positives} is out of range", self._where("num_positives"), "give at least 1")
        if self.similarity_fct is None:
            self.similarity_fct = _SIMILARITIES.get(self.model.similarity_fn_name)
        if self.similarity_fct not in _SIMILARITIES.values():
            what = "neither cos_sim nor dot_score"
            raise ConfigError(what, self._where("similarity_fct"), "give one of sentence_transformers.util")
        sizes = {name: getattr(self, name) for name in ("mini_batch_size", "mini_batch_num_tokens")}
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ConfigError(f"{size} is out of range", self._where(name), "give at least 1")
        self.uses_gradient_cache = any(size is not None for size in sizes.values())
        if self.uses_gradient_cache and has_static_embedding_input(self.model):
            remedy = f"use {type(self).__name__} without mini_batch_size"
            raise ConfigError("a StaticEmbedding cannot be cut into mini-batches", self._where("model"), remedy)
        self._built = self._settings(), [self._build()]

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        """Return the loss of a batch. With gradient caching, its backward pass embeds the batch again.

        Raises:
            DataError: columns or labels do not fit the loss.
            LossInputError: an embedding is not finite.
        """
        columns = list(sentence_features)
        ids = self._ids(columns, labels)
        if self.uses_gradient_cache:
            loss: Tensor = CachedLossMixin.forward_cached(self, columns, ids)
            return loss
        return self._compute(embed_columns(self.model, columns), ids)

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: BatchIds | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """Return the loss of the embeddings of the mini-batches of each column; `labels` are the ids of the batch."""
        value = self._compute([torch.cat(column) for column in reps], labels)
        if with_backward:
            value.backward()
            value = value.detach()
        return value

    @property
    def citation(self) -> str:
        """BibTeX entry of the loss, and of gradient caching if it is used."""
        return f"{self.paper}{GRADCACHE if self.uses_gradient_cache else ''}"

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings for the model card."""
        left_out = {"model"} if self.uses_gradient_cache else {"model", *_CACHING}
        settings = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out}
        return settings | {"similarity_fct": self.similarity_fct.__name__}  # type: ignore[union-attr]

    def _registered_name(self) -> str:
        return self.loss_name

    def _build(self) -> Loss:
        """Return the loss of raytriever's own training; raises `ConfigError` for a setting that is out of range."""
        settings = self._settings()
        try:
            return build_loss(settings, self.similarity_fct is cos_sim)
        except ConfigError as error:
            what, where, remedy = (text and render(text, lambda name, _: name) for text in error.args)
            raise ConfigError(what, self._where(where or ""), remedy) from error

    def _settings(self) -> LossConfig:
        constants = {field.name: getattr(self, field.name) for field in fields(self) if field.name in _CONSTANTS}
        return LossConfig(loss=self._registered_name(), distribution_weight=self.distribution_weight, **constants)

    def _teacher_scores(self, labels: Tensor | None, documents: int) -> Tensor | None:
        """Return a teacher's scores of the documents, for losses that learn from one."""
        return None

    def _where(self, argument: str) -> str:
        return f"{type(self).__name__}({argument})"

    def _ids(self, columns: list[dict[str, Tensor]], labels: Tensor | None) -> BatchIds | None:
        """Return the ids of the batch. Modules may change the features while they embed, so this comes first."""
        name, documents = type(self).__name__, len(columns) - 1
        if documents < self.num_positives:
            raise DataError(
                f"the data set has {len(columns)} text columns, and {name} reads an anchor and "
                f"{self.num_positives} positives",
                remedy="give columns in this order: anchor, positives, negatives; or change num_positives",
            )
        named = None
        if self.ids_in_labels:
            if labels is None or labels.ndim != 2 or labels.shape[1] != documents or labels.is_floating_point():
                raise DataError(
                    "the label column has no ids of the documents",
                    self._where("ids_in_labels"),
                    f"give {documents} whole numbers a row, one for each column of documents",
                )
            named = labels
        return find_ids(
            columns,
            self.num_positives,
            current_workers() if self.gather_across_devices else ALONE,
            next(value.device for value in columns[0].values() if isinstance(value, Tensor)),
            named,
            self._teacher_scores(labels, documents),
            both_ways=self._settings().both_ways,
            seed=getattr(self, "seed", 0),
        )

    def _compute(self, embeddings: list[Tensor], ids: BatchIds | None) -> Tensor:
        """Return the loss of the embeddings of each column; 0 for a batch without negatives."""
        if ids is None:
            logger.warning_once(f"{type(self).__name__}: a batch has no negatives, so its loss is 0.")
            return sum(each.sum() * 0 for each in embeddings)  # type: ignore[return-value]
        queries, passages = embeddings[0], torch.cat(embeddings[1:])
        with torch.autocast(queries.device.type, enabled=False):
            precise = torch.promote_types(queries.dtype, torch.float32)
            queries, passages = queries.to(precise), passages.to(precise)
            if self.similarity_fct is cos_sim:
                queries, passages = (functional.normalize(each, dim=-1) for each in (queries, passages))
            workers = current_workers() if self.gather_across_devices else ALONE
            if self._built[0] != (settings := self._settings()):  # such as those of `DistributionRegularizer`
                self._built = settings, [self._build()]
            [loss] = self._built[1]  # in a list, so that it is no part of this module
            value: Tensor = loss(queries, passages, ids, workers).value
        return value


class DistributionRegularizer(nn.Module):
    """Add the distribution regulariser to a loss of this module: queries stay near the documents of the batch.

        loss + weight * mean over anchors and distinct documents of ||q - d||^2

    It helps approximate search (*Alleviating performance degradation*, Eq. 3), and is the setting
    `distribution_weight`. In a `MatryoshkaLoss` every width has it.

    Args:
        loss: a loss of `raytriever.sentence_transformers`, with or without gradient caching.
        weight: lambda, above 0.
    """

    citation = DISTRIBUTION

    def __init__(self, loss: RetrievalLoss, weight: float) -> None:
        super().__init__()
        if not isinstance(loss, RetrievalLoss):
            raise ConfigError(
                f"{type(loss).__name__} is no loss of raytriever.sentence_transformers",
                "DistributionRegularizer(loss)",
                "give MannWhitneyLoss or another one, inside a MatryoshkaLoss if you want both",
            )
        if not 0 < weight < float("inf"):
            raise ConfigError(f"{weight!r} is out of range", "DistributionRegularizer(weight)", "give a number above 0")
        self.model, self.loss, self.weight = loss.model, loss, weight
        self.uses_gradient_cache = loss.uses_gradient_cache
        loss.distribution_weight = weight  # type: ignore[misc]

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        """Return the regularised loss of a batch; see `RetrievalLoss.forward`."""
        value: Tensor = self.loss(sentence_features, labels)
        return value

    @property
    def calculate_loss(self) -> Callable[..., Tensor]:
        """Function of the cached loss that `MatryoshkaLoss` replaces."""
        function: Callable[..., Tensor] = self.loss.calculate_loss
        return function

    @calculate_loss.setter
    def calculate_loss(self, function: Callable[..., Tensor]) -> None:
        self.loss.calculate_loss = function  # type: ignore[method-assign]

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings for the model card."""
        return {"loss": type(self.loss).__name__, "weight": self.weight}
