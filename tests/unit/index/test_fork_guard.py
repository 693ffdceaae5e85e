"""A process that was forked after a search is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORK = """
import os, sys
import numpy as np
from raytriever.errors import ConfigError
from raytriever.index.exact.search import top_k
one = np.ones((1, 4), np.float32)
search = lambda: top_k(one, one, 1, np.arange(1))
def in_child():
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        search()
    except ConfigError as error:
        os._exit(3 if "spawn" in str(error) else 4)
    os._exit(0)
assert in_child() == 0  # no search yet
search()
assert in_child() == 3
"""


@pytest.mark.slow
def test_a_process_forked_after_a_search_is_refused() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=100)
