"""Losses, models, training, encoding and search start on a machine without Ray, Arrow and the other large packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

MISSING = "ray deepspeed faiss mlflow bm25s Stemmer pyarrow datasets pandas matplotlib optuna sentence_transformers"
MODULES = (
    "models.retriever training.loop training.loader encoding.corpus encoding.shards search.exact "
    "mining.miner evaluation.evaluate"
)
IMPORT_ALL = f"""
import importlib, sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in "{MISSING}".split():
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
for module, heavy in (("losses.config", "torch"), ("losses.registry", "numba")):
    importlib.import_module("raytriever." + module)
    assert heavy not in sys.modules, heavy
for module in "{MODULES}".split():
    importlib.import_module("raytriever." + module)
"""


@pytest.mark.slow
def test_the_modules_of_training_and_search_import_without_the_large_packages() -> None:
    subprocess.run([sys.executable, "-c", IMPORT_ALL], check=True)
