"""`study`: train and measure the arms of a file, and test its claims."""

from __future__ import annotations

from pathlib import Path

from raytriever.cli.arguments import ABOVE_0, Parser, add_number, add_output, add_trackers, lock_output
from raytriever.cli.suggestions import removed
from raytriever.errors import ConfigError
from raytriever.experiment.start import check_run_name
from raytriever.store.disk import disk_errors
from raytriever.terminal import show, warn

MOST_SEEDS = 100
_REMEDY = "give the path of a YAML file: one of yours, or one of studies/ in a checkout"


def main(words: list[str]) -> None:
    """Parse, study, print."""
    if words and not words[0].startswith("-") and not words[0].endswith((".yaml", ".yml")):
        remedy = removed(f"study {words[0]}") or _REMEDY
        raise ConfigError(f"{words[0]!r} is no file of a study", remedy=remedy)
    arguments = _parser().parse(words)
    file, output = Path(arguments.study), Path(arguments.output)
    with disk_errors(file, reading=True):
        file.stat()  # before anything heavy is imported

    from raytriever.evaluation.files import LATEX
    from raytriever.studies.file import load_study
    from raytriever.studies.outcome import PAGE, TABLE
    from raytriever.studies.run import check_directory, run_study

    study = load_study(file)
    run_name = f"study-{study.name}" if arguments.run_name is None else arguments.run_name
    check_run_name(run_name)
    lock_output(arguments, output)
    check_directory(output, study.name)
    seeds = arguments.seeds or study.seeds
    if not run_study(study, output, seeds, run_name, warn, arguments.trial_gpus, arguments.trackers):
        warn(f"{output} is finished; a larger --seeds continues it")
    show((output / TABLE).read_text())
    show(f"LaTeX: {output / LATEX}\n{output / PAGE}")


def _parser() -> Parser:
    parser = Parser(prog="study", description="Train and measure the arms of a file, and test its claims.")
    parser.add_argument("study", metavar="FILE.yaml", help="data sets, arms and claims; docs/how-to/run-a-study.md")
    add_output(parser, "folder to write runs, table and figures to")
    seeds = "trainings of each row of the table, with seeds 0 to N-1 (default: set by the file)"
    add_number(parser, "--seeds", int, "N", seeds, (1, MOST_SEEDS, f"give 1 to {MOST_SEEDS}"))
    gpus = "GPUs of a row while it trains, a fraction if several share one (default: 1 if there is a GPU)"
    add_number(parser, "--trial-gpus", float, "N", gpus, (ABOVE_0, 1, "give a number above 0 and up to 1"))
    parser.add_argument(
        "--run-name", metavar="NAME", help="name of the study, for trackers (default: study-NAME, by its file)"
    )
    add_trackers(parser)
    return parser
