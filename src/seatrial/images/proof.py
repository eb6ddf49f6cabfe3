"""Proof of a built image: run inside it, on the standard library and the image's own packages. Prints one line of JSON.

Sent as text to the image's Python; nothing of seatrial is in there.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import time
from importlib import metadata
from typing import Any


def main() -> None:
    """argv: import names, with commas; ``gpu`` or ``cpu``."""
    names, gpu = [name for name in sys.argv[1].split(",") if name], sys.argv[2] == "gpu"
    found: dict[str, Any] = {
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "imports": {},
        "errors": {},
        "versions": {},
    }
    for name in names:
        start = time.perf_counter()
        try:
            importlib.import_module(name)
            found["imports"][name] = round(time.perf_counter() - start, 3)
        except Exception as error:  # noqa: BLE001  whatever it is, it is the answer
            found["errors"][name] = f"{type(error).__name__}: {str(error)[:300]}"
    for package in ("torch", "tensorflow", "tensorflow-cpu", "jax"):
        try:
            found["versions"][package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    if "torch" in sys.modules:
        _torch(found, gpu)
    elif "tensorflow" in sys.modules:
        found["cuda"] = sys.modules["tensorflow"].sysconfig.get_build_info().get("cuda_version")
    sys.stdout.write(json.dumps(found) + "\n")


def _torch(found: dict[str, Any], gpu: bool) -> None:
    torch: Any = sys.modules["torch"]
    found["versions"]["torch"] = torch.__version__
    found["cuda"] = torch.version.cuda
    flags = torch._C._cuda_getArchFlags() if hasattr(torch._C, "_cuda_getArchFlags") else ""
    found["architectures"] = (flags or "").split()
    try:
        found["training"] = _train(torch, "cpu")
        if gpu:
            found["kernels"] = [_kernels(torch, index) for index in range(torch.cuda.device_count())]
            found["training_gpu"] = _train(torch, "cuda")
    except Exception as error:  # noqa: BLE001  as above
        found["errors"]["training"] = f"{type(error).__name__}: {str(error)[:300]}"


def _train(torch: Any, device: str) -> str:
    """Digest of a small network's weights after five steps: equal for equal libraries."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 26 * 26, 10)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    images = torch.randn(16, 1, 28, 28).to(device)
    labels = torch.randint(0, 10, (16,)).to(device)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    weights = b"".join(each.detach().cpu().numpy().tobytes() for each in model.parameters())
    return hashlib.sha256(weights).hexdigest()[:16]


def _kernels(torch: Any, index: int) -> list[str]:
    """One product per number format on one GPU; the formats that worked."""
    worked = []
    for name in ("float32", "float16", "bfloat16", "float64"):
        numbers = torch.ones(64, 64, device=f"cuda:{index}", dtype=getattr(torch, name))
        if (numbers @ numbers)[0, 0].item() == 64:
            worked.append(name)
    return worked


if __name__ == "__main__":
    main()
