"""Table of all losses by name. An entry has the function of the loss, its requirements and its paper.

CONTRIBUTING.md shows how to add a loss.

This module imports quickly, because the command line reads the names for `--help`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """Paper that defines a loss. `arxiv` is its arXiv number, or empty."""

    title: str
    authors: str
    arxiv: str = ""

    def bibtex(self, key: str) -> str:
        """Return the BibTeX entry."""
        source = f",\n    eprint={{{self.arxiv}}},\n    archivePrefix={{arXiv}}" if self.arxiv else ""
        return f"\n@misc{{{key},\n    title={{{self.title}}},\n    author={{{self.authors}}}{source}\n}}\n"


@dataclass(frozen=True)
class LossEntry:
    """Entry of the table of losses."""

    function: str  # `MODULE.NAME` of a `RowLoss` or `ScoreLoss` in this package. It is imported on first use.
    paper: Paper  # the paper that defines the loss
    has_teacher: bool = False  # True if the loss distills teacher scores of each query's group
    symmetric: bool = False  # True if the loss also uses the other direction, where passages search for queries


_MW = Paper("Optimizing What Matters: {AUC}-Driven Learning for Robust Neural Retrieval", "Anonymous")
_INFONCE = Paper(
    "Representation Learning with Contrastive Predictive Coding", "Aaron van den Oord and others", "1807.03748"
)
_MULTI_POSITIVE = Paper("Training Dense Retrievers with Multiple Positive Passages", "Benben Wang and others")
_TRIPLET = Paper(
    "{FaceNet}: A Unified Embedding for Face Recognition and Clustering",
    "Florian Schroff and Dmitry Kalenichenko and James Philbin",
    "1503.03832",
)
_COSENT = Paper("{CoSENT}: Consistent Sentence Embedding via Similarity Ranking", "Xiang Huang and others")
_BCE = Paper("Sigmoid Loss for Language Image Pre-Training", "Xiaohua Zhai and others", "2303.15343")
_KL = Paper(
    "{ColBERTv2}: Effective and Efficient Retrieval via Lightweight Late Interaction",
    "Keshav Santhanam and others",
    "2112.01488",
)
_MARGIN_MSE = Paper(
    "Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge Distillation",
    "Sebastian Hofstätter and others",
    "2010.02666",
)

LOSSES = {
    "infonce": LossEntry("row_losses.INFONCE", _INFONCE),
    "infonce-symmetric": LossEntry("row_losses.symmetric", _INFONCE, symmetric=True),
    "rand1": LossEntry("row_losses.RAND1", _MULTI_POSITIVE),
    "joint": LossEntry("row_losses.JOINT", _MULTI_POSITIVE),
    "summarg": LossEntry("row_losses.SUMMARG", _MULTI_POSITIVE),
    "lsepair": LossEntry("row_losses.LSEPAIR", _MULTI_POSITIVE),
    "lsepair-maxp": LossEntry("row_losses.LSEPAIR_MAXP", _MULTI_POSITIVE),
    "lsepair-maxn": LossEntry("row_losses.LSEPAIR_MAXN", _MULTI_POSITIVE),
    "lsepair-minp": LossEntry("row_losses.LSEPAIR_MINP", _MULTI_POSITIVE),
    "lsepair-minp-maxn": LossEntry("row_losses.LSEPAIR_MINP_MAXN", _MULTI_POSITIVE),
    "triplet": LossEntry("row_losses.triplet", _TRIPLET),
    "mw": LossEntry("mw.mann_whitney.mw", _MW),
    "cosent": LossEntry("pooled.cosent", _COSENT),
    "bce": LossEntry("pooled.bce", _BCE),
    "kl": LossEntry("distillation.kl", _KL, has_teacher=True),
    "margin-mse": LossEntry("distillation.margin_mse", _MARGIN_MSE, has_teacher=True),
}
LOSS_NAMES = tuple(LOSSES)
GRADED_LOSSES = ("cosent", "bce")  # they read graded relevance; the others read binary relevance
DISTILLATION_LOSSES = tuple(name for name, entry in LOSSES.items() if entry.has_teacher)
SCORE_LOSSES = tuple(name for name, entry in LOSSES.items() if not entry.has_teacher)
