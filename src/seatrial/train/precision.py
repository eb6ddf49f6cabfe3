"""Number formats of training: fp32, tf32, bf16 and fp16, and what each one needs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from seatrial.train.errors import InputError

NAMES = ("auto", "fp32", "tf32", "bf16", "fp16")
#: First compute capability with TF32 and bf16 Tensor Cores (NVIDIA Ampere tuning guide, section 1.4.3).
AMPERE = (8, 0)


@dataclass(frozen=True)
class Precision:
    """One number format on one device.

    Attributes:
        name: ``fp32`` (strictly: no TF32 in products), ``tf32``, ``bf16`` or ``fp16`` (both by autocast).
        scaled: the loss of fp16 is scaled as far as its gradients allow; without it the loss must see to that.
    """

    name: str
    device: torch.device
    scaled: bool = True

    @property
    def dtype(self) -> torch.dtype:
        """Return the format that products are computed from."""
        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.name, torch.float32)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for forward passes; backward passes follow the types that forward chose."""
        if self.name in ("fp32", "tf32"):
            return nullcontext()
        # cache_enabled=False: a cast cached while a graph is captured would be reused outside of it.
        return torch.autocast(self.device.type, self.dtype, cache_enabled=False)

    def scaler(self) -> torch.amp.GradScaler:
        """Return the scaler of the loss for fp16, whose smallest normal number is 6e-5; it does nothing otherwise."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16" and self.scaled)

    def apply(self) -> None:
        """Allow TF32 in fp32 products for every format but ``fp32``, which repeats itself bit for bit. Global."""
        allowed = self.name != "fp32"
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        torch.backends.cudnn.allow_tf32 = allowed
        torch.backends.cudnn.deterministic = not allowed


def choose_precision(name: str, device: torch.device, preferred: str = "tf32") -> Precision:
    """Return the format; ``auto``: ``preferred`` if a GPU has it, else fp32. Raises InputError: the device lacks it."""
    if name not in NAMES:
        raise InputError(f"precision {name!r} is not one of {', '.join(NAMES)}")
    ampere = device.type == "cuda" and torch.cuda.get_device_capability(device) >= AMPERE
    if name == "auto":
        return Precision(preferred if ampere else "fp32", device)
    if name in ("fp16", "tf32") and device.type == "cpu":
        raise InputError(f"{name} needs a GPU: this run is on the CPU", fix="--precision fp32 or --precision bf16")
    if name in ("tf32", "bf16") and device.type == "cuda" and not ampere:
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
        problem = f"{name} needs compute capability 8.0 or later; this GPU has {capability}"
        raise InputError(problem, fix="--precision fp16")
    return Precision(name, device)
