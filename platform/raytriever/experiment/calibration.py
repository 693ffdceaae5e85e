"""Calibration of a trained model, written into its directory at the end of a run."""

from __future__ import annotations

from collections.abc import Callable

from raytriever.cluster.evaluation import evaluate_model
from raytriever.config import Config
from raytriever.data.dataset import RetrievalDataset
from raytriever.errors import DataError
from raytriever.evaluation.calibration import (
    FEWEST_QUERIES,
    check_apart,
    make_calibration,
    save_calibration,
    too_few_queries,
)
from raytriever.evaluation.evaluate import Evaluation
from raytriever.evaluation.measurements import pool_scores
from raytriever.metrics.calibration import WantedAim
from raytriever.models.config import ModelConfig
from raytriever.search.calibration import FILE

# The wanted value of a threshold is the user's, with `evaluate --calibrate`; the highest F1 needs none.
AIMS: tuple[WantedAim, ...] = (("f1", None),)


def calibrate_trained(
    dataset: RetrievalDataset, config: Config, trained: ModelConfig, tested: Evaluation, log: Callable[[str], None]
) -> None:
    """Calibrate a trained model on the dev split, check it on the test split, and write `model/calibration.json`.

    A run with too few queries, or with the same queries in both splits, gets no calibration, and a line says why.

    Args:
        dataset: data set of the run.
        config: settings of the run.
        trained: the trained model.
        tested: its evaluation on the test split.
        log: called with lines about the result.
    """
    splits = config.data.dev_split, config.data.test_split
    try:
        if splits[0] not in dataset.judgements:
            raise DataError(f"was opened without split {splits[0]!r}", dataset.name, "run `raytriever evaluate`")
        for split in splits:
            if (queries := len(dataset.relevant_queries(split))) < FEWEST_QUERIES:
                raise too_few_queries(dataset.name, split, queries)
        check_apart(dataset, *splits)
        log(f"calibrating the scores on {splits[0]}")
        measured = evaluate_model(dataset, splits[0], trained, config.training.precision)
        pools = pool_scores([measured]), pool_scores([tested])
        made = make_calibration(dataset, trained, splits, *pools, AIMS, int8=False)
    except DataError as error:
        log(f"the model gets no {FILE}: {error}")
        return
    log(save_calibration(made, trained))
