"""A batch of a trainer of sentence-transformers and its ids, and every loss with the settings of our own training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from batch_ids import BatchIds, TeacherScores, build_loss
from directories import written
from gradients import distance
from sentence_transformers import SentenceTransformer
from tiny_models import text_of
from torch import Tensor, nn
from torch.nn import functional

from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.named_losses import DISTILLATION_LOSSES, GRADED_LOSSES, LOSS_NAMES
from raytriever.sentence_transformers import RetrievalLoss

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


# Settings of every loss, which are arguments of `RetrievalLoss` too.
Case = dict[str, Any]
_MORE: dict[str, Case] = {
    "triplet": {"margin": 0.3},
    **{name: {"teacher_temperature": 0.7} for name in DISTILLATION_LOSSES},
}
CASES: list[Case] = [
    {"loss": "mw", "reduction": "sum"},
    {"loss": "mw+bce", "loss_weights": "1,0.3"},
    *({"loss": name, **_MORE.get(name, {})} for name in LOSS_NAMES),
]
MW: Case = {"loss": "mw"}
SEED = 3  # of rand1


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


def loss_of(case: Case, model: Any, cached: bool = False, **more: Any) -> RetrievalLoss:
    """Return the loss of a case for the trainer."""
    arguments = {"num_positives": POSITIVES, "seed": SEED, **_scaled(case), **more}
    return RetrievalLoss(model, **arguments, **({"mini_batch_size": 4} if cached else {}))


def labels_of(case: Case, rows: slice = slice(None)) -> Tensor | None:
    """Return the label column of a case."""
    if case["loss"] in GRADED_LOSSES:
        return TEACHER[rows].sigmoid()
    return TEACHER[rows] if case["loss"] in DISTILLATION_LOSSES else None


def _scaled(case: Case) -> Case:
    return case if case["loss"] == "triplet" else {**case, "temperature": TEMPERATURE}


def own_training(model: SentenceTransformer, case: Case, cosine: bool, ids: BatchIds, **settings: Any) -> Tensor:
    """Return the loss of our own training on the embeddings of the model."""
    embeddings = [model(column)["sentence_embedding"] for column in columns(model)]
    if cosine:
        embeddings = [functional.normalize(embedding, dim=-1) for embedding in embeddings]
    loss = build_loss(LossConfig(**_scaled(case), **settings), cosine)
    value: Tensor = loss(embeddings[0], torch.cat(embeddings[1:]), ids).value
    return value


def ids_by_hand(case: Case) -> BatchIds:
    """Return the ids of the batch, with what the rows of one anchor know of each other."""
    documents = torch.tensor(DOCUMENTS)
    known = torch.full((ROWS, POSITIVES), -1)
    known[1], known[4] = documents[:POSITIVES, 4], documents[:POSITIVES, 1]
    ids = BatchIds(torch.tensor(ANCHORS), documents[:POSITIVES].T.contiguous(), documents.flatten(), known)
    scores = labels_of(case)
    if scores is None:
        return ids
    name = "labels" if case["loss"] in GRADED_LOSSES else "teacher"
    return replace(ids, **{name: TeacherScores(documents.T, scores)})


def gradients(model: nn.Module) -> list[Tensor]:
    """Return the gradients of all parameters but those of BERT's pooler, which no embedding uses."""
    used = [parameter for name, parameter in model.named_parameters() if "pooler" not in name]
    assert all(parameter.grad is not None for parameter in used)
    return [parameter.grad for parameter in used if parameter.grad is not None]


def equal(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-9) -> bool:
    """Return whether two gradients are near."""
    return distance(ours, theirs) < tolerance
