"""Settings of validation by retrieval during training. Imports nothing heavy, because the command line reads it."""

from __future__ import annotations

from dataclasses import dataclass

from raytriever.errors import ConfigError, flag_of, setting
from raytriever.options import check_changed, option
from raytriever.paths import DEV_DATASETS
from raytriever.training.config import DEV_LOSS, TrainingConfig

OWN = "own"
_EVALUATED = (f"best_metric!={DEV_LOSS}", "eval_datasets")


@dataclass(frozen=True)
class ValidationConfig:
    """Settings of the dev data that the encoder is evaluated on every `--eval-steps`, during training."""

    eval_datasets: str = option(
        "",
        "data sets to search at each validation, separated by commas: `own`, or a PATH; add #SPLIT for a split other "
        f"than {flag_of('dev_split')} (default: `own` if {flag_of('best_metric')} needs it)",
        reads=DEV_DATASETS,
        form="PATH#SPLIT",
    )
    eval_corpus: int | None = option(
        None,
        "documents of each corpus besides the judged ones, half found by BM25 and half random (default: all)",
        minimum=0,
        needs=_EVALUATED,
    )
    eval_behind: int = option(
        2, "validations that may be unfinished before training waits for one of them", minimum=1, needs=_EVALUATED
    )

    def sources(self, best_metric: str, dev_split: str) -> tuple[tuple[str, str], ...]:
        """Return the data sets and their splits; none where nothing is evaluated."""
        named = self.eval_datasets or ("" if best_metric == DEV_LOSS else OWN)
        parts = [part.strip().partition("#") for part in named.split(",") if part.strip()]
        return tuple((name, split or dev_split) for name, _, split in parts)


def check_validation(validation: ValidationConfig, training: TrainingConfig) -> None:
    """Check the settings against each other; raises `ConfigError`."""
    check_changed(validation, training)
    if training.best_metric == DEV_LOSS and not validation.eval_datasets:
        return
    if not validation.sources(training.best_metric, "dev"):
        raise ConfigError(
            "names no data set", setting("eval_datasets", validation.eval_datasets), "give own, or a path"
        )
