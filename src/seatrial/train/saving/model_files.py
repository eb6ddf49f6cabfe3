"""A finished model as files: ``NAME.pth`` (a state_dict for torch.load) and ``NAME.safetensors``."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save

from seatrial.train.saving.atomic import write_file


def save_model(model: torch.nn.Module, folder: Path, name: str) -> list[Path]:
    """Write both files, each whole or not at all, and return their paths. Raises DiskFullError."""
    tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in model.state_dict().items()}
    weights, safe = folder / f"{name}.pth", folder / f"{name}.safetensors"
    write_file(weights, lambda file: torch.save(tensors, file))
    write_file(safe, lambda file: file.write(save(tensors, metadata={"format": "pt"})))
    return [weights, safe]
