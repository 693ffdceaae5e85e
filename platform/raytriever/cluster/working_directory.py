"""Working directory of a job under `ray job submit --working-dir`: a folder that outlives the upload.

Ray unpacks the upload into a folder of its session and starts the job there. Files written there are lost when Ray
reclaims the space or the cluster ends. Therefore a submitted job changes to a lasting folder before it reads a flag:
`RAYTRIEVER_HOME`, or `~/raytriever` of the head node. Relative paths (`--output`, `runs/`, `mlflow.db`, a data set) are
resolved there; files of the upload that the command line names, such as a configuration, are read from the upload."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from raytriever.errors import StorageError
from raytriever.paths import expanded
from raytriever.storage import check_writable, files_below

HOME = "RAYTRIEVER_HOME"
# Where Ray unpacks uploads, and what it sets for the process of a submitted job.
UNPACKED, SUBMITTED = "working_dir_files", "RAY_JOB_CONFIG_JSON_ENV_VAR"
WRITTEN = ("--output", "--json")
MUCH = 50_000_000  # bytes
# Where numba keeps what it compiled, for every process of a submitted job; see `compiled`.
COMPILED, LOCATORS = "NUMBA_CACHE_DIR", "NUMBA_CACHE_LOCATOR_CLASSES"


def enter_lasting_folder(words: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Move a submitted job to where relative places last; any other process is left as it is.

    Args:
        words: of the command line.
        say: hears where that is, and how large the upload was.

    Returns:
        The words, with files of the upload named by absolute paths.

    Raises:
        StorageError: the folder cannot be written.
    """
    upload = Path.cwd()
    if SUBMITTED not in os.environ or UNPACKED not in upload.parts:
        return list(words)
    home = expanded(os.environ.get(HOME) or "~/raytriever")
    if not home.is_absolute():
        raise StorageError(
            "is relative, but a submitted job has no folder that lasts", f"{HOME}={home}", "name it whole"
        )
    check_writable(home)
    home.mkdir(parents=True, exist_ok=True)
    os.chdir(home)
    os.environ.setdefault(COMPILED, str(home / ".compiled"))
    os.environ.setdefault(LOCATORS, "raytriever.cluster.numba_cache.PackageLocator,UserProvidedCacheLocator")
    for line in _told(upload):
        say(line)
    say(f"a submitted job: relative places are meant from {home} ({HOME})")
    return [_whole(word, words[place - 1] if place else "", upload) for place, word in enumerate(words)]


def _whole(word: str, before: str, upload: Path) -> str:
    """A word that names a file of the upload, absolute; what is written is never meant there."""
    flag, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
    if before in WRITTEN or flag in WRITTEN or not value or Path(value).is_absolute():
        return word
    try:
        return f"{flag}{equals}{upload / value}" if (upload / value).is_file() else word
    except OSError:  # too long for a name: a query, perhaps
        return word


def _told(upload: Path) -> list[str]:
    """Lines on what was uploaded."""
    files = [file for file in files_below(upload) if "__pycache__" not in file.parts]
    sizes = {file: file.stat().st_size for file in files}
    total = sum(sizes.values())
    lines = [f"upload: {len(sizes):,} files, {total / 1e6:.1f} MB"]
    if total > MUCH:
        largest = sorted(sizes, key=lambda file: sizes[file], reverse=True)[:3]
        named = ", ".join(f"{file.relative_to(upload)} {sizes[file] / 1e6:.1f} MB" for file in largest)
        lines.append(f"upload: every node unpacks that; the largest are {named}; .rayignore leaves files out")
    return lines
