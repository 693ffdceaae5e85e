"""`raytriever STAGE` and `python jobs/STAGE.py`: one entry, one way to end.

A mistake a user can mend ends in one line and exit code 2, an interruption (Ctrl-C, SIGTERM as `ray job stop` sends it,
or SIGHUP of a closed terminal) in one line and 130; any other exception keeps its traceback, because it is a defect of
ours. `--debug` shows the traceback of mistakes too.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from raytriever import __version__
from raytriever.activity import activity
from raytriever.cli.suggestions import instead_of_stage
from raytriever.cluster.working_directory import enter_lasting_folder
from raytriever.errors import ConfigError, StorageError, UserError
from raytriever.interruption import interruptible
from raytriever.locking import released_at_end
from raytriever.storage import disk_errors
from raytriever.terminal import one_line, open_missing_streams, show, warn

LONGEST_ERROR = 1500  # characters
# Modules of this package; each has `main(words) -> None`. They are imported only when asked for.
TASKS = {
    "Prepare data": {
        "prepare": "check, tokenise and shard a data set",
        "annotate": "find positives with a language model and write a data set with them",
        "mine": "find hard negatives and write a table of them",
        "score": "score pairs with a cross-encoder, for training to learn from",
    },
    "Train": {
        "train": "train an encoder and measure it before and after",
        "tune": "search the settings of training and measure the best",
        "study": "repeat a table of a paper and check its claims",
    },
    "Measure": {
        "evaluate": "measure models on data sets",
        "compare": "write one page that compares finished runs",
    },
    "Use a model": {
        "search": "find the best passages for a query",
        "encode": "encode the passages or the queries of a data set",
        "index": "build an approximate index, or open, measure and search it",
        "export": "write a model for other runtimes, with a model card",
    },
    "Operate": {
        "launch": "start a Ray head and an MLflow server on this machine",
        "submit": "run another stage on a Ray cluster, in an upload of this folder",
        "runs": "list, show and clean run directories",
        "cache": "list and prune what is kept to save time",
        "doctor": "check this machine: versions, devices, servers, disks, locks",
    },
}
STAGES = {name: text for stages in TASKS.values() for name, text in stages.items()}


def run(stage: str, words: Sequence[str] | None = None) -> int:
    """Run one stage on command-line words (those of this process when None); answers the exit code."""
    arguments = list(sys.argv[1:] if words is None else words)
    return _exit_code(partial(_run_stage, stage, arguments), f"raytriever {stage}", "--debug" in arguments)


def entry() -> None:
    """The console script `raytriever`."""
    words = sys.argv[1:]
    sys.exit(run(words[0], words[1:]) if words and words[0] in STAGES else _exit_code(partial(_answer, words)))


def stage_module(stage: str) -> str:
    """Return the dotted name of the module of a stage."""
    return f"raytriever.cli.{'operate.' if stage in TASKS['Operate'] else ''}{stage}"


def _run_stage(stage: str, arguments: list[str]) -> None:
    arguments = enter_lasting_folder(arguments, warn)
    with activity(f"raytriever {stage} is working"), released_at_end():
        importlib.import_module(stage_module(stage)).main([word for word in arguments if word != "--debug"])


def _answer(words: list[str]) -> None:
    """Print the stages or the version."""
    if words[:1] == ["--version"]:
        show(__version__)
        return
    if words and words[0] not in ("-h", "--help"):
        raise ConfigError(f"unknown stage {words[0]!r}", remedy=instead_of_stage(words[0], STAGES))
    lines = [f"raytriever {__version__}", "", "usage: raytriever STAGE [flags]"]
    for task, stages in TASKS.items():
        lines += ["", f"{task}:", *(f"  {name:<10}{text}" for name, text in stages.items())]
    show("\n".join([*lines, "", "raytriever STAGE --help shows the flags of a stage"]))


def _exit_code(action: Callable[[], None], name: str = "raytriever", debug: bool = False) -> int:
    """Call an action and turn the ways in which it may end into an exit code.

    A system error that is no mistake of the package (a full disk, too many open files) ends in one line too, wherever
    it occurs; `name` is used where the error names no path.
    """
    open_missing_streams()
    try:
        with interruptible(), disk_errors(name):
            _check_working_directory()
            action()
    except UserError as mistake:
        if debug:
            _report(traceback.format_exc().rstrip("\n"))
        _report(_error_line(str(mistake)))
        return 2
    except FileNotFoundError as error:
        if error.filename is None:
            raise
        missing = f"{error.filename}: no such file or folder; give a path that exists, and let nothing remove it"
        _report(_error_line(missing))
        return 2
    except KeyboardInterrupt:
        warn("interrupted; give the same command again to go on")
        return 130
    except BrokenPipeError:
        return 141  # the reader of our output went away: nothing more can be printed
    return 0


def _report(text: str) -> None:
    """Print a line on standard error; the exit code tells the same where its reader has gone."""
    with suppress(BrokenPipeError):
        warn(text)


def _error_line(text: str) -> str:
    """The line of an error; of a very long one, which quotes a path or a row, the beginning and the end."""
    line = one_line(text)
    half = LONGEST_ERROR // 2
    return f"error: {line}" if len(line) <= LONGEST_ERROR else f"error: {line[:half]} ... {line[-half:]}"


def _check_working_directory() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise StorageError("the working directory was removed", remedy="change to a folder that exists") from error
