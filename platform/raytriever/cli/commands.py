"""Table of the commands. A command is imported only when it runs, so that `raytriever --help` stays fast."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from raytriever.cli.arguments import Parser
    from raytriever.cli.command import Command


class Row(NamedTuple):
    """Row of the table of commands. The command is imported when it runs or when its flags are shown."""

    task: str  # Title of the command's group in the overview
    help: str  # Purpose of the command in one line
    location: str  # Module and name of its `Command`, such as `raytriever.cli.model_commands:SEARCH`

    @property
    def command(self) -> Command:
        """The command of the row. Reading this property imports the command."""
        module, _, name = self.location.partition(":")
        command: Command = getattr(import_module(module), name)
        return command

    def parser(self, name: str) -> Parser:
        """Return the parser of the command."""
        return self.command.parser(name, self.help)

    def main(self, name: str, words: list[str]) -> None:
        """Parse the words of a command line and run the command."""
        self.command.main(name, self.help, words)


PREPARE, TRAIN, EVALUATE, USE, OPERATE = "Prepare data", "Train", "Measure", "Use a model", "Operate"
_CLI = "raytriever.cli"

COMMANDS = {
    "import": Row(
        PREPARE, "write a folder of documents, and questions about them, as a data set", f"{_CLI}.data_commands:IMPORT"
    ),
    "prepare": Row(
        PREPARE, "check, tokenize and shard a data set, and print a summary of it", f"{_CLI}.data_commands:PREPARE"
    ),
    "annotate": Row(
        PREPARE, "find positives with a language model and write a data set with them", f"{_CLI}.data_commands:ANNOTATE"
    ),
    "mine": Row(
        PREPARE,
        "find hard negatives, remove the false ones among them, and write a table",
        f"{_CLI}.data_commands:MINE",
    ),
    "score": Row(PREPARE, "score pairs with a cross-encoder, as a teacher for training", f"{_CLI}.data_commands:SCORE"),
    "quickstart": Row(TRAIN, "train on the docstrings of Python, evaluate, print a table", f"{_CLI}.train:QUICKSTART"),
    "train": Row(TRAIN, "train an encoder and evaluate it before and after", f"{_CLI}.train:TRAIN"),
    "tune": Row(TRAIN, "search the settings of training and evaluate the best", f"{_CLI}.tune:TUNE"),
    "study": Row(
        TRAIN,
        "train and evaluate the variants of a file with several seeds, and test its claims",
        f"{_CLI}.study:STUDY",
    ),
    "evaluate": Row(EVALUATE, "evaluate models on data sets and compare them", f"{_CLI}.evaluate:EVALUATE"),
    "compare": Row(
        EVALUATE, "compare finished runs of training and evaluation on one HTML page", f"{_CLI}.evaluate:COMPARE"
    ),
    "search": Row(USE, "find the best passages of a data set for a query", f"{_CLI}.model_commands:SEARCH"),
    "encode": Row(USE, "encode the passages or the queries of a data set", f"{_CLI}.model_commands:ENCODE"),
    "index": Row(
        USE,
        "build an approximate index over the passages of a data set, or open, evaluate and search it",
        f"{_CLI}.model_commands:INDEX",
    ),
    "export": Row(
        USE, "write a model for other runtimes: weights, graphs and a model card", f"{_CLI}.model_commands:EXPORT"
    ),
    "runs": Row(
        OPERATE,
        "list run directories, or clean them of checkpoints that are no longer needed",
        f"{_CLI}.operator_commands:RUNS",
    ),
    "cache": Row(
        OPERATE,
        "list cached data sets, models and embeddings, or remove the least recently used ones",
        f"{_CLI}.operator_commands:CACHE",
    ),
    "doctor": Row(OPERATE, "check this machine: devices, servers, disks, locks", f"{_CLI}.operator_commands:DOCTOR"),
}
