"""`train`: settings from defaults, recipe, file and flags; then one experiment; then its table."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shutil
import sys
from pathlib import Path

from raytriever.cli.arguments import Parser, add_settings, given, warn
from raytriever.config import Config, check_config, load_config
from raytriever.data.config import DataConfig
from raytriever.errors import ConfigError
from raytriever.losses.config import LossConfig
from raytriever.models.config import ModelConfig
from raytriever.options import did_you_mean
from raytriever.recipes import RECIPES
from raytriever.training.config import TrainingConfig

SECTIONS = {"data": DataConfig, "model": ModelConfig, "loss": LossConfig, "training": TrainingConfig}
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def main(words: list[str]) -> None:
    """Parse, train, print."""
    arguments = _parser().parse(words)
    config = resolve(arguments)
    check_config(config)
    name = arguments.run_name or _default_name(config)
    if not RUN_NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no run name", "--run-name", "use letters, digits, '.', '_' and '-'")

    from raytriever.cluster.experiment import default_output, run_experiment
    from raytriever.retrieval.table import metrics_table
    from raytriever.tracking.mlflow_tracker import tracking_uri

    output = Path(arguments.output) if arguments.output else default_output(name)
    finished = run_experiment(config, output, name, arguments.fresh, warn)
    if not finished.anew:
        warn(f"{finished.path} is finished; --fresh trains anew")
    rows = {f"{_ROW_TITLES[row]}": metrics for row, metrics in finished.rows.items()}
    print(f"\n{config.data.test_split} split of {config.data.dataset}, {config.model.model}, loss {config.loss.loss}")
    print(metrics_table(rows))
    if finished.quarantined:
        print(finished.quarantined)
    print("\nGo on with:")
    print(f"  {_program('mlflow')} ui --backend-store-uri {tracking_uri()}")
    print(f'  {_program("python")} jobs/search.py --model {finished.path} --dataset {config.data.dataset} "{_EXAMPLE}"')
    print(f"  {finished.path / 'report.html'} in a browser")


_ROW_TITLES = {"bm25": "BM25", "before": "encoder before", "after": "encoder after"}
_EXAMPLE = "solve a system of linear equations"


def _program(name: str) -> str:
    """How this environment's program is called from here: by its name where the shell would find it, else by path."""
    own = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if found is not None and Path(found).absolute() == own.absolute():
        return name
    return os.path.relpath(own) if own.absolute().is_relative_to(Path.cwd()) else str(own)


def resolve(arguments: argparse.Namespace) -> Config:
    """Lay recipe, file and flags over the defaults."""
    config = _base(arguments)
    if arguments.config:
        config = load_config(Path(arguments.config), config)
    for name, kind in SECTIONS.items():
        flags = given(arguments, kind)
        if "epochs" in flags and "max_steps" not in flags:
            flags["max_steps"] = None  # a recipe's steps give way to the epochs asked for
        config = dataclasses.replace(config, **{name: dataclasses.replace(getattr(config, name), **flags)})
    return config


def _base(arguments: argparse.Namespace) -> Config:
    if arguments.recipe:
        if arguments.recipe not in RECIPES:
            raise ConfigError(
                f"unknown recipe {arguments.recipe!r}", "--recipe", did_you_mean(arguments.recipe, RECIPES)
            )
        return RECIPES[arguments.recipe]()
    dataset = getattr(arguments, "dataset", DataConfig.dataset)
    return RECIPES["pydocs"]() if dataset == "pydocs" and not arguments.config else Config()


def _parser() -> Parser:
    parser = Parser(prog="train", description="Train a dense retriever and measure it before and after.")
    for name, kind in SECTIONS.items():
        add_settings(parser, kind, name)
    run = parser.add_argument_group("run")
    run.add_argument("--output", metavar="DIR", help="the run directory (default: runs/RUN-NAME)")
    run.add_argument(
        "--run-name", metavar="NAME", help="the run's name in MLflow (default: data, model, loss and seed)"
    )
    run.add_argument("--recipe", metavar="NAME", help=f"settings to start from: {', '.join(RECIPES)}")
    run.add_argument("--config", metavar="FILE", help="YAML settings laid over the recipe; flags win over them")
    run.add_argument("--fresh", action="store_true", help="remove what an earlier run left in --output")
    run.add_argument("--debug", action="store_true", help="show the traceback of a mistake too")
    return parser


def _default_name(config: Config) -> str:
    parts = (
        Path(config.data.dataset).name,
        Path(config.model.model).name,
        config.loss.loss,
        f"seed{config.training.seed}",
    )
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts)).strip("-._")[-100:].lstrip("-._")
