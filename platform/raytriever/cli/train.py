"""`train`: train an encoder, measure it before and after, and print the table.

The settings come from the defaults, a recipe, a configuration file and the flags.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from raytriever.cli.arguments import (
    TRACKERS,
    Argument,
    Parser,
    add_output,
    add_settings,
    explicit_settings,
    lock_output,
    program_path,
    quote_command,
    show_views,
)
from raytriever.config import SECTIONS, Config, errors_of, load_config, override
from raytriever.errors import ConfigError, flag_of
from raytriever.experiment.start import check_run, start_run
from raytriever.losses.config import LossConfig, terms_of
from raytriever.losses.files import LossFile
from raytriever.paths import PATH, runs_folder
from raytriever.recipes import RECIPES, base_config
from raytriever.terminal import show, warn


def main(words: list[str]) -> None:
    """Parse, train, print."""
    arguments = _parser().parse(words)
    config = resolve_settings(arguments)
    name = check_run(config, arguments.explicit_flags, arguments.run_name)
    if arguments.dry_run:
        _plan(config)
        return
    overridden = _overridden_flags(config, _flags(arguments))
    output, base = run_output(arguments, name), _base(arguments)
    finished = start_run(
        config, base, output, arguments.run_name, arguments.fresh, warn, arguments.trackers, overridden
    )

    from raytriever.data.pydocs import PYDOCS
    from raytriever.evaluation.document import training_notes
    from raytriever.evaluation.results import EVALUATION, Results
    from raytriever.evaluation.tables import metrics_table
    from raytriever.experiment.directory import newer_datasets

    if not finished.is_new:
        warn(f"{finished.path} is finished; --fresh removes it and trains again")
        names = (name for training in config.trainings for name in training.data.datasets)
        for line in newer_datasets(finished.path, (config.data.dataset, *names)):
            warn(line)
    rows = {f"{_ROW_TITLES[row]}": metrics for row, metrics in finished.rows.items()}
    show(f"\n{config.data.test_split} split of {config.data.dataset}, {config.model.model}, loss {config.losses}")
    show(metrics_table(rows).as_text())
    show(training_notes(Results.read(finished.path / EVALUATION), _ROW_TITLES))
    if finished.quarantined:
        show(finished.quarantined)
    show("\nContinue with:")
    show_views(finished.path, arguments.trackers)
    dataset = config.data.dataset
    search = [program_path("raytriever"), "search", "--model", finished.path, "--dataset", dataset]
    question = _EXAMPLE if dataset == PYDOCS else "a question"
    show(f"  {quote_command(*search, question)}")
    show(f"  {finished.path / 'report.html'} (open it in a browser)")


_ROW_TITLES = {"bm25": "BM25", "before": "encoder before", "after": "encoder after"}
_EXAMPLE = "compress a file with gzip"


def _plan(config: Config) -> None:
    """Print the memory plan of each training."""
    from raytriever.experiment.dry_run import dry_run

    for training in config.trainings:
        with errors_of(training):
            lines = list(dry_run(training))
        for line in [f"Stage {training.name}:"] * bool(training.name) + lines:
            show(line)


def resolve_settings(arguments: argparse.Namespace, may_have_stages: bool = True) -> Config:
    """Return the settings of a run: recipe, file and flags over the defaults, and the file's stages over all these."""
    flags, base = _flags(arguments), _base(arguments)
    if not arguments.config:
        return override(base, flags)
    config = load_config(Path(arguments.config), base, flags)
    if config.stages and not may_have_stages:
        raise ConfigError(
            "`tune` cannot search a curriculum", f"--config {arguments.config}", "remove `stages:` from the file"
        )
    check_own_losses(arguments, f"--config {arguments.config}", [each.loss.loss for each in config.trainings])
    return config


def check_own_losses(arguments: argparse.Namespace, where: str, losses: Iterable[str]) -> None:
    """Check that the command line names each loss of a Python file that a settings file names.

    Args:
        where: flag and path of the settings file.
        losses: losses in it.

    Raises:
        ConfigError: a loss is not named: somebody else may have written the settings, and the loss is a program.
    """
    named = [LossFile.parse(term) for term in terms_of(explicit_settings(arguments, LossConfig).get("loss") or "")]
    known = {(os.path.realpath(own.file), own.name) for own in named if own}
    for term in (term for loss in losses for term in terms_of(loss)):
        own = LossFile.parse(term)
        if own is not None and (os.path.realpath(own.file), own.name) not in known:
            raise ConfigError(
                f"its loss {own.file}:{own.name} is a program of this file",
                where,
                f"read {own.file}; if you trust it, add {flag_of('loss')} {own.file}:{own.name}",
            )


def _base(arguments: argparse.Namespace) -> Config:
    """Return the settings without those of the flags and the file."""
    return base_config(arguments.recipe, _flags(arguments)["data"].get("dataset"), bool(arguments.config))


def _flags(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the settings that the command line contains, by section."""
    flags = {name: explicit_settings(arguments, kind) for name, kind in SECTIONS.items()}
    if "epochs" in flags["training"]:
        flags["training"].setdefault("max_steps", None)  # explicit epochs override the steps of a recipe
    return flags


def _overridden_flags(config: Config, flags: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each flag that the file overrides in a stage."""
    for section, settings in flags.items():
        for name, value in settings.items():
            own = [stage.name for stage in config.stages if getattr(getattr(stage, section), name) != value]
            if own and value is not None:
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


def _parser() -> Parser:
    parser = Parser("train", "Train a dense retriever and measure it before and after.", COMMON)
    run = add_run_flags(parser, "run", "data, model, loss, seed", "; flags override them, `stages:` override flags")
    run.add_argument(
        "--dry-run", action="store_true", help="print the memory that training needs and the chunk that fits; no start"
    )
    return parser


def add_run_flags(parser: Parser, what: str, name: str, file: str) -> argparse._ArgumentGroup:
    """Add the settings of training and the flags of a run or a sweep, with its default name; return their group."""
    for section, kind in SECTIONS.items():
        add_settings(parser, kind, section)
    run = parser.add_argument_group("run")
    add_output(run, f"directory of the {what} (default: runs/RUN-NAME)", required=False)
    run.add_argument("--run-name", metavar="NAME", help=f"name of the {what}, for trackers (default: {name})")
    run.add_argument("--recipe", metavar="NAME", help=f"settings to start from: {', '.join(RECIPES)}")
    Argument("--config", f"YAML settings{file}", PATH, metavar="FILE").add(run)
    run.add_argument("--fresh", action="store_true", help=f"remove an earlier {what} in --output")
    for argument in TRACKERS:
        argument.add(run)
    return run


def run_output(arguments: argparse.Namespace, name: str) -> Path:
    """Lock the directory of a run or a sweep, by default that of its name, and return it."""
    return lock_output(arguments, Path(arguments.output) if arguments.output else runs_folder() / name)
