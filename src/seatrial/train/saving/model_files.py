"""A finished model as files: ``NAME.pth`` (a state_dict for torch.load) and ``NAME.safetensors``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from seatrial.train.errors import ModelFileError
from seatrial.train.saving.atomic import write_file

#: First bytes of a pickle of protocol 2 and later, and of a zip file, the format of torch.save.
_PICKLE, _ZIP = b"\x80", b"PK\3\4"


def save_model(model: torch.nn.Module, folder: Path, name: str) -> list[Path]:
    """Write both files, each whole or not at all, and return their paths. Raises DiskFullError."""
    tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in model.state_dict().items()}
    weights, safe = folder / f"{name}.pth", folder / f"{name}.safetensors"
    write_file(weights, lambda file: torch.save(tensors, file))
    write_file(safe, lambda file: file.write(save(tensors, metadata={"format": "pt"})))
    return [weights, safe]


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Read a safetensors file: tensors, on the CPU, and metadata. Raises ModelFileError: none, truncated, a pickle."""
    try:
        with path.open("rb") as file:
            start = file.read(9)
        # A safetensors file begins with the length of its header, 8 bytes that can be any, and the header's "{".
        if start.startswith((_PICKLE, _ZIP)) and not start.endswith(b"{"):
            problem = f"{path} is a pickle: loading one can run any code of its author, so only safetensors is read"
            fix = "save it again with safetensors.torch.save_file(model.state_dict(), PATH)"
            raise ModelFileError(problem, fix=fix)
        with safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  not a mapping
            return tensors, dict(opened.metadata() or {})
    except SafetensorError as error:
        fix = "train the model again, or copy the file anew"
        raise ModelFileError(f"{path} is truncated, damaged or no safetensors file", fix=fix) from error
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror or error}", fix="train the model first") from error


def weights_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return ``sha256:…`` of names, types, shapes and numbers, sorted by name: the same for each file format."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return f"sha256:{digest.hexdigest()}"
