"""Disks that are full, files and numbers of files that are limited, and standard streams that fail."""

from __future__ import annotations

from hostile.case import Case, of_area

LETTERS = "--dataset letters --model model"
FULL = "no space left on the disk"
LARGE = "larger than allowed"
SEARCH = f"search is {LETTERS}"


def limited(words: str, size: int) -> Case:
    """A command whose files may have so many bytes."""
    stage = words.split()[0]
    return Case(f"files of {size} bytes at most for {stage}", words, LARGE, limits={"FSIZE": size})


def few(words: str, number: int) -> Case:
    """A command that may open so many files."""
    return Case(
        f"{number} open files at most for {words.split()[0]}", words, "too many open files", limits={"NOFILE": number}
    )


CASES = of_area(
    "limits",
    limited(f"prepare {LETTERS} --output out", 2048),
    limited(f"encode {LETTERS} --output out", 8192),
    limited(f"index {LETTERS} --output out", 8192),
    limited("mine --dataset letters --method bm25 --output out", 2048),
    limited("export --model model --output out", 8192),
    limited("evaluate --datasets letters --model model --output out", 8192),
    limited(SEARCH, 2048),
    few(f"prepare {LETTERS} --output out", 12),
    few(SEARCH, 12),
    Case(
        "standard output on a full disk for help", "search --help", f"standard output: {FULL}", shell='"$@" >/dev/full'
    ),
    Case(
        "standard output on a full disk for results",
        SEARCH,
        f"standard output: {FULL}",
        shell='"$@" >/dev/full',
        seconds=120,
    ),
    Case(
        "standard output on a full disk for a table",
        f"prepare {LETTERS} --output out",
        f"standard output: {FULL}",
        shell='"$@" >/dev/full',
        seconds=120,
        leaves=("out*",),
    ),
    Case(
        "standard error on a full disk",
        f"prepare {LETTERS} --output out",
        shell='"$@" 2>/dev/full',
        code=0,
        seconds=120,
    ),
    Case("standard error on a full disk for an error", "prepare --output", shell='"$@" 2>/dev/full'),
    Case("standard output closed", SEARCH, shell='"$@" >&-', code=0, seconds=120),
    Case("standard error closed", "prepare --output", shell='"$@" 2>&-'),
    Case(
        "all standard streams closed", f"prepare {LETTERS} --output out", shell='"$@" <&- >&- 2>&-', code=0, seconds=120
    ),
    Case("all standard streams closed for an error", "prepare --output", shell='"$@" <&- >&- 2>&-'),
    Case("a pipe whose reader has gone", "search --help", shell='"$@" | true; exit ${PIPESTATUS[0]}', code=141),
    Case(
        "a pipe whose reader has gone for an error",
        "prepare --output",
        shell='"$@" 2>&1 >/dev/null | true; exit ${PIPESTATUS[0]}',
    ),
)
