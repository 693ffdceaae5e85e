"""The device of a process, and the lines where a GPU cannot be used."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from simulated_gpu import CUDA, simulated_gpu

from raytriever.core.errors import ConfigError
from raytriever.models import device_and_precision
from raytriever.models.device_and_precision import default_device
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding

BROKEN = "CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment,\n e.g. after"
BROKEN_LINE = "No GPU is used: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. after"
NOT_FOUND = "CUDA_VISIBLE_DEVICES=3 has no effect, because CUDA finds no such GPU; the CPU is used.\n"
NOT_BUILT = "CUDA_VISIBLE_DEVICES=3 has no effect, because this PyTorch is built without CUDA; the CPU is used.\n"


@pytest.fixture(autouse=True)
def _nothing_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    device_and_precision._report.cache_clear()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_driver_that_does_not_work_is_reported_once_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def is_available() -> bool:
        warnings.warn(BROKEN, stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert default_device() == default_device() == torch.device("cpu")
    assert capfd.readouterr().err == f"{BROKEN_LINE}\n"


@pytest.mark.parametrize(
    ("visible", "build", "line"),
    [("3", "13.0", NOT_FOUND), ("3", None, NOT_BUILT), ("", "13.0", ""), ("-1", "13.0", "")],
)
def test_a_gpu_that_was_asked_for_and_does_not_exist_is_reported(
    visible: str, build: str | None, line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert default_device() == torch.device("cpu")
    assert capfd.readouterr().err == line


def test_a_gpu_is_the_default_without_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    with simulated_gpu():
        assert default_device().type == "cuda"
    assert capfd.readouterr().err == ""


def test_memory_that_another_process_takes_is_an_error_of_the_user(
    tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelConfig(str(tiny_encoder))
    with simulated_gpu() as counts, monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "mem_get_info", lambda *_: (50_000, 40_000_000_000))
        counts.failure = lambda operator: torch.cuda.OutOfMemoryError() if operator == "_to_copy" else None
        with pytest.raises(ConfigError) as raised:
            load_for_encoding(model, "fp32", CUDA)
    text = str(raised.value)
    assert "the model has 0.0 GB and does not fit into the memory of this GPU" in text
    assert "which has 0.0 GB free of 40.0 GB" in text
    assert "nvidia-smi" in text
    assert "\n" not in text
