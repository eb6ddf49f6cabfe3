"""Place the hook in front of the target's Python, through sitecustomize, and remove it again."""

import json
import os
import pkgutil
import shutil
import subprocess
from typing import Any, Dict, Optional, Sequence

from seatrial.agent import hook

#: Variables for bootstrap.py: names of stand-in packages, and whether they come before installed ones.
VARIABLE, FIRST_VARIABLE = "SEATRIAL_STAND_INS", "SEATRIAL_STAND_INS_FIRST"

#: A folder inside the hook's, where Python does not look.
FOLDER = "stand_ins"

_TORCH = ("__init__", "operations", "optimizer", "world")
FILES = {"horovod": ("__init__", *("torch/" + name for name in _TORCH))}

_IS_THERE = "import importlib.util, sys; sys.exit(importlib.util.find_spec(%r) is None)"

#: Longer than an interpreter with a busy disk takes to start.
_TIMEOUT_S = 60.0


def place(names: Sequence[str], folder: str, env: Dict[str, str], *, first: bool) -> None:
    """Put packages into the hook's ``folder``, ``first`` before installed ones, for bootstrap.py. Raises OSError."""
    for name in names:
        for file in FILES[name]:
            path = os.path.join(folder, FOLDER, name, *file.split("/")) + ".py"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _copy("%s/%s" % (name, file), path, "seatrial.compat")
    if names:
        env[VARIABLE] = ",".join(names)
        if first:
            env[FIRST_VARIABLE] = "1"


def installed(name: str, python: str, env: Dict[str, str], workdir: str) -> bool:
    """Return whether the target's Python has a package of this name itself. A Python that does not answer has none."""
    command = [python, "-c", _IS_THERE % name]
    try:
        ended = subprocess.run(
            command, env=env, cwd=workdir, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0


#: Read in every Python process of the target: by memory_limit.py, and by bootstrap.py.
LIMIT_VARIABLE, STEPS_VARIABLE = "SEATRIAL_GPU_MEMORY_BYTES", "SEATRIAL_MEASURE_STEPS"
CHANGES_VARIABLE = "SEATRIAL_TUNE"

#: The folder that bootstrap.py loads its parts from, as the package seatrial_hook. A warning that torch raises for its
#: caller (stacklevel=2) names the line of the first caller whose file has not both "importlib" and "_bootstrap" in its
#: path, so that it names the script's line and not one of ours. Source: is_internal_frame in CPython's
#: Python/_warnings.c and Lib/warnings.py, 3.3 to 3.14; skip_file_prefixes is for who raises the warning.
_FOLDER = "seatrial_hook_like_importlib_bootstrap"

#: Modules of this package that the hook does without.
_OTHERS = ("bootstrap", "install")


def install(
    folder: str,
    env: Dict[str, str],
    limit_bytes: Optional[int],
    measure_steps: bool,
    changes: Optional[Dict[str, Any]] = None,
) -> None:
    """Put the hook, with ``changes`` for the script, into a new ``folder``, first of its PYTHONPATH. Raises OSError."""
    package = os.path.join(folder, _FOLDER)
    os.makedirs(package, exist_ok=True)
    _copy("bootstrap", os.path.join(folder, "sitecustomize.py"))
    for part in ("__init__", *(found.name for found in pkgutil.iter_modules(hook.__path__))):
        if part not in _OTHERS:
            _copy(part, os.path.join(package, part + ".py"))
    _copy("tunables", os.path.join(package, "tunables.py"), "seatrial.common")
    if limit_bytes is not None:
        env[LIMIT_VARIABLE] = str(limit_bytes)
    if changes:
        env[CHANGES_VARIABLE] = json.dumps(changes)
    if measure_steps:
        env[STEPS_VARIABLE] = "1"
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, env.get("PYTHONPATH")]))


def _copy(part: str, path: str, package: str = "seatrial.agent.hook") -> None:
    text = pkgutil.get_data(package, part + ".py")
    assert text is not None, "its loader reads files"
    with open(path, "wb") as file:
        file.write(text)


def remove(folder: str) -> None:
    """Remove the hook."""
    shutil.rmtree(folder, ignore_errors=True)
