"""Records which GPUs each Ray process sees when it asks for CUDA, in a module that Ray calls in new processes.

A worker of Ray Train that has reserved a GPU gets the CPU and gloo in place of the GPU and NCCL, which exist only in
the declaration of the cluster. What Ray gave to it is recorded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

FOLDER = "GPU_WITNESS"  # variable with the folder of the records


def install() -> None:
    """Wrap the functions of torch and Ray by which a process finds its GPU."""
    import torch
    from ray.air._internal.device_manager.nvidia_gpu import CUDATorchDeviceManager

    is_available, init_process_group = torch.cuda.is_available, torch.distributed.init_process_group
    get_devices = CUDATorchDeviceManager.get_devices

    def recorded() -> bool:
        _write("", os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
        return is_available()

    def replaced_devices(manager: CUDATorchDeviceManager) -> list[torch.device]:
        _write("device of ", ",".join(map(str, get_devices(manager))))
        return [torch.device("cpu")]

    def replaced_backend(*, backend: str, **settings: Any) -> None:
        _write("backend of ", backend)
        init_process_group(backend={"nccl": "gloo"}.get(backend, backend), **settings)

    torch.cuda.is_available, torch.distributed.init_process_group = recorded, replaced_backend
    CUDATorchDeviceManager.get_devices = replaced_devices


def _write(what: str, value: str) -> None:
    title = Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode().strip()
    with Path(os.environ[FOLDER], str(os.getpid())).open("a") as stream:
        stream.write(f"{what}{title}\t{value}\n")
