"""Put the batches of this folder on the path of its tests; a simulated GPU that runs the kernels of MW."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from host_kernels import HostKernels
from simulated_gpu import Counts, simulated_gpu


@pytest.fixture(scope="session")
def host_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the kernels compiled for this processor."""
    return tmp_path_factory.mktemp("walk")


@pytest.fixture
def simulated(host_library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    """A simulated GPU on which MW runs the kernels that a real one would."""
    kernels = HostKernels(host_library)
    monkeypatch.setattr("raytriever.losses.mw.cuda_kernel.kernels_of", lambda device: kernels)
    with simulated_gpu() as counts:
        yield counts
