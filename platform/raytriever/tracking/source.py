"""Which code made a run: the git commit, and whether the tree was changed since."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git_commit(directory: Path) -> str | None:
    """The commit of the checkout that holds `directory`, with `-dirty` where files differ; None outside one."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(directory), *words], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    if not commit:
        return None
    return f"{commit}-dirty" if git("status", "--porcelain", "--untracked-files=no") else commit
