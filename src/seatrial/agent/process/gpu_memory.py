"""--gpu-memory: holding an unmodified torch or TensorFlow script to a limit, through Python's sitecustomize."""

import os
import pkgutil
import shutil
from typing import Dict

#: Read by memory_hook.py in every Python process of the target.
LIMIT_VARIABLE = "SEATRIAL_GPU_MEMORY_BYTES"


def install(folder: str, limit_bytes: int, env: Dict[str, str]) -> None:
    """Put the hook into a new ``folder`` and at the front of the target's PYTHONPATH."""
    hook = pkgutil.get_data("seatrial.agent.process", "memory_hook.py")
    if hook is None:
        raise OSError(2, "the archive lacks its memory hook")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "sitecustomize.py"), "wb") as file:
        file.write(hook)
    env[LIMIT_VARIABLE] = str(limit_bytes)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, env.get("PYTHONPATH")]))


def remove(folder: str) -> None:
    """Take the hook away again."""
    shutil.rmtree(folder, ignore_errors=True)
