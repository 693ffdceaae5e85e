"""One hostile command as data."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

# Changes the folder of a case before its command runs.
Maker = Callable[[Path], None]
# Materials that a case names in its command are copied into its folder; see `materials`.
MATERIALS = ("letters", "model", "prepared", "store", "index", "negatives", "cross", "scores", "run", "results")
CANARY = "Hush0123456789Hush0123456789Hush0123"


@dataclass(frozen=True)
class Case:
    """A command that must end in one line.

    Args:
        name: what is hostile, as a sentence.
        words: the command line after `raytriever`; `{here}` is the case's folder.
        line: what the last line of standard error holds; `...` stands for any text.
        make: changes of the folder before the command.
        code: the exit code.
        area: what kind of hostility it is; the name of its file.
        env: variables of the environment; an empty value removes one.
        limits: soft resource limits by name, such as `{"FSIZE": 4096}`.
        leaves: patterns of what may exist afterwards in addition to the cache.
        absent: texts that may be in no output and in no new file, in addition to the canary.
        out: what standard output holds.
        shell: a line of a shell in which `"$@"` is the command, such as `"$@" >&-`; it is a process of its own then.
        unprivileged: whether it runs as a user who may not read everything.
        seconds: its time limit.
    """

    name: str
    words: str
    line: str = ""
    make: tuple[Maker, ...] = ()
    code: int = 2
    area: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    leaves: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    out: str = ""
    shell: str = ""
    unprivileged: bool = False
    seconds: float = 60.0

    @property
    def arguments(self) -> list[str]:
        """The words of the command line."""
        return shlex.split(self.words)

    @property
    def stage(self) -> str:
        """The stage that it calls."""
        return self.words.split()[0]

    @property
    def id(self) -> str:
        """Its name in a test's id."""
        return f"{self.area}-{self.stage}-{re.sub(r'[^A-Za-z0-9]+', '-', self.name).strip('-')}"

    def materials(self) -> list[str]:
        """The materials that its command names, or its changes touch."""
        touched = " ".join([self.words, self.shell, *(getattr(maker, "path", "") for maker in self.make)])
        return [name for name in MATERIALS if re.search(rf"(?<![\w-]){name}(?![\w-])", touched)]


def matches(pattern: str, text: str) -> bool:
    """Whether the pieces of a pattern between `...` occur in a text in their order."""
    position = 0
    for piece in pattern.split("..."):
        position = text.find(piece, position)
        if position < 0:
            return False
        position += len(piece)
    return True


def of_area(area: str, *cases: Case) -> list[Case]:
    """Cases with their area filled in."""
    return [replace(case, area=area) for case in cases]
