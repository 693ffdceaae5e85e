"""Resolution of a model's name to the directory of a whole model: adapters alone are merged into their base first."""

from __future__ import annotations

import re
from pathlib import Path

from raytriever.models.source import ADAPTER, MINILM, find_model
from raytriever.paths import expanded
from raytriever.store.commit import complete

_COMMIT = re.compile(r"[0-9a-f]{40}")


def resolve_model(name: str, revision: str | None = None, weights: bool = True) -> Path:
    """Return the local directory of a model.

    Args:
        name: `minilm`, a local directory, or a hub name such as `intfloat/e5-base-v2`.
        revision: commit, tag or branch of a hub model.
        weights: whether the weights of a hub model are downloaded, or only its other files.

    Raises:
        ConfigError: a revision is passed for a local model.
        ModelError: the model does not exist, its digest is wrong, or the hub cannot be reached.
    """
    complete(Path(name))
    directory = find_model(name, revision, weights)
    if not (directory / ADAPTER).is_file():
        return directory
    from raytriever.models.adapters import merged_model

    return merged_model(directory, weights)


def commit_of(name: str, revision: str | None = None) -> str | None:
    """Return the current commit of a hub model's name and revision; None for a model on this machine.

    Raises:
        ModelError: see `resolve_model`.
    """
    if name == MINILM or expanded(name).exists():
        return None
    path = resolve_model(name, revision)
    # The cache of the hub has a folder for each commit.
    return path.name if _COMMIT.fullmatch(path.name) else revision
