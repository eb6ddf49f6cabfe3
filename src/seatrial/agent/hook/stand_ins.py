"""Packages of ours in place of ones that the target's Python lacks (seatrial.compat): laid beside it, found last."""

import os
import pkgutil
import subprocess
from typing import Dict, List

#: Names of packages that stand in, for entry.py; and whether they come before what is installed.
VARIABLE, FIRST_VARIABLE = "SEATRIAL_STAND_INS", "SEATRIAL_STAND_INS_FIRST"

#: In the hook's folder, which is no place that Python looks in.
FOLDER = "stand_ins"

FILES = {
    "horovod": (
        *("__init__", "torch/__init__", "torch/joining", "torch/ops", "torch/optimizer", "torch/state"),
        *("torch/sync_batch_norm", "torch/world"),
    )
}

_IS_THERE = "import importlib.util, sys; sys.exit(importlib.util.find_spec(%r) is None)"

#: Longer than an interpreter with a busy disk takes to start.
_TIMEOUT_S = 60.0


def place(names: List[str], folder: str, env: Dict[str, str], *, first: bool) -> None:
    """Put packages into the hook's ``folder``, whose entry.py finds them. Raises OSError.

    Args:
        first: they go before packages of their names that are installed.
    """
    for name in names:
        for file in FILES[name]:
            text = pkgutil.get_data("seatrial.compat", "%s/%s.py" % (name, file))
            if text is None:
                raise OSError(2, "the archive lacks %s/%s.py" % (name, file))
            path = os.path.join(folder, FOLDER, name, *file.split("/")) + ".py"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as written:
                written.write(text)
    if names:
        env[VARIABLE] = ",".join(names)
        if first:
            env[FIRST_VARIABLE] = "1"


def installed(name: str, python: str, env: Dict[str, str], workdir: str) -> bool:
    """Whether the target's Python has a package of this name itself. A Python that does not answer has none."""
    command = [python, "-c", _IS_THERE % name]
    try:
        asked = subprocess.run(
            command, env=env, cwd=workdir, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
