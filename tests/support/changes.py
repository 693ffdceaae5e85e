"""Changes of a model directory, most of which damage it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

Change = Callable[[Path], object]
WEIGHTS = "model.safetensors"


def put(name: str, content: str | bytes) -> Change:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def settings(name: str, **values: Any) -> Change:
    def change(folder: Path) -> None:
        file = folder / name
        held = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**held, **values}))

    return change


def tensors(edit: Callable[[dict[str, Tensor]], dict[str, Tensor]], name: str = WEIGHTS) -> Change:
    def change(folder: Path) -> None:
        save_file(edit(load_file(folder / name)), folder / name, {"format": "pt"})

    return change


def without(*parts: str, name: str = WEIGHTS) -> Change:
    return tensors(
        lambda held: {name: value for name, value in held.items() if not any(p in name for p in parts)}, name
    )


def only_pickle(folder: Path, name: str = WEIGHTS) -> None:
    (folder / name).rename((folder / name).with_name("pytorch_model.bin"))
