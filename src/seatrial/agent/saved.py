"""What the target saved where the host cannot look: model files on a volume of a cluster, told as evidence."""

import os
from typing import Any, Dict, Iterator, List

#: What training frameworks save models as. The receipt looks for the same on folders of the host (saved_model.py).
SUFFIXES = (".pt", ".pth", ".safetensors", ".ckpt", ".h5", ".keras", ".onnx", ".pkl", ".joblib")

#: Of the newest files. A line of evidence stays short.
MOST = 20

#: File times come from the kernel's coarse clock, up to a tick late; a network volume's server has a clock of its own.
SLACK_S = 2.0


def models(folder: str, started: float) -> List[Dict[str, Any]]:
    """``{"path", "bytes"}`` of the model files written since ``started`` (Unix time), the newest first.

    Paths are relative to ``folder``. Our own folders there, which begin with a dot, are left out.
    """
    found = [(modified, path, size) for path, size, modified in _files(folder) if modified >= started - SLACK_S]
    newest = sorted(found, reverse=True)[:MOST]
    return [{"path": os.path.relpath(path, folder), "bytes": size} for _, path, size in newest]


def _files(folder: str) -> Iterator[Any]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if name.lower().endswith(SUFFIXES):
                path = os.path.join(parent, name)
                try:
                    status = os.stat(path)
                except OSError:  # gone since
                    continue
                yield path, status.st_size, status.st_mtime
