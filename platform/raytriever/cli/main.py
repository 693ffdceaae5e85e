"""`raytriever STAGE` and `python jobs/STAGE.py`: one entry, one way to end.

A mistake a user can mend ends in one line and exit code 2, an interruption (Ctrl-C, or SIGTERM: `ray job stop` sends
that) in one line and 130; any other exception keeps its traceback, because it is a defect of ours. `--debug` shows the
traceback of mistakes too.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence

from raytriever import __version__
from raytriever.cluster.submitted import settle
from raytriever.errors import ConfigError, UserError
from raytriever.interruption import interruptible
from raytriever.options import did_you_mean
from raytriever.tracking.masking import masked

# Modules of this package; each has `main(words) -> None`. They are imported only when asked for.
STAGES = {
    "prepare": "check, tokenise and shard a data set",
    "train": "train an encoder and measure it before and after",
    "tune": "search the settings of training and measure the best",
    "evaluate": "measure a model on data sets",
    "encode": "encode the passages or the queries of a data set",
    "compare": "write one page over finished runs",
    "search": "find the best passages for a query",
    "mine": "find hard negatives and write a table of them",
    "score": "let a cross-encoder score what training learns from",
    "index": "build an approximate index, or open, measure and search it",
    "study": "measure a claim of a paper",
    "launch": "start a Ray head and an MLflow server on this machine",
    "submit": "run another stage on a Ray cluster, in an upload of this folder",
    "export": "hand a model over: graphs for other runtimes, a model card",
    "annotate": "let a language model find positives and write a data set with them",
}


def run(stage: str, words: Sequence[str] | None = None) -> int:
    """Run one stage on command-line words (those of this process when None); answers the exit code."""
    arguments = list(sys.argv[1:] if words is None else words)
    debug = "--debug" in arguments
    try:
        with interruptible():
            arguments = settle(arguments, lambda line: print(line, file=sys.stderr, flush=True))
            importlib.import_module(f"raytriever.cli.{stage}").main([word for word in arguments if word != "--debug"])
    except UserError as mistake:
        if debug:
            print(masked(traceback.format_exc()), end="", file=sys.stderr)
        print(f"error: {masked(' '.join(str(mistake).split()))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; give the same command again to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away: nothing more can be said
        return 141
    return 0


def entry() -> None:
    """The console script `raytriever`."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        lines = [f"raytriever {__version__}", "", "usage: raytriever STAGE [flags]", ""]
        lines += [f"  {name:<10}{text}" for name, text in STAGES.items()]
        print("\n".join([*lines, "", "raytriever STAGE --help tells the flags of a stage"]))
        sys.exit(0)
    if words[0] == "--version":
        print(__version__)
        sys.exit(0)
    if words[0] not in STAGES:
        mistake = ConfigError(f"unknown stage {words[0]!r}", remedy=did_you_mean(words[0], STAGES))
        print(f"error: {mistake}", file=sys.stderr)
        sys.exit(2)
    sys.exit(run(words[0], words[1:]))
