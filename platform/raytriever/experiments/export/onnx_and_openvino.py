"""Export of a tower as a graph for other runtimes: ONNX and OpenVINO.

The inputs are `input_ids` and `attention_mask`, int64 `[texts, tokens]`; both sizes are dynamic. The outputs are
float32. The ONNX and OpenVINO backends of sentence-transformers pool `last_hidden_state` `[texts, tokens, hidden]`
themselves. `sentence_embedding` `[texts, dim]` is already pooled, truncated and normalized as in the tower. The files
have the names that these backends expect. The exporter uses `torch.export`, because the older, tracing exporter gives
wrong embeddings for lengths other than that of the example."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from jaxtyping import Float32
from numpy import ndarray
from torch import Tensor, nn

from raytriever.core.errors import ConfigError, setting
from raytriever.models.encoder import Encoder
from raytriever.models.packing import TokenBatch

INPUTS = ("input_ids", "attention_mask")
STATES, EMBEDDING = "last_hidden_state", "sentence_embedding"
# Path of each format within a tower's directory.
FILES: Mapping[str, Path] = {"onnx": Path("onnx/model.onnx"), "openvino": Path("openvino/openvino_model.xml")}
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino"),
}
_OPSET = 18
_BYTES = 1_800_000_000  # weights with more bytes go into a second file: an ONNX file must stay below 2 GB


class _Graph(nn.Module):
    def __init__(self, tower: Encoder) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        states = self.tower.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return states, self.tower.embed(states, attention_mask)


def check_packages(backend: str) -> None:
    """Raise `ConfigError` if a package that a format requires is not installed."""
    missing = [name for name in PACKAGES[backend] if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{backend} needs {', '.join(missing)}", setting("formats"), "pip install 'raytriever[export]'"
        )


def write_graph(tower: Encoder, example: TokenBatch, backend: str, directory: Path) -> Path:
    """Write a tower in one format.

    Args:
        tower: tower in float32, on the CPU, in evaluation mode.
        example: a batch of at least two texts and two tokens; the graph accepts other sizes too.
        backend: `onnx` or `openvino`.
        directory: directory of the tower; the file is written to `FILES[backend]` in it.
    """
    path = directory / FILES[backend]
    path.parent.mkdir(parents=True, exist_ok=True)
    if backend == "onnx":
        _write_onnx(tower, example, path)
        return path
    import openvino

    with TemporaryDirectory() as scratch:
        _write_onnx(tower, example, Path(scratch) / "model.onnx")
        # Weights stay float32. A runtime converts them to fp16 on request.
        openvino.save_model(openvino.convert_model(Path(scratch) / "model.onnx"), path, compress_to_fp16=False)
    return path


def _write_onnx(tower: Encoder, example: TokenBatch, path: Path) -> None:
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            _Graph(tower).eval(),
            tuple(example[name] for name in INPUTS),
            input_names=INPUTS,
            output_names=(STATES, EMBEDDING),
            dynamic_shapes=dict.fromkeys(INPUTS, dynamic),
            opset_version=_OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None  # only the older exporter returns None
    weights = sum(weight.numel() * weight.element_size() for weight in tower.parameters())
    program.save(path, external_data=weights > _BYTES)


def open_graph(path: Path, backend: str) -> Callable[[TokenBatch], Float32[ndarray, "texts dim"]]:
    """Return a function that embeds one padded batch with an exported graph, on the CPU in float32."""
    if backend == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return lambda tokens: session.run([EMBEDDING], {name: tokens[name].numpy() for name in INPUTS})[0]
    import openvino

    # By default OpenVINO computes in bf16 if the processor supports it.
    model = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda tokens: model({name: tokens[name].numpy() for name in INPUTS})[EMBEDDING]


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress messages of the exporter and its libraries, which are for developers of these libraries."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
