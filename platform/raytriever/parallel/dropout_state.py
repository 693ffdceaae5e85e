"""Where the random generators stand, so that a part encoded twice is encoded with the same dropout masks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DropoutState:
    """The generators that dropout draws from: the processor's, and the device's own."""

    device: torch.device
    on_cpu: Tensor
    on_device: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> DropoutState:
        """As they stand."""
        on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(device, torch.get_rng_state(), on_device)

    def restore(self) -> None:
        """Put them back."""
        torch.set_rng_state(self.on_cpu)
        if self.on_device is not None:
            torch.cuda.set_rng_state(self.on_device, self.device)
