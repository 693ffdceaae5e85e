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

The claims were written before the first run at `small`, and have not changed since, but for the estimate of the
calibration error. Metrics, each on the test questions of a data set, or of all data sets in one pool (`all`):

- `aurc`: area under the risk-coverage curve by the score of the best document; lower is better.
- `f1`: F1 of showing the best document, at the one threshold that is best on the dev questions of all data sets.
- `transfer_loss`: F1 at the threshold of the data set's own dev questions, minus the mean F1 at the thresholds of the
  other data sets' dev questions.
- `squared_ece_platt`: squared calibration error of the probability that the best document is relevant, by a logistic
  curve that is fitted on the dev questions of all data sets.
- `advantage`: AURC by the best other confidence minus AURC by the score. The other confidence is the one with the
  lowest AURC on the dev questions of all data sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.evaluation.differences.seeds import BELOW, SeededResults, format_outcome
from raytriever.evaluation.request import BM25
from raytriever.studies.claims import (
    DID_NOT,
    HELD,
    WITHIN_NOISE,
    Claim,
    Judge,
    Verdict,
    above,
    above_on_average,
    every,
)
from raytriever.studies.definition import FULL, SMOKE, UNANSWERABLE, Arm, MeasuredDataset, Study
from raytriever.studies.recipes.abstain.analysis import analyse
from raytriever.studies.recipes.abstain.measures import POOLED
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
from raytriever.studies.recipes.scale import PACKAGES, STDLIB, UNTRAINED, StudyScale, open_pydocs
from raytriever.studies.recipes.training import LOSSES, TEMPERATURE, Layer, build_curriculum, describe_training

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


def abstain(scale: StudyScale) -> Study:
    """Build the study, see above."""
    questions, counts = _write_questions(scale)
    sources = list((_PARTS if scale.is_smoke else _PACKS).values())
    asked = [one for one in sources if one.is_measured]
    measured = tuple(
        MeasuredDataset(
            _name_of(one.name, split),
            str(questions / one.name),
            split,
            _METRICS,
            drop_own=False,
            extras=(UNANSWERABLE,),
            cross_encoder=_CROSS_ENCODER if scale.is_full else "",
        )
        for one in asked
        for split in (TEST, DEV)
    )
    mixture = MeasuredDataset(MIXTURE, str(questions / MIXTURE))
    trained = [
        Arm(
            row.lower().replace(", ", "-"),
            row,
            measured,
            build_curriculum(scale, loss, mixture, settings=_settings(weight)),
            queries=_FULL_QUERIES,
        )
        for weight in (0.0, WEIGHT)
        for row, loss in ((row_of(name, weight), loss) for name, loss in _LOSSES.items())
    ]
    untrained = scale.untrained(measured)
    if untrained:
        untrained = [Arm("bm25", "BM25", measured, None, model=BM25), *untrained]
    rows = [arm.row for arm in untrained]
    return Study(
        name="abstain",
        title="Selective retrieval: one threshold for all queries",
        source="Selective retrieval",
        arms=(*untrained, *trained),
        seeds=scale.seeds,
        baselines=("CL",),
        heading=(
            describe_training(scale, _settings(0.0)),
            f"Trained on {', '.join(one.name for one in sources)} together, up "
            f"to {POSITIVES} positives a query; regularised: lambda {WEIGHT:g}.",
            f"Cross-encoder: {_CROSS_ENCODER}."
            if scale.is_full
            else "A cross-encoder's score was not measured: none is embedded in the package.",
            *(f"{name}: " + "; ".join(f"{text} {n:,}" for text, n in one.items()) for name, one in counts.items()),
        ),
        analyse=partial(
            analyse,
            [(one.name, _name_of(one.name, DEV)) for one in asked],
            {arm.row: _SOFTMAX.get(arm.row, TEMPERATURE) for arm in (*untrained, *trained)},
            "CL",
            "MW",
            rows + list(_LOSSES),
        ),
        claims=claims_of([one.name for one in asked], tuple(_LOSSES), rows),
    )


STUDIES: Mapping[str, Callable[[StudyScale], Study]] = {"abstain": abstain}


def _name_of(dataset: str, split: str) -> str:
    """Return the name of a split of a data set in the results: that of the data set for the test split."""
    return dataset if split == TEST else f"{dataset} {split}"


def _write_questions(scale: StudyScale) -> tuple[Path, Counts]:
    """Write the data sets, except at full without the packs; return their folder and numbers."""
    path = scale.folder / "questions"
    openers: dict[StudySource, Callable[[], RetrievalDataset]]
    if scale.is_smoke:
        openers = {source: partial(open_pydocs, part) for part, source in _PARTS.items()}
    elif scale.is_full and scale.data_root is None:
        return path, {}
    else:
        openers = {
            source: partial(open_dataset, scale.pack_folder(pack), [split for split in source.splits if split])
            for pack, source in _PACKS.items()
        }
    return path, write_questions(path, openers, _SIZES.get(scale.name, _SMALL))


def _settings(weight: float) -> Layer:
    return {"data": {"positives_per_query": POSITIVES}, "loss": {"distribution_weight": weight}}


def row_of(loss: str, weight: float) -> str:
    """Return the name of a row."""
    return f"{loss}, regularised" if weight else loss


_ISSUE, _ABSTRACT = "stated before the run", "promise of MW, section 3"


def claims_of(datasets: Sequence[str], losses: Sequence[str], untrained: Sequence[str]) -> tuple[Claim, ...]:
    """Return the claims.

    Args:
        datasets: names of the data sets, without the pool.
        losses: rows of the losses without the regulariser.
        untrained: rows that are not trained.
    """
    claims = [
        Claim("MW has a lower AURC than CL on every data set", _ABSTRACT, above("CL", "MW", ("aurc",), datasets)),
        Claim("MW has a lower AURC than CL over all data sets in one pool", _ABSTRACT, _lower("MW", "CL")),
        Claim(
            "At one threshold for all data sets, MW has a higher F1 than CL",
            _ABSTRACT,
            above("MW", "CL", ("f1",), (POOLED,)),
        ),
        Claim(
            "A threshold that was chosen on another data set costs MW less F1 than CL, on average",
            _ABSTRACT,
            above_on_average("CL", "MW", ("transfer_loss",), datasets),
        ),
        Claim(
            "One logistic curve for all data sets has a smaller calibration error with MW than with CL, on average",
            _ABSTRACT,
            above_on_average("CL", "MW", ("squared_ece_platt",), datasets),
        ),
        Claim(
            "With MW the score alone is on par with the best other confidence",
            _ISSUE,
            _no_worse_than_others("MW"),
        ),
        Claim(
            "The regulariser lowers the AURC of every loss over all data sets in one pool",
            _ISSUE,
            every(*(_lower(row_of(loss, 1.0), loss) for loss in losses)),
        ),
    ]
    if untrained:
        judge = every(*(_lower("MW", row) for row in untrained))
        text = "MW has a lower AURC than the encoder as published and than BM25, over all data sets in one pool"
        claims.append(Claim(text, _ISSUE, judge))
    return tuple(claims)


def _lower(row: str, other: str) -> Judge:
    return above(other, row, ("aurc",), (POOLED,))


def _no_worse_than_others(row: str) -> Judge:
    """Claim that `advantage` is at least -0.01 in one pool; it does not hold if it is lower and not by noise."""

    def judge(results: SeededResults) -> Verdict:
        one = results.contrast({row: 1}, [POOLED], "advantage")
        word = HELD if one.difference >= -0.01 else DID_NOT if one.outcome == BELOW else WITHIN_NOISE
        return Verdict(
            word,
            f"{row}: AURC by the best other confidence minus AURC by the score {one.difference:+.4f} "
            f"{format_outcome(one.p, one.outcome)}",
        )

    return judge
