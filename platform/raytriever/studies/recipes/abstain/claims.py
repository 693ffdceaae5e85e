"""Claims of the study `abstain`. They were written before its first run at `small`, and have not changed since, but for
the estimate of the calibration error.

Metrics, each on the test questions of a data set, or of all data sets in one pool (`all`):

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

from collections.abc import Sequence

from raytriever.evaluation.differences.seeds import BELOW, SeededResults, format_outcome
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

POOLED = "all"  # the data set of all questions
REGULARISED = "regularised"
ON_PAR = 0.01
_ISSUE, _ABSTRACT = "stated before the run", "promise of MW, section 3"


def row_of(loss: str, weight: float) -> str:
    """Return the name of a row."""
    return f"{loss}, {REGULARISED}" if weight else loss


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
        word = HELD if one.difference >= -ON_PAR else DID_NOT if one.outcome == BELOW else WITHIN_NOISE
        return Verdict(
            word,
            f"{row}: AURC by the best other confidence minus AURC by the score {one.difference:+.4f} "
            f"{format_outcome(one.p, one.outcome)}",
        )

    return judge
