"""`study`: repeat the trainings and measurements of a table of a paper, or of a file of one's own.

`study ood` measures the gap between queries and passages, and has its own flags.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytriever.cli.arguments import (
    ABOVE_0,
    Parser,
    add_number,
    add_output,
    add_path,
    add_settings,
    add_trackers,
    build_config,
    check_effects,
    lock_output,
)
from raytriever.config import check_run_name
from raytriever.data.config import DataConfig
from raytriever.errors import ConfigError, setting
from raytriever.index.approximate.config import INDEXES
from raytriever.options import did_you_mean
from raytriever.paths import DATA_ROOT, GAP_MODELS, check_paths
from raytriever.studies.recipes import AT_FULL, OWN, STUDIES, study_recipe, study_summary
from raytriever.terminal import show, warn
from raytriever.training.config import TrainingConfig

if TYPE_CHECKING:
    from raytriever.studies.definition import Study

_FILES = (".yaml", ".yml")
SCALES = ("smoke", "small", "full")
MOST_SEEDS = 100
OOD = "ood"


def main(words: list[str]) -> None:
    """Parse, study, print."""
    if words[:1] == [OOD]:
        _ood(words[1:])
        return
    try:
        arguments = _parser().parse(words)
    except ConfigError as error:
        if words:
            raise
        remedy = f"give {', '.join((*STUDIES, OOD))} or a FILE.yaml; --list describes them"
        raise ConfigError("no study is named", remedy=remedy) from error
    name, scale, output = arguments.study, arguments.scale, Path(arguments.output)
    own = _load_own(arguments) if name.endswith(_FILES) else None
    if own is not None:
        name, scale = own.name, OWN
    elif name not in STUDIES:
        remedy = did_you_mean(name, (*STUDIES, OOD)) if name != OOD else "put it first, as in `study ood --output DIR`"
        raise ConfigError(f"unknown study {name!r}", remedy=remedy)
    elif scale not in SCALES:
        raise ConfigError(f"unknown scale {scale!r}", "--scale", did_you_mean(scale, SCALES))
    elif scale == SCALES[-1] and name in AT_FULL:
        remedy = f"run the study {AT_FULL[name]}, or give --scale small"
        raise ConfigError(f"at this scale {name} is {AT_FULL[name]}", f"--scale {scale}", remedy)
    run_name = f"study-{name}-{scale}" if arguments.run_name is None else arguments.run_name
    check_run_name(run_name)
    root = Path(arguments.data_root) if arguments.data_root else None
    lock_output(arguments, output)

    from raytriever.evaluation.files import LATEX
    from raytriever.studies.cost import cost_of, cost_text
    from raytriever.studies.definition import FULL
    from raytriever.studies.run.outcome import PAGE, TABLE
    from raytriever.studies.run.study import DATA, check_directory, has_gpu, run_study

    check_directory(output, name, scale)
    study = own or study_recipe(name)(scale, root, output / DATA)
    seeds = arguments.seeds or study.seeds
    if scale == FULL:
        cost = cost_of(study, seeds)
        show(cost_text(study, seeds, cost))
        if not has_gpu():
            remedy = "give --scale small, or run the same command on a machine with a GPU"
            raise ConfigError(
                f"the study needs {cost.gpu_hours:,.0f} GPU hours, and this machine has no GPU",
                f"--scale {FULL}",
                remedy,
            )
    if not run_study(study, scale, output, seeds, run_name, warn, arguments.trial_gpus, arguments.trackers):
        warn(f"{output} is finished; a larger --seeds continues it")
    show((output / TABLE).read_text())
    show(f"LaTeX: {output / LATEX}\n{output / PAGE}")


def _load_own(arguments: argparse.Namespace) -> Study:
    """Return the study of a file; raises `ConfigError` for a flag that belongs to the studies of the papers."""
    for flag in ("scale", "data_root"):
        if flag in arguments.explicit_flags:
            raise ConfigError("has no effect on a study from a file", setting(flag), "leave it out")

    from raytriever.studies.own import load_study

    return load_study(Path(arguments.study))


class _List(argparse.Action):
    """Flag that prints the studies, each with the first line of its description."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *values: Any) -> None:
        lines = [[name, study_summary(name)] for name in STUDIES]
        lines += [[OOD, f"The gap between queries and passages; see `study {OOD} --help`."]]
        lines += [["FILE.yaml", "A study of your own: docs/how-to/run-a-study.md."]]
        show("\n".join(f"{name:<15} {text}" for name, text in lines))
        parser.exit()


def _parser() -> Parser:
    parser = Parser(
        prog="study", description="Train and measure the arms of a table of a paper or of a file, and check its claims."
    )
    parser.add_argument(
        "study",
        metavar="NAME|FILE.yaml",
        help=f"a file of your own, or one of: {', '.join(STUDIES)}; or ood, see `study ood --help`",
    )
    parser.add_argument("--list", action=_List, help="print what each study repeats and exit")
    parser.add_argument(
        "--scale",
        default="smoke",
        metavar="|".join(SCALES),
        help="size of the study; full is the size of the paper (default: smoke)",
    )
    add_output(parser, "folder to write runs, table and figures to")
    seeds = "trainings of each row of the table, with seeds 0 to N-1 (default: set by the study)"
    add_number(parser, "--seeds", int, "N", seeds, (1, MOST_SEEDS, f"give 1 to {MOST_SEEDS}"))
    root = "folder that holds the data sets in folders by name: squad, scifact, ..."
    add_path(parser, "--data-root", DATA_ROOT, "DIR", root)
    gpus = "GPUs of a row while it trains, a fraction if several share one (default: 1 if there is a GPU)"
    add_number(parser, "--trial-gpus", float, "N", gpus, (ABOVE_0, 1, "give a number above 0 and up to 1"))
    parser.add_argument(
        "--run-name",
        metavar="NAME",
        help="name of the study, for trackers (default: study-NAME-SCALE; of a file study-NAME-own)",
    )
    add_trackers(parser)
    return parser


def _ood(words: list[str]) -> None:
    arguments = _ood_parser().parse(words)
    data = build_config(arguments, DataConfig)
    training = build_config(arguments, TrainingConfig)
    check_effects(arguments, data, training, needs={"documents": ("model=control",)})
    indexes = tuple(dict.fromkeys(arguments.indexes.split(",")))
    for kind in indexes:
        if kind not in INDEXES:
            raise ConfigError(f"unknown index {kind!r}", "--indexes", did_you_mean(kind, INDEXES))
    check_paths(data)
    output = lock_output(arguments)

    from raytriever.evaluation.names import distinct_names
    from raytriever.studies.ood.job import OodJob, run_ood

    models = tuple(dict.fromkeys(arguments.model))
    job = OodJob(
        models=models,
        dataset=data.dataset,
        split=arguments.split,
        indexes=indexes,
        query_count=arguments.queries,
        control_documents=arguments.documents,
        precision=training.precision,
        max_bad_rows=data.max_bad_rows,
        seed=training.seed,
    )
    for name, text in run_ood(job, output, dict(zip(models, distinct_names(models), strict=True)), warn).items():
        show(f"{name}\n{text}")
    show(str(output))


def _ood_parser() -> Parser:
    parser = Parser(
        prog=f"study {OOD}",
        description="Measure the gap between queries and passages, and its cost for approximate indexes.",
    )
    add_output(parser, "folder to write tables and figures to")
    add_path(
        parser,
        "--model",
        GAP_MODELS,
        "NAME",
        "encoders; `control` is a synthetic data set with a gap (default: minilm)",
        nargs="+",
        default=["minilm"],
    )
    parser.add_argument(
        "--indexes",
        default=",".join(kind for kind in INDEXES if kind != "vamana"),
        metavar="A,B",
        help="kinds of index to build (default: all but vamana)",
    )
    parser.add_argument(
        "--split", default="test", metavar="NAME", help="split whose queries are searched (default: test)"
    )
    queries = "number of queries, and of held-out passages (default: 1000)"
    add_number(parser, "--queries", int, "N", queries, (1, inf, "give at least 1"), default=1_000)
    documents = "number of documents in the control set (default: 100000)"
    add_number(parser, "--documents", int, "N", documents, (1_000, inf, "give at least 1,000"), default=100_000)
    add_settings(parser, DataConfig, "data", only=["dataset", "max_bad_rows"])
    add_settings(parser, TrainingConfig, "arithmetic", only=["precision", "seed"])
    return parser
