"""Selective retrieval: does training improve the decision to show the best document or nothing?

A person gets the best document of a question if its confidence reaches one threshold, and otherwise nothing. The study
asks whether any training improves this decision beyond the encoder as published, when each uses its best confidence.

- Questions with and without an answer: `questions`. Confidences: `metrics.confidence`. For `combined`, BM25 is asked
  about the same questions; in the row of BM25 its features describe its own ranking.
- Trainings: contrastive loss (CL), MW, and their weighted sum (MW+CL), each at several temperatures, on a mixture of
  all data sets.
- Choice: for each loss and seed, the arm whose best confidence has the lowest AURC on the dev questions of all data
  sets in one pool is the row `CL`, `MW` or `MW+CL`. These dev questions also choose and fit the confidence, and choose
  its threshold. Where a value was fitted on dev, dev itself is scored out of fold. Figures are those of test questions.

`full`: whole packs and the training of the paper; the data sets are written if `--data-root` holds the packs. `small`:
MiniLM, 40 steps. `smoke`: docstrings of the standard library and of other packages, one temperature and one weight.

The claims were written before the first run of this study. Metrics, each on the test questions of a data set, or of all
data sets in one pool (`all`):

- `aurc`, `aurc_best`: area under the risk-coverage curve by the score of the best document, and by the best confidence;
  lower is better.
- `combined_gain`: AURC by the score minus AURC by `combined`.
- `f1`, `answered`, `shown_removed`, `shown_foreign`, `shown_hard`: at the threshold of the best confidence with the
  highest F1 on the pool, F1, the share of questions with an answer that are shown a relevant document, and the share of
  each kind of questions without an answer that are shown one.
- `transfer_loss`: F1 by the score at the threshold of the data set's own dev questions, minus the mean F1 at the
  thresholds of the other data sets' dev questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.evaluation.differences.seeds import ABOVE, BELOW, SeededResults, format_outcome
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
from raytriever.studies.recipes.training import LOSSES, Layer, build_curriculum, describe_training

SUM = "MW+CL"
_METRICS = ("success_at_1", "success_at_100")
_WIKIPEDIA, _BIOMEDICAL = "Wikipedia", "biomedicine"
_PACKS = {
    "squad": StudySource("SQuAD", _WIKIPEDIA, ("train", "", "dev")),
    "nq-paragraphs": StudySource("NQ", _WIKIPEDIA, ("", "", "test")),
    "scifact": StudySource("SciFact", _BIOMEDICAL, ("train", "", "test")),
    "medquad": StudySource("MedQuAD", _BIOMEDICAL, ("train", "dev", "test")),
}
_PARTS = {part: StudySource(f"pydocs-{part}", part, (TRAIN, DEV, TEST)) for part in (STDLIB, PACKAGES)}
_SIZES = {
    SMOKE: StudySize(train=48, dev=32, test=48, foreign_dev=8, foreign_test=16, documents=1_000),
    FULL: StudySize(train=100_000, dev=1_000, test=4_000, foreign_dev=250, foreign_test=1_000, documents=100_000),
}
_SMALL = StudySize(train=320, dev=150, test=400, foreign_dev=50, foreign_test=100, documents=1_000)
_FULL_QUERIES = 100_000  # training queries of all packs, nearly


def abstain(scale: StudyScale) -> Study:
    """Selective retrieval: does training improve the decision to show the best document or nothing?"""
    questions, counts = _write_questions(scale)
    sources = list((_PARTS if scale.is_smoke else _PACKS).values())
    datasets = [
        (
            _dataset(questions, source.name, TEST, source.name),
            _dataset(questions, source.name, DEV, f"{source.name} dev"),
        )
        for source in sources
    ]
    measured = tuple(one for pair in datasets for one in pair)
    mixture = MeasuredDataset(MIXTURE, str(questions / MIXTURE))
    candidates = _candidates(scale)
    trained = [
        Arm(
            row.lower().replace(", temperature ", "-").replace(" + ", "-").replace(" ", "-"),
            row,
            measured,
            build_curriculum(scale, loss, mixture, settings={"loss": settings, **_data(scale)}),
            queries=_FULL_QUERIES,
        )
        for arms in candidates.values()
        for row, (loss, settings) in arms.items()
    ]
    untrained = scale.untrained(measured)
    if untrained:
        untrained = [Arm("bm25", "BM25", measured, None, model=BM25), *untrained]
    baseline = UNTRAINED if untrained else "CL"
    return Study(
        name="abstain",
        title="Selective retrieval: does training improve the decision to show the best document?",
        source="Selective retrieval",
        arms=(*untrained, *trained),
        seeds=scale.seeds,
        baselines=(baseline,),
        heading=(
            describe_training(scale, _data(scale)),
            f"Trained on {', '.join(source.name for source in sources)} together. For each loss and seed, dev "
            f"questions choose one of: {'; '.join(arm.row for arm in trained)}.",
            *(f"{name}: " + "; ".join(f"{text} {n:,}" for text, n in one.items()) for name, one in counts.items()),
        ),
        analyse=partial(
            analyse,
            datasets,
            [arm.row for arm in untrained],
            {loss: list(arms) for loss, arms in candidates.items()},
            baseline,
        ),
        claims=claims_of([source.name for source in sources]),
    )


STUDIES: Mapping[str, Callable[[StudyScale], Study]] = {"abstain": abstain}


def _candidates(scale: StudyScale) -> dict[str, dict[str, tuple[str, dict[str, Any]]]]:
    """Return the arms that dev chooses from: by row of the study and row of the arm, its loss and further settings."""
    temperatures = (0.05,) if scale.is_smoke else (0.01, 0.05)
    weights = (0.1,) if scale.is_smoke else (0.1, 1.0)
    settings: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
        name: {name: (loss, {})} for name, loss in LOSSES.items()
    }
    loss = f"{LOSSES['MW']}+{LOSSES['CL']}"
    settings[SUM] = {f"MW + {weight:g} CL": (loss, {"loss_weights": f"1,{weight:g}"}) for weight in weights}
    return {
        name: {
            f"{row}, temperature {temperature:g}": (loss, {**more, "temperature": temperature})
            for row, (loss, more) in arms.items()
            for temperature in temperatures
        }
        for name, arms in settings.items()
    }


def _data(scale: StudyScale) -> Layer:
    # Half the passages of other studies: dev chooses from eight trainings.
    return {} if scale.is_full else {"data": {"negatives_per_query": 1}}


def _dataset(questions: Path, folder: str, split: str, name: str) -> MeasuredDataset:
    return MeasuredDataset(name, str(questions / folder), split, _METRICS, drop_own=False, extras=(UNANSWERABLE,))


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


_BEFORE, _PROMISE = "stated before the run", "promise of MW, section 3"


def claims_of(datasets: Sequence[str]) -> tuple[Claim, ...]:
    """Return the claims; `datasets` are the names of the data sets, without the pool."""
    beyond = "has a lower AURC by its best confidence than the encoder as published by its own, in one pool"
    return (
        *(Claim(f"{row} {beyond}", _BEFORE, _lower(row, UNTRAINED, "aurc_best")) for row in ("MW", SUM, "CL")),
        Claim(
            f"{SUM} has a lower AURC than MW and than CL, each by its best confidence, in one pool",
            _BEFORE,
            every(_lower(SUM, "MW", "aurc_best"), _lower(SUM, "CL", "aurc_best")),
        ),
        Claim(
            "`combined` has a lower AURC than the score in one pool, for the trained rows and the encoder as published",
            _BEFORE,
            every(*(_positive(row, "combined_gain") for row in (UNTRAINED, "CL", "MW", SUM))),
        ),
        Claim("By its score alone MW has a lower AURC than CL, in one pool", _PROMISE, _lower("MW", "CL", "aurc")),
        Claim(
            "A threshold of the score that was chosen on another data set costs MW less F1 than CL, on average",
            _PROMISE,
            above_on_average("CL", "MW", ("transfer_loss",), datasets),
        ),
        Claim(
            "MW shows a document for fewer questions with a replaced entity than the encoder as published, in one pool",
            _BEFORE,
            _lower("MW", UNTRAINED, "shown_hard"),
        ),
    )


def _lower(row: str, other: str, metric: str) -> Judge:
    return above(other, row, (metric,), (POOLED,))


def _positive(row: str, metric: str) -> Judge:
    """Claim that a metric is above 0 in one pool."""

    def judge(results: SeededResults) -> Verdict:
        one = results.contrast({row: 1}, [POOLED], metric)
        word = {ABOVE: HELD, BELOW: DID_NOT}.get(one.outcome, WITHIN_NOISE)
        return Verdict(word, f"{row}: {metric} {one.difference:+.4f} {format_outcome(one.p, one.outcome)}")

    return judge
