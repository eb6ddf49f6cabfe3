"""ONNX files, run by onnxruntime: on the GPU when the server has one, and never silently elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seatrial.serve.errors import ServeError
from seatrial.serve.models.sidecar_files import SidecarFiles
from seatrial.serve.models.tensor_model import TensorModel
from seatrial.serve.served_model import ServedModel, TensorSpec

#: onnxruntime's name of a type → the protocol's.
DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
}
CUDA = "CUDAExecutionProvider"


def open_onnx(path: Path, device: torch.device, *, max_batch: int, name: str) -> ServedModel:
    """Raises ServeError: no such file, damaged, or a GPU that onnxruntime does not use."""
    beside = SidecarFiles.of(path)
    session = _session(path, device)
    inputs, batches = [], set()
    for each in session.get_inputs():
        if each.type not in DATATYPES or not each.shape:
            raise ServeError(f"the input {each.name} of {path.name} is {each.type} {each.shape}, which is not served")
        sides = tuple(side if isinstance(side, int) and side > 0 else -1 for side in each.shape)
        inputs.append(TensorSpec(each.name, DATATYPES[each.type], sides[1:]))
        batches.add(sides[0])
    if len(batches) > 1:
        raise ServeError(f"the inputs of {path.name} have different first dimensions: the first has to be the batch")
    outputs = [each.name for each in session.get_outputs()]

    def run(columns: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
        fed = {spec.name: np.stack(column) for spec, column in zip(inputs, columns, strict=True)}
        found: list[np.ndarray] = session.run(None, fed)
        return found

    fixed = None if (batch := batches.pop()) < 0 else batch

    def network(images: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(run([list(images.cpu().numpy())])[0]).to(images.device)

    if fixed is None and (images := beside.image_model(network, "eager")) is not None:
        return images(name, device, max_batch)
    return TensorModel(
        name,
        tuple(inputs),
        lambda count: outputs,
        run,
        max_batch=max_batch,
        fixed=fixed,
        examples=beside.rows([spec.name for spec in inputs], outputs),
    )


def _session(path: Path, device: torch.device) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ServeError(f"{path.name} needs onnxruntime, which is missing", "pip install onnxruntime") from error
    on_gpu = device.type == "cuda"
    if on_gpu and CUDA not in onnxruntime.get_available_providers():
        raise ServeError(
            f"{path.name} would run on the CPU: this onnxruntime has no CUDA",
            "pip install onnxruntime-gpu in place of onnxruntime, or serve it with --gpus none",
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not on_gpu:
        options.intra_op_num_threads = torch.get_num_threads()
    providers: list[Any] = [(CUDA, {"device_id": device.index or 0})] if on_gpu else ["CPUExecutionProvider"]
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # its own types, made in C++
        raise ServeError(
            f"{path.name} is truncated, damaged or no ONNX model that onnxruntime {onnxruntime.__version__} reads",
            "export it again: seatrial export RUN --to onnx",
        ) from error
    session.disable_fallback()
    if on_gpu and CUDA not in session.get_providers():
        raise ServeError(
            f"{path.name} would run on the CPU: onnxruntime could not start CUDA and fell back",
            "install the onnxruntime-gpu of this CUDA version, or serve it with --gpus none",
        )
    return session
