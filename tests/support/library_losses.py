"""A batch of a trainer of sentence-transformers and its ids, and every loss with the settings of our own training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from directories import written
from sentence_transformers import SentenceTransformer
from tiny_models import text_of
from torch import Tensor, nn
from torch.nn import functional

import raytriever.sentence_transformers as library
from raytriever.losses.batch import BatchIds, TeacherScores
from raytriever.losses.config import LossConfig
from raytriever.losses.registry import build_loss

ROWS, POSITIVES, TEMPERATURE = 6, 2, 0.2
# Ids by hand: document 0 is a positive of row 0 and the negative of row 3, rows 1 and 4 have one anchor, row 2 repeats
# its only positive, and row 5 has a negative twice.
ANCHORS = [0, 1, 2, 3, 1, 5]
DOCUMENTS = [
    [0, 1, 2, 3, 4, 5],
    [6, 7, 2, 9, 10, 11],
    [12, 13, 14, 0, 16, 17],
    [18, 19, 20, 21, 22, 17],
]
TEACHER = torch.randn(ROWS, len(DOCUMENTS), generator=torch.Generator().manual_seed(7), dtype=torch.float64)
TEACHER[2, 1], TEACHER[5, 3] = TEACHER[2, 0], TEACHER[5, 2]


class Case(NamedTuple):
    """Class of a loss, its arguments, and the settings of the same loss in our own training."""

    name: str
    arguments: dict[str, Any]
    settings: dict[str, Any]


CASES = [
    Case("MannWhitneyLoss", {}, {"loss": "mw"}),
    Case("MannWhitneyLoss", {"reduction": "sum"}, {"loss": "mw", "reduction": "sum"}),
    Case("InfoNCELoss", {}, {"loss": "infonce"}),
    Case("SymmetricInfoNCELoss", {}, {"loss": "infonce-symmetric"}),
    Case("Rand1Loss", {"seed": 3}, {"loss": "rand1"}),
    Case("JointLikelihoodLoss", {}, {"loss": "joint"}),
    Case("SumMarginalLoss", {}, {"loss": "summarg"}),
    Case("LSEPairLoss", {}, {"loss": "lsepair"}),
    *(
        Case("LSEPairLoss", {"variant": variant}, {"loss": f"lsepair-{variant}"})
        for variant in ("maxp", "maxn", "minp", "minp-maxn")
    ),
    Case("TripletMarginLoss", {"margin": 0.3}, {"loss": "triplet", "margin": 0.3}),
    Case("WeightedSumLoss", {"loss_weights": "1,0.3"}, {"loss": "mw+infonce", "loss_weights": "1,0.3"}),
    Case("KLLoss", {"teacher_temperature": 0.7}, {"loss": "kl", "teacher_temperature": 0.7}),
    Case("MarginMSELoss", {"teacher_temperature": 0.7}, {"loss": "margin-mse", "teacher_temperature": 0.7}),
]


def write_model(folder: Path) -> None:
    """Write a tiny BERT with mean pooling."""
    written("bert", "mean", max_length=32)(folder)


def load(folder: Path) -> SentenceTransformer:
    """Return the model in double precision, without dropout."""
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True).double().eval()


def columns(model: SentenceTransformer, rows: slice = slice(None)) -> list[dict[str, Any]]:
    """Return the features of the columns, as the trainer passes them; each column has its own padding."""
    texts = [[text_of(3 + number, 50 + number) for number in ANCHORS]]
    texts += [[text_of(4 + 2 * number % 17, 80 + number) for number in column] for column in DOCUMENTS]
    return [dict(model.preprocess(column[rows])) for column in texts]


def loss_of(case: Case, model: Any, cached: bool = False, **more: Any) -> nn.Module:
    """Return the loss of a case for the trainer."""
    arguments = {"num_positives": POSITIVES, **case.arguments, **more}
    if cached:
        arguments |= {"mini_batch_size": 4}
    if "triplet" not in case.settings["loss"]:
        arguments["temperature"] = TEMPERATURE
    loss: nn.Module = getattr(library, case.name)(model, **arguments)
    return loss


def labels_of(case: Case, rows: slice = slice(None)) -> Tensor | None:
    """Return the label column of a case."""
    return TEACHER[rows] if case.settings["loss"] in ("kl", "margin-mse") else None


def own_training(model: SentenceTransformer, case: Case, cosine: bool, ids: BatchIds, **settings: Any) -> Tensor:
    """Return the loss of our own training on the embeddings of the model."""
    embeddings = [model(column)["sentence_embedding"] for column in columns(model)]
    if cosine:
        embeddings = [functional.normalize(each, dim=-1) for each in embeddings]
    scaled = {} if case.settings["loss"] == "triplet" else {"temperature": TEMPERATURE}
    loss = build_loss(LossConfig(**case.settings, **scaled, **settings), cosine)
    value: Tensor = loss(embeddings[0], torch.cat(embeddings[1:]), ids).value
    return value


def ids_by_hand(case: Case) -> BatchIds:
    """Return the ids of the batch, with what the rows of one anchor know of each other."""
    documents = torch.tensor(DOCUMENTS)
    known = torch.full((ROWS, POSITIVES), -1)
    known[1], known[4] = documents[:POSITIVES, 4], documents[:POSITIVES, 1]
    teacher = TeacherScores(documents.T, TEACHER) if labels_of(case) is not None else None
    return BatchIds(
        torch.tensor(ANCHORS), documents[:POSITIVES].T.contiguous(), documents.flatten(), known, teacher=teacher
    )


def gradients(model: nn.Module) -> list[Tensor]:
    """Return the gradients of all parameters but those of BERT's pooler, which no embedding uses."""
    used = [parameter for name, parameter in model.named_parameters() if "pooler" not in name]
    assert all(parameter.grad is not None for parameter in used)
    return [parameter.grad for parameter in used if parameter.grad is not None]


def equal(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-9) -> bool:
    """Return whether the norm of the difference of two gradients is small, compared with that of one of them."""
    squares = sum(float((one - other).square().sum()) for one, other in zip(ours, theirs, strict=True))
    whole = sum(float(one.square().sum()) for one in theirs)
    return whole > 0 and (squares / whole) ** 0.5 < tolerance
