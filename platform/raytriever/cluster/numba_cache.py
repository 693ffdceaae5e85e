"""Numba cache of submitted jobs. Its keys are paths within the package, not the folder of the upload.

numba stores compiled functions next to the source, or in a folder named after the source's folder. Every changed upload
is unpacked into a new folder, so each upload would compile everything again (about 30 s). One cache for all uploads is
safe, because numba checks whether a source has changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from numba.core.caching import UserProvidedCacheLocator

PACKAGE = Path(__file__).parents[1]


class PackageLocator(UserProvidedCacheLocator):
    """Locator of this package's compiled functions below `NUMBA_CACHE_DIR`. It ignores functions of other packages."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        """Return the folder of a source file within the cache."""
        return os.path.join("raytriever", Path(py_file).resolve().parent.relative_to(PACKAGE))

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        """Return a locator for a function of this package, or None for any other function."""
        return super().from_function(py_func, py_file) if Path(py_file).resolve().is_relative_to(PACKAGE) else None
