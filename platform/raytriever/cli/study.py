"""`study`: train and evaluate the variants of a file, and test its claims."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from raytriever.cli.arguments import TRACKERS, Argument, number
from raytriever.cli.command import Command, Given
from raytriever.cli.suggestions import removed
from raytriever.core.errors import ConfigError
from raytriever.core.terminal import warn
from raytriever.experiments.run.start_run import check_run_name


def study_file(text: str) -> Path:
    """Return the path of a study file. Raises `ConfigError` if its name does not end in `.yaml` or `.yml`."""
    remedy = "give the path of a YAML file: your own, or a file of studies/ in a checkout"
    if not text.endswith((".yaml", ".yml")):
        raise ConfigError(f"{text!r} is not a study file", remedy=removed(f"study {text}") or remedy)
    return Path(text)


def check_study(given: Given) -> None:
    """Raise `UserError` if the run name is invalid, or `FileNotFoundError` if the study file does not exist."""
    if given.run_name is not None:
        check_run_name(given.run_name)
    given.study.stat()


def study(given: Given) -> Iterator[str]:
    """Train and evaluate all variants; yield the table and the paths of the files."""
    from raytriever.evaluation.evaluation_files import LATEX
    from raytriever.experiments.study.outcome import PAGE, TABLE
    from raytriever.experiments.study.run_study import check_directory, run_study
    from raytriever.experiments.study.study_file import load_study

    output, study = given.output, load_study(given.study)
    run_name = f"study-{study.name}" if given.run_name is None else given.run_name
    check_directory(output, study.name)
    seeds = given.seeds or study.seeds
    if not run_study(study, output, seeds, run_name, warn, given.trial_gpus, given.trackers):
        warn(f"{output} is finished; a larger --seeds continues it")
    yield (output / TABLE).read_text()
    yield f"LaTeX: {output / LATEX}\n{output / PAGE}"


STUDY = Command(
    study,
    check=check_study,
    output="folder to write runs, table and figures to",
    arguments=[
        Argument(
            "study", "data sets, variants and claims; docs/how-to/run-a-study.md", study_file, metavar="FILE.yaml"
        ),
        Argument(
            "--seeds",
            "trainings of each row of the table, with seeds 0 to N-1 (default: set by the file)",
            number("--seeds", int, 1, 100, "give 1 to 100"),
            metavar="N",
        ),
        Argument(
            "--trial-gpus",
            "GPUs of each training; a fraction if several trainings share a GPU (default: 1 if there is a GPU)",
            number("--trial-gpus", float, math.ulp(0.0), 1, "give a number above 0 and up to 1"),
            metavar="N",
        ),
        Argument("--run-name", "name of the study, for trackers (default: study-NAME, with the NAME of its file)"),
        *TRACKERS,
    ],
)
