"""Placing the hook beside the target's Python, through sitecustomize, and taking it away."""

import json
import os
import pkgutil
import shutil
from typing import Any, Dict, Optional

#: Read in every Python process of the target: by memory_limit.py, and by entry.py.
LIMIT_VARIABLE, STEPS_VARIABLE = "SEATRIAL_GPU_MEMORY_BYTES", "SEATRIAL_MEASURE_STEPS"
CHANGES_VARIABLE = "SEATRIAL_TUNE"

#: The folder that entry.py loads its parts from, as the package seatrial_hook. A warning that torch raises for its
#: caller (stacklevel=2) names the line of the first caller whose file has not both "importlib" and "_bootstrap" in its
#: path, so that it names the script's line and not one of ours. Source: is_internal_frame in CPython's
#: Python/_warnings.c and Lib/warnings.py, 3.3 to 3.14; skip_file_prefixes is for who raises the warning.
_FOLDER = "seatrial_hook_like_importlib_bootstrap"
_MEASURING = (
    *("__init__", "communication", "gpu_spans", "hand_steps", "loaders", "measure_jax", "measure_keras"),
    *("measure_torch", "memory_limit", "optimizer_steps", "recorder", "report", "timeline", "windows", "wrapping"),
)
_CHANGING = (
    *("call_sites", "changes", "changes_backend", "changes_copies", "changes_loader", "changes_model"),
    *("changes_optimizer", "changes_parallel", "error_line", "loader_safety", "longest_first", "module_calls"),
)
_LIMITING = ("join_jax", "limit_jax", "limit_tensorflow")
_TRIALS = ("keep_files", "trial", "trial_losses")
_PARTS = _MEASURING + _CHANGING + _LIMITING + _TRIALS


def install(
    folder: str,
    env: Dict[str, str],
    limit_bytes: Optional[int],
    measure_steps: bool,
    changes: Optional[Dict[str, Any]] = None,
) -> None:
    """Put the hook into a new ``folder`` and at the front of the target's PYTHONPATH. Raises OSError.

    Args:
        changes: that the script is to be run with, as docs/decisions.md, 0037 has them.
    """
    package = os.path.join(folder, _FOLDER)
    os.makedirs(package, exist_ok=True)
    _copy("entry", os.path.join(folder, "sitecustomize.py"))
    for part in _PARTS:
        _copy(part, os.path.join(package, part + ".py"))
    _copy("tunables", os.path.join(package, "tunables.py"), "seatrial.common.contract")
    if limit_bytes is not None:
        env[LIMIT_VARIABLE] = str(limit_bytes)
    if changes:
        env[CHANGES_VARIABLE] = json.dumps(changes)
    if measure_steps:
        env[STEPS_VARIABLE] = "1"
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, env.get("PYTHONPATH")]))


def _copy(part: str, path: str, package: str = "seatrial.agent.hook") -> None:
    text = pkgutil.get_data(package, part + ".py")
    if text is None:
        raise OSError(2, "the archive lacks the hook's %s.py" % part)
    with open(path, "wb") as file:
        file.write(text)


def remove(folder: str) -> None:
    """Take the hook away again."""
    shutil.rmtree(folder, ignore_errors=True)
