"""Working directory of a job under `ray job submit --working-dir`: a folder that outlives the upload.

Ray unpacks the upload into a folder of its session and starts the job there. Files written there are lost when Ray
reclaims the space or the cluster ends. So a submitted job changes to a lasting folder before it reads any flag:
`RAYTRIEVER_HOME`, or `~/raytriever` on the head node. Relative paths (`--output`, `runs/`, `mlflow.db`, a data set)
start there. Files of the upload that the command line names, such as a configuration, are read from the upload."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath

from raytriever.core.errors import StorageError, flag_of
from raytriever.core.paths import expanded
from raytriever.core.store.disk import check_writable, files_below

HOME = "RAYTRIEVER_HOME"
UPLOADS = "working_dir_files"  # the folder into which Ray unpacks uploads
SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray sets it for the process of a submitted job
OUTPUT = flag_of("output")
LARGE_UPLOAD = 50_000_000  # bytes; above this size, the largest files of the upload are logged
# Environment variables of numba: folder of its cache, and classes that locate files in it.
NUMBA_CACHE, NUMBA_LOCATORS = "NUMBA_CACHE_DIR", "NUMBA_CACHE_LOCATOR_CLASSES"


def enter_lasting_folder(words: Sequence[str], log: Callable[[str], None]) -> list[str]:
    """Move a submitted job to its lasting folder. In any other process, do nothing.

    Return the words of the command line, with absolute paths for files of the upload."""
    upload = Path.cwd()
    if SUBMITTED not in os.environ or UPLOADS not in upload.parts:
        return list(words)
    home = expanded(os.environ.get(HOME) or "~/raytriever")
    if not home.is_absolute():
        what = "is a relative path, but a submitted job has no lasting folder to resolve it in"
        raise StorageError(what, f"{HOME}={home}", "give an absolute path")
    check_writable(home)
    home.mkdir(parents=True, exist_ok=True)
    os.chdir(home)
    os.environ.setdefault(NUMBA_CACHE, str(home / ".compiled"))
    os.environ.setdefault(NUMBA_LOCATORS, "raytriever.cluster.numba_cache.PackageLocator,UserProvidedCacheLocator")
    for line in _upload_lines(upload):
        log(line)
    log(f"submitted job: relative paths start in {home} ({HOME})")
    return [_resolve(word, words[index - 1] if index else "", upload) for index, word in enumerate(words)]


def _resolve(word: str, previous: str, upload: Path) -> str:
    """Return the absolute path of a word that names a file of the upload. Return outputs and other words unchanged."""
    flag, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
    if OUTPUT in (previous, flag) or not value or Path(value).is_absolute():
        return word
    try:
        return f"{flag}{equals}{upload / value}" if (upload / value).is_file() else word
    except OSError:  # too long for a file name; perhaps a query
        return word


def _upload_lines(upload: Path) -> list[str]:
    files = [file for file in files_below(upload) if "__pycache__" not in file.parts]
    sizes: dict[PurePath, int] = {file.relative_to(upload): file.stat().st_size for file in files}
    total = sum(sizes.values())
    lines = [f"upload: {len(sizes):,} files, {total / 1e6:.1f} MB"]
    if total > LARGE_UPLOAD:
        lines.append(
            f"upload: every node unpacks it; the largest are {describe_largest(sizes)}; .rayignore can exclude them"
        )
    return lines


def describe_largest(sizes: Mapping[PurePath, int]) -> str:
    """Format the three largest files or folders at the top level of an upload."""
    totals: Counter[str] = Counter()
    for file, size in sizes.items():
        totals[file.parts[0] + ("/" if len(file.parts) > 1 else "")] += size
    return ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in totals.most_common(3))
