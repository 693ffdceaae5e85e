"""`study`: train and measure the arms of a file, and test its claims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from raytriever.cli.command import Given
from raytriever.cli.suggestions import removed
from raytriever.errors import ConfigError
from raytriever.experiment.start import check_run_name
from raytriever.terminal import warn

_REMEDY = "give the path of a YAML file: one of yours, or one of studies/ in a checkout"


def study_file(text: str) -> Path:
    """Read the path of a study; raises `ConfigError` for another file."""
    if not text.endswith((".yaml", ".yml")):
        raise ConfigError(f"{text!r} is no file of a study", remedy=removed(f"study {text}") or _REMEDY)
    return Path(text)


def check_study(given: Given) -> None:
    """Raise `UserError` for an invalid name, or a file that does not exist."""
    if given.run_name is not None:
        check_run_name(given.run_name)
    given.study.stat()


def study(given: Given) -> Iterator[str]:
    """Train and measure, and yield the table and the files."""
    from raytriever.evaluation.files import LATEX
    from raytriever.studies.file import load_study
    from raytriever.studies.outcome import PAGE, TABLE
    from raytriever.studies.run import check_directory, run_study

    output, study = given.output, load_study(given.study)
    run_name = f"study-{study.name}" if given.run_name is None else given.run_name
    check_directory(output, study.name)
    seeds = given.seeds or study.seeds
    if not run_study(study, output, seeds, run_name, warn, given.trial_gpus, given.trackers):
        warn(f"{output} is finished; a larger --seeds continues it")
    yield (output / TABLE).read_text()
    yield f"LaTeX: {output / LATEX}\n{output / PAGE}"
