"""`train` and `quickstart`: train an encoder, evaluate it before and after, and print the table.

The settings come from the defaults, a recipe, a configuration file and the flags."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from raytriever.cli.arguments import TRACKERS, Argument, program_path, quote_command, show_views
from raytriever.cli.command import Command, Given, SettingsGroup
from raytriever.core.errors import ConfigError, flag_of
from raytriever.core.paths import PATH, runs_folder
from raytriever.core.terminal import warn
from raytriever.experiments.recipes import RECIPES, base_config
from raytriever.experiments.run.start_run import check_run, start_run
from raytriever.losses.loss_settings import terms_of
from raytriever.losses.user_loss_file import LossFile
from raytriever.training.run_config import SECTION_OF, SECTIONS, Config, errors_of, from_dict, load_config, settings_of


def train(given: Given) -> Iterator[str]:
    """Train; with `--dry-run`, only print the memory that each stage needs."""
    config: Config = given.config
    if given.dry_run:
        from raytriever.experiments.run.dry_run import dry_run

        for training in config.trainings:
            with errors_of(training):
                lines = list(dry_run(training))
            yield from [f"Stage {training.name}:"] * bool(training.name) + lines
        return
    notes = _overridden_flags(config, _flags(given))
    finished = start_run(config, given.base, given.output, given.run_name, given.fresh, warn, given.trackers, notes)

    from raytriever.data.pydocs import PYDOCS
    from raytriever.evaluation.report_document import format_results
    from raytriever.experiments.run.run_directory import newer_datasets

    if not finished.is_new:
        warn(f"{finished.path} is finished; --fresh removes it and trains again")
        names = (name for training in config.trainings for name in training.data.datasets)
        for line in newer_datasets(finished.path, (config.data.dataset, *names)):
            warn(line)
    yield f"\n{config.model.model} before and after training with the loss {config.losses}"
    yield format_results(finished.results)
    yield "\nContinue with:"
    yield from show_views(finished.path, given.trackers)
    dataset = config.data.dataset
    search = [program_path("raytriever"), "search", "--model", finished.path, "--dataset", dataset]
    yield f"  {quote_command(*search, _EXAMPLE if dataset == PYDOCS else 'a question')}"
    yield f"  {finished.path / 'report.html'} (open it in a browser)"


_EXAMPLE = "compress a file with gzip"


def read_run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the checked settings of a run, the defaults that file and flags override, and the name of the run."""
    config = resolve_settings(arguments)
    name = check_run(config, arguments.explicit_flags, arguments.run_name)
    return {"config": config, "base": _base(arguments), "name": name}


def read_quickstart(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of `train` for a quickstart: the MW loss, a fixed name, and the flags of `quickstart`."""
    of_train = TRAIN.parser("train", "train").parse(["--loss", "mw", "--run-name", "quickstart"])
    return vars(of_train) | vars(arguments) | read_run(of_train)


def resolve_settings(arguments: argparse.Namespace, may_have_stages: bool = True) -> Config:
    """Return the settings of a run from layers; later layers override: defaults, recipe, file, flags, stages."""
    flags, base = _flags(arguments), _base(arguments)
    if not arguments.config:
        return from_dict({}, "train", base, flags)
    config = load_config(Path(arguments.config), base, flags)
    if config.stages and not may_have_stages:
        raise ConfigError(
            "`tune` cannot search a curriculum", f"--config {arguments.config}", "remove `stages:` from the file"
        )
    check_own_losses(arguments, f"--config {arguments.config}", [training.loss.loss for training in config.trainings])
    return config


def check_own_losses(arguments: argparse.Namespace, where: str, losses: Iterable[str]) -> None:
    """Raise `ConfigError` if settings (`where`) name a loss in a Python file that the command line does not name.

    A loss file is a program, and somebody else may have written the settings."""
    named = [LossFile.parse(term) for term in terms_of(getattr(arguments, "loss", ""))]
    known = {(os.path.realpath(loss_file.file), loss_file.name) for loss_file in named if loss_file}
    for term in (term for loss in losses for term in terms_of(loss)):
        own = LossFile.parse(term)
        if own is not None and (os.path.realpath(own.file), own.name) not in known:
            remedy = f"read {own.file}; if you trust it, add {flag_of('loss')} {own.file}:{own.name}"
            raise ConfigError(f"its loss {own.file}:{own.name} is a Python program", where, remedy)


def _base(arguments: argparse.Namespace) -> Config:
    return base_config(arguments.recipe, getattr(arguments, "dataset", None), bool(arguments.config))


def _flags(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(arguments).items() if name in SECTION_OF}


def _overridden_flags(config: Config, flags: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each flag that a stage of the configuration file overrides."""
    for name, value in flags.items():
        if own := [stage.name for stage in config.stages if settings_of(stage)[name] != value]:
            yield f"{flag_of(name)} {value}: the --config file overrides it in stage {', '.join(own)}"


COMMON = (
    "--dataset",
    "--model",
    "--loss",
    "--output",
    "--run-name",
    "--recipe",
    "--config",
    "--batch-size",
    "--epochs",
    "--max-steps",
    "--learning-rate",
    "--temperature",
    "--negatives-per-query",
    "--negatives-table",
    "--num-workers",
    "--precision",
    "--grad-cache-chunk",
    "--best-metric",
    "--seed",
    "--fresh",
)
RUN_SETTINGS = [SettingsGroup(section, kind, section) for section, kind in SECTIONS.items()]


def run_arguments(what: str, name: str, file: str) -> list[Argument]:
    """Return the flags of a run or a sweep that are not settings. `name` describes the default of `--run-name`."""
    return [
        Argument("--run-name", f"name of the {what}, for trackers (default: {name})"),
        Argument("--recipe", f"settings to start from: {', '.join(RECIPES)}"),
        Argument("--config", f"YAML settings{file}", PATH, metavar="FILE"),
        Argument("--fresh", f"remove an earlier {what} in --output", action="store_true"),
        *TRACKERS,
    ]


def default_output(given: Given) -> Path:
    """Return the default directory of a run or sweep: `RUN-NAME` in the folder of runs."""
    return runs_folder() / given.name


TRAIN = Command(
    train,
    common=COMMON,
    read=read_run,
    output="directory of the run (default: runs/RUN-NAME)",
    default_output=default_output,
    writes=lambda given: not given.dry_run,
    arguments=[
        *run_arguments("run", "data, model, loss, seed", "; flags override them, its `stages:` override flags"),
        Argument("--dry-run", "only print the memory of training and the chunk size that fits", action="store_true"),
    ],
    settings=RUN_SETTINGS,
)
QUICKSTART = Command(
    train,
    read=read_quickstart,
    output="run directory (default: runs/quickstart)",
    default_output=default_output,
    arguments=[Argument("--fresh", "remove an earlier run in --output", action="store_true")],
)
