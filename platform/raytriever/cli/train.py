"""`train`: train an encoder, measure it before and after, and print the table.

The settings come from the defaults, a recipe, a configuration file and the flags.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from raytriever.cli.arguments import (
    Parser,
    add_output,
    add_path,
    add_settings,
    add_trackers,
    explicit_settings,
    lock_output,
    program_path,
    quote_command,
    show_views,
)
from raytriever.config import (
    Config,
    Curriculum,
    check_curriculum,
    check_curriculum_paths,
    check_explicit_settings,
    check_run_name,
    default_run_name,
    load_curriculum,
    override,
    shown_run_name,
    to_dict,
)
from raytriever.data.config import DataConfig
from raytriever.errors import ConfigError, flag_of
from raytriever.experiment.directory import check_run_directory
from raytriever.losses.config import LossConfig, terms_of
from raytriever.losses.files import LossFile
from raytriever.models.config import ModelConfig
from raytriever.paths import SETTINGS, runs_folder
from raytriever.recipes import RECIPES, base_config
from raytriever.terminal import show, warn
from raytriever.training.config import RefreshConfig, TrainingConfig, ValidationConfig

SECTIONS = {
    "data": DataConfig,
    "model": ModelConfig,
    "loss": LossConfig,
    "training": TrainingConfig,
    "refresh": RefreshConfig,
    "validation": ValidationConfig,
}


def main(words: list[str]) -> None:
    """Parse, train, print."""
    arguments = _parser().parse(words)
    curriculum = resolve_settings(arguments)
    check_curriculum(curriculum)
    check_explicit_settings(curriculum, arguments.explicit_flags)
    name = default_run_name(curriculum) if arguments.run_name is None else arguments.run_name
    check_run_name(name)
    check_curriculum_paths(curriculum)
    if arguments.dry_run:
        from raytriever.experiment.dry_run import dry_run

        for line in dry_run(curriculum):
            show(line)
        return
    output = run_output(arguments, name)
    # Before anything heavy is imported. The loss of a file is compared with its digest.
    settings = to_dict(replace(curriculum.base, loss=curriculum.base.loss.pinned()))
    check_run_directory(output, settings, arguments.fresh)

    from raytriever.data.pydocs import PYDOCS
    from raytriever.evaluation.document import training_notes
    from raytriever.evaluation.metric_tables import metrics_table
    from raytriever.evaluation.results import EVALUATION, Results
    from raytriever.experiment.directory import newer_datasets
    from raytriever.experiment.train import run_experiment

    for line in _overridden_flags(curriculum, _flags(arguments)):
        warn(line)
    shown = arguments.run_name or shown_run_name(curriculum, _base(arguments))
    finished = run_experiment(curriculum, output, shown, arguments.fresh, warn, arguments.trackers)
    if not finished.is_new:
        warn(f"{finished.path} is finished; --fresh removes it and trains again")
        names = (name for stage in curriculum.all_stages for name in stage.config.data.datasets)
        for line in newer_datasets(finished.path, (curriculum.base.data.dataset, *names)):
            warn(line)
    rows = {f"{_ROW_TITLES[row]}": metrics for row, metrics in finished.rows.items()}
    config = curriculum.base
    show(f"\n{config.data.test_split} split of {config.data.dataset}, {config.model.model}, loss {curriculum.losses}")
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


def resolve_settings(arguments: argparse.Namespace) -> Curriculum:
    """Return the settings of a run: recipe, file and flags over the defaults, and the file's stages over all these."""
    flags, base = _flags(arguments), _base(arguments)
    if not arguments.config:
        return Curriculum(override(base, flags))
    curriculum = load_curriculum(Path(arguments.config), base, flags)
    check_own_losses(
        arguments, f"--config {arguments.config}", [each.config.loss.loss for each in curriculum.all_stages]
    )
    return curriculum


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


def _overridden_flags(curriculum: Curriculum, flags: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each flag that the file overrides in a stage."""
    for section, settings in flags.items():
        for name, value in settings.items():
            own = [s.name for s in curriculum.stages if getattr(getattr(s.config, section), name) != value]
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
    add_path(run, "--config", SETTINGS, "FILE", f"YAML settings{file}")
    run.add_argument("--fresh", action="store_true", help=f"remove an earlier {what} in --output")
    add_trackers(run)
    return run


def run_output(arguments: argparse.Namespace, name: str) -> Path:
    """Lock the directory of a run or a sweep, by default that of its name, and return it."""
    return lock_output(arguments, Path(arguments.output) if arguments.output else runs_folder() / name)
