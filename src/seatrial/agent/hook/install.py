"""Placing the hook beside the target's Python, through sitecustomize, and taking it away."""

import os
import pkgutil
import shutil
from typing import Dict, Optional

#: Read in every Python process of the target: by memory_limit.py, and by entry.py.
LIMIT_VARIABLE, STEPS_VARIABLE = "SEATRIAL_GPU_MEMORY_BYTES", "SEATRIAL_MEASURE_STEPS"

#: The package that entry.py loads its parts from.
_PACKAGE = "seatrial_hook"
_PARTS = (
    "__init__",
    "gpu_spans",
    "join_jax",
    "limit_jax",
    "limit_tensorflow",
    "measure_torch",
    "memory_limit",
    "recorder",
    "report",
    "timeline",
    "windows",
)


def install(folder: str, env: Dict[str, str], limit_bytes: Optional[int], measure_steps: bool) -> None:
    """Put the hook into a new ``folder`` and at the front of the target's PYTHONPATH. Raises OSError."""
    package = os.path.join(folder, _PACKAGE)
    os.makedirs(package, exist_ok=True)
    _copy("entry", os.path.join(folder, "sitecustomize.py"))
    for part in _PARTS:
        _copy(part, os.path.join(package, part + ".py"))
    if limit_bytes is not None:
        env[LIMIT_VARIABLE] = str(limit_bytes)
    if measure_steps:
        env[STEPS_VARIABLE] = "1"
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, env.get("PYTHONPATH")]))


def _copy(part: str, path: str) -> None:
    text = pkgutil.get_data("seatrial.agent.hook", part + ".py")
    if text is None:
        raise OSError(2, "the archive lacks the hook's %s.py" % part)
    with open(path, "wb") as file:
        file.write(text)


def remove(folder: str) -> None:
    """Take the hook away again."""
    shutil.rmtree(folder, ignore_errors=True)
