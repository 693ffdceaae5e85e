"""Numba cache of submitted jobs: keyed by the location in the package, not by the folder of the upload.

numba stores compiled functions next to the source, or under a name made of the source's folder. Every changed upload is
unpacked into a new folder, so each would compile everything again (about 30 s). numba compares the content of the
source, so one cache for all uploads is safe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from numba.core.caching import UserProvidedCacheLocator

PACKAGE = Path(__file__).parents[1]


class PackageLocator(UserProvidedCacheLocator):
    """Finds what was compiled of this package under `NUMBA_CACHE_DIR`; of others nothing."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        """The name of a source's folder within the cache."""
        return os.path.join("raytriever", Path(py_file).resolve().parent.relative_to(PACKAGE))

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        """A locator for a function, or None where another one has to be asked."""
        return super().from_function(py_func, py_file) if Path(py_file).resolve().is_relative_to(PACKAGE) else None
