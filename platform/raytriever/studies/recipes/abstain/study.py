"""Selective retrieval: one score threshold decides for every query whether its best document is shown.

*Optimizing What Matters* promises with the MW loss that scores of different queries compare. This study asks what it is
worth to a person who gets the best document or none. Each encoder is trained on a mixture of data sets and measured on
questions with and without an answer (`questions`). The threshold comes from dev questions, the figures from test
questions (`measures`).

LSEPair differs from InfoNCE only for queries with several positives, so the mixture contains NFCorpus. It is not
measured: its queries share relevant documents, so none of them can lose its answers alone. Its hard negatives are those
of BM25, some of which may be relevant and not judged.

`full`: whole packs and the training of the paper; the data sets are written if `--data-root` holds the packs. `small`:
MiniLM, 40 steps. `smoke`: docstrings of the standard library and of other packages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from raytriever.config import Curriculum
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.evaluation.request import BM25
from raytriever.studies.datasets import (
    PACKAGES,
    STDLIB,
    UNTRAINED,
    StudyDataset,
    open_pydocs,
    pack_folder,
    untrained_arms,
)
from raytriever.studies.definition import FULL, SMOKE, UNANSWERABLE, Arm, MeasuredDataset, Study
from raytriever.studies.recipes.abstain.analysis import analyse
from raytriever.studies.recipes.abstain.claims import claims_of, row_of
from raytriever.studies.recipes.abstain.questions import (
    DEV,
    MIXTURE,
    TEST,
    TRAIN,
    Counts,
    StudySize,
    StudySource,
    write_questions,
)
from raytriever.studies.recipes.auc.settings import LOSSES, TEMPERATURE, Layer, build_curriculum, describe_training

WEIGHT = 0.05  # lambda of the regulariser: up to it queries and passages came closer at no cost (study `lambda`)
POSITIVES = 4
_LOSSES = {**LOSSES, "LSEPair": "lsepair"}
# Unit of the scores in a softmax: BM25's own, and that of the training of all-MiniLM-L6-v2.
_SOFTMAX = {"BM25": 1.0, UNTRAINED: 0.05}
_CROSS_ENCODER = "cross-encoder/ms-marco-MiniLM-L6-v2"
_METRICS = ("success_at_1", "ndcg_at_10", "success_at_100")
_WIKIPEDIA, _BIOMEDICAL = "Wikipedia", "biomedicine"
_PACKS = {
    "squad": StudySource("SQuAD", _WIKIPEDIA, ("train", "", "dev")),
    "nq-paragraphs": StudySource("NQ", _WIKIPEDIA, ("", "", "test")),
    "scifact": StudySource("SciFact", _BIOMEDICAL, ("train", "", "test")),
    "medquad": StudySource("MedQuAD", _BIOMEDICAL, ("train", "dev", "test")),
    "nfcorpus-filtered": StudySource("NFCorpus", _BIOMEDICAL, ("train", "", ""), is_measured=False),
}
_PARTS = {part: StudySource(f"pydocs-{part}", part, (TRAIN, DEV, TEST)) for part in (STDLIB, PACKAGES)}
_SIZES = {
    SMOKE: StudySize(train=48, dev=32, test=48, foreign_dev=8, foreign_test=16, documents=300),
    FULL: StudySize(train=100_000, dev=1_000, test=4_000, foreign_dev=250, foreign_test=1_000, documents=100_000),
}
_SMALL = StudySize(train=320, dev=150, test=400, foreign_dev=50, foreign_test=100, documents=1_500)
_FULL_QUERIES = 100_000  # training queries of all packs, nearly


def study(scale: str, data_root: Path | None, folder: Path) -> Study:
    """Build the study (see `studies.recipes`)."""
    questions, counts = _questions(scale, data_root, folder)
    sources = [one for one in (_PARTS if scale == SMOKE else _PACKS).values() if one.is_measured]
    measured = tuple(
        MeasuredDataset(
            name_of(one.name, split),
            str(questions / one.name),
            split,
            _METRICS,
            drop_own=False,
            extras=(UNANSWERABLE,),
            cross_encoder=_CROSS_ENCODER if scale == FULL else "",
        )
        for one in sources
        for split in (TEST, DEV)
    )
    mixture = StudyDataset(MIXTURE, str(questions / MIXTURE), queries=_FULL_QUERIES)
    trained = [
        Arm(
            row.lower().replace(", ", "-"),
            row,
            measured,
            _curriculum(scale, loss, mixture, weight),
            queries=mixture.queries,
        )
        for weight in (0.0, WEIGHT)
        for row, loss in ((row_of(name, weight), loss) for name, loss in _LOSSES.items())
    ]
    untrained = untrained_arms(scale, measured)
    bm25 = [Arm("bm25", "BM25", measured, None, model=BM25)] if untrained else []
    names = tuple(one.name for one in sources)
    arms = (*bm25, *untrained, *trained)
    return Study(
        name="abstain",
        title="Selective retrieval: one threshold for all queries",
        source="Selective retrieval",
        arms=arms,
        seeds=3 if scale not in (SMOKE, FULL) else 1,
        baselines=("CL",),
        heading=(
            describe_training(scale, _settings(0.0)),
            f"Trained on {', '.join(one.name for one in (_PARTS if scale == SMOKE else _PACKS).values())} together, up "
            f"to {POSITIVES} positives a query; regularised: lambda {WEIGHT:g}.",
            f"Cross-encoder: {_CROSS_ENCODER}."
            if scale == FULL
            else "A cross-encoder's score was not measured: none is embedded in the package.",
            *_count_lines(counts),
        ),
        analyse=partial(
            analyse,
            [(one.name, name_of(one.name, DEV)) for one in sources],
            {arm.row: _SOFTMAX.get(arm.row, TEMPERATURE) for arm in arms},
            "CL",
            "MW",
            [arm.row for arm in (*bm25, *untrained)] + list(_LOSSES),
        ),
        claims=claims_of(names, tuple(_LOSSES), [arm.row for arm in (*bm25, *untrained)]),
    )


def name_of(dataset: str, split: str) -> str:
    """Return the name of a split of a data set in the results: that of the data set for the test split."""
    return dataset if split == TEST else f"{dataset} {split}"


def _questions(scale: str, data_root: Path | None, folder: Path) -> tuple[Path, Counts]:
    """Write the data sets, except at full without the packs; return their folder and numbers."""
    path, size = folder / "questions", _SIZES.get(scale, _SMALL)
    openers: dict[StudySource, Callable[[], RetrievalDataset]]
    if scale == SMOKE:
        openers = {source: partial(open_pydocs, part) for part, source in _PARTS.items()}
    elif scale == FULL and data_root is None:
        return path, {}
    else:
        openers = {
            source: partial(open_dataset, pack_folder(data_root, pack), [split for split in source.splits if split])
            for pack, source in _PACKS.items()
        }
    return path, write_questions(path, openers, size)


def _count_lines(counts: Counts) -> list[str]:
    return [f"{name}: " + "; ".join(f"{text} {count:,}" for text, count in one.items()) for name, one in counts.items()]


def _settings(weight: float) -> Layer:
    return {"data": {"positives_per_query": POSITIVES}, "loss": {"distribution_weight": weight}}


def _curriculum(scale: str, loss: str, mixture: StudyDataset, weight: float) -> Curriculum:
    return build_curriculum(scale, loss, mixture, settings=_settings(weight))
