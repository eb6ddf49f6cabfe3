"""Which framework computes for a Keras 3 script: the one that KERAS_BACKEND or a keras.json names, else TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from seatrial.errors import UsageError
from seatrial.job.script import FRAMEWORKS, ScriptFacts

VARIABLE, HOME = "KERAS_BACKEND", "KERAS_HOME"

#: Packages that compute with Keras' backend.
_KERAS = {"keras", "keras_hub", "keras_cv", "keras_nlp"}

#: Backends of Keras that use no GPU of NVIDIA's. Source: keras/src/backend/__init__.py of 3.15.
_WITHOUT_GPU = ("numpy", "openvino")


def with_keras_backend(
    script: ScriptFacts, env: Mapping[str, str], project: Path, home: Path | None = None
) -> ScriptFacts:
    """The facts of a script that imports Keras, with its backend as its framework and among its imports.

    A script's own assignment comes before the environment, that before a keras.json.
    Source: keras/src/backend/config.py of 3.15.

    Args:
        env: what the target's environment will have of these variables.
        home: the target's, where it is this machine's.

    Raises UsageError for a backend that Keras does not have.
    """
    if not _KERAS & set(script.imports):
        return script
    assigned, default = (each and each.rpartition(" ")[2] for each in (script.keras_backend, script.keras_default))
    backend = assigned or env.get(VARIABLE) or default or _configured(env, project, home)
    if not backend:
        return script
    if backend in _WITHOUT_GPU:
        return replace(script, framework=None)
    if backend not in FRAMEWORKS:
        raise UsageError(
            f"{VARIABLE}={backend}: Keras has no such backend",
            cause=f"it has {', '.join(sorted((*FRAMEWORKS, *_WITHOUT_GPU)))}",
            run=f"seatrial run … --env {VARIABLE}=jax",
        )
    return replace(script, framework=backend, imports=tuple(sorted({*script.imports, backend})))


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
