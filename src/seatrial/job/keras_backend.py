"""Which framework computes for a Keras 3 script: the one that KERAS_BACKEND or a keras.json names, else TensorFlow."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from seatrial.errors import UsageError
from seatrial.job.script import FRAMEWORKS, ScriptFacts

VARIABLE, HOME = "KERAS_BACKEND", "KERAS_HOME"

#: Packages that compute with Keras' backend.
_KERAS = {"keras", "keras_hub", "keras_cv", "keras_nlp"}

#: Backends of Keras that use no GPU of NVIDIA's → what they import. Source: keras/src/backend of 3.15, whose numpy
#: takes its images' resizing and its random numbers from jax.
_WITHOUT_GPU = {"numpy": ("jax",), "openvino": ("openvino",)}


def with_keras_backend(
    script: ScriptFacts, env: Mapping[str, str], project: Path, home: Path | None = None, *, gpus: bool = False
) -> ScriptFacts:
    """The facts of a script that imports Keras, with its backend as its framework and among its imports.

    A script's own assignment comes before the environment, that before a keras.json.
    Source: keras/src/backend/config.py of 3.15.

    Args:
        env: what the target's environment will have of these variables.
        home: the target's, where it is this machine's.
        gpus: the run requests GPUs.

    Raises UsageError for a backend that Keras does not have, and for one that uses no GPU where one is requested.
    """
    if not _KERAS & set(script.imports):
        return script
    assigned, default = (each and each.rpartition(" ")[2] for each in (script.keras_backend, script.keras_default))
    backend = assigned or env.get(VARIABLE) or default or _configured(env, project, home)
    if not backend:
        return script
    if backend in _WITHOUT_GPU:
        if gpus:
            raise UsageError(
                f"{VARIABLE}={backend}: Keras then computes on the CPU alone, and GPUs are requested",
                run=f"seatrial run … --gpus none   # or on a GPU: {_set_to('jax', script)}",
            )
        return replace(script, framework=None, imports=tuple(sorted({*script.imports, *_WITHOUT_GPU[backend]})))
    if backend not in FRAMEWORKS:
        known = sorted((*FRAMEWORKS, *_WITHOUT_GPU))
        closest = next(iter(difflib.get_close_matches(backend.lower(), known, n=1)), "jax")
        raise UsageError(
            f"{VARIABLE}={backend}: Keras has no such backend",
            cause=f"it has {', '.join(known)}",
            run=_set_to(closest, script) if assigned else f"seatrial run … --env {VARIABLE}={closest}",
        )
    return replace(script, framework=backend, imports=tuple(sorted({*script.imports, backend})))


def _set_to(backend: str, script: ScriptFacts) -> str:
    """Return how to set it: a script's own assignment comes before any variable."""
    if script.keras_backend is None:
        return f"--env {VARIABLE}={backend}"
    return f'write os.environ["{VARIABLE}"] = "{backend}" in {script.keras_backend.partition(" ")[0]}'


def _configured(env: Mapping[str, str], project: Path, home: Path | None) -> str | None:
    """The backend of keras.json, in KERAS_HOME inside the project or, on this machine, in the user's home."""
    folder = project / env[HOME] if env.get(HOME) else home / ".keras" if home else None
    if folder is None:
        return None
    try:
        backend = json.loads((folder / "keras.json").read_text(encoding="utf-8")).get("backend")
    except (OSError, ValueError, AttributeError):
        return None
    return backend if isinstance(backend, str) else None
