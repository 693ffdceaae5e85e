"""A model's figures on a data set in the format of MTEB's results (Muennighoff et al., 2023), `TaskResult` there.

What is not known of a run made here is left as the format allows: no version of MTEB, a digest of the content in place
of a revision of its data set, and the undetermined language where the data set is none of MTEB's. The list of languages
is never empty: `TaskResult.get_score` of MTEB 2.26 averages over the languages of each entry, and returns NaN for none.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from raytriever.metrics.registry import mean, measure_ranking
from raytriever.retrieval.measured import MeasuredPart, MeasuredSet
from raytriever.retrieval.protocol import Protocol, judged_queries

CUTOFFS = (1, 3, 5, 10, 20, 100, 1000)
FAMILIES = ("ndcg", "map", "recall", "precision", "mrr")
MAIN = "ndcg_at_10"
# Of MTEB's tasks of BEIR, and the code of ISO 639-3 and ISO 15924 for a text whose language and script are not known.
ENGLISH, UNDETERMINED = "eng-Latn", "und-Zyyy"


def mteb_content(measured: MeasuredSet, model: str, protocol: Protocol, seconds: float | None = None) -> str:
    """The text of `mteb/NAME/DATASET.json`, at every cutoff of MTEB that the ranking reaches.

    Args:
        measured: the data set; of a divided one the means over its parts are written.
        model: whose figures.
        protocol: by which it was measured.
        seconds: how long the model took, where that is known.
    """
    rows = [_scores(part, model, measured.about.split, protocol) for part in measured.parts]
    scores: dict[str, Any] = {name: round(float(np.mean([row[name] for row in rows])), 5) for name in rows[0]}
    scores |= {"main_score": scores[MAIN], "hf_subset": "default"}
    scores["languages"] = [ENGLISH if measured.about.task else UNDETERMINED]
    content = {
        "dataset_revision": measured.parts[0].dataset.digest[:40],
        "task_name": measured.about.task or measured.about.name,
        "mteb_version": None,
        "scores": {measured.about.split: [scores]},
        "evaluation_time": seconds,
        "kg_co2_emissions": None,
    }
    return json.dumps(content, indent=2) + "\n"


def _scores(part: MeasuredPart, model: str, split: str, protocol: Protocol) -> dict[str, float]:
    evaluation = part.evaluations[model]
    _, relevance = judged_queries(part.dataset, split, protocol)
    names = [f"{family}_at_{k}" for family in FAMILIES for k in CUTOFFS if k <= protocol.kept]
    values = measure_ranking(evaluation.ranking, relevance, names, protocol.level)
    return {name: mean(values[name], relevance, protocol.level) for name in names}
