"""Find calls in a form that only Keras 2 has, and the backend of Keras."""

from __future__ import annotations

import ast
import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.errors import UsageError, fallback
from seatrial.job.reading.modules import FRAMEWORKS
from seatrial.job.reading.signs import NAMED, SETS, dotted, full_name, keywords, texts_of

if TYPE_CHECKING:
    from seatrial.job.reading.parsed_modules import Module
    from seatrial.job.script import ScriptFacts

_OPTIMIZERS = {"Adam", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl"}
_OF_WEIGHTS = (".h5", ".hdf5", ".ckpt", ".tf")


def keras_signs(node: ast.AST, module: Module) -> Iterator[tuple[str, str]]:
    """Yield (sign, name to show) of a call of Keras 1 or 2, for either package that Keras may be imported from."""
    for name, shown in _forms(node, module) if isinstance(node, ast.Call) else ():
        yield f"{NAMED}keras.{name}", shown
        yield f"{NAMED}tensorflow.keras.{name}", shown


def _forms(node: ast.Call, module: Module) -> Iterator[tuple[str, str]]:
    called, given = dotted(node.func), keywords(node)
    last = called.rpartition(".")[2]
    is_fit = last in ("fit", "fit_generator") and not any(f".{each}".endswith(".fit") for each in module.flow.functions)
    of_keras = full_name(called, module.names).startswith("keras.")  # a project's own names take these arguments, too
    kind = "fits" if is_fit and isinstance(node.func, ast.Attribute) else "layers" if of_keras else ""
    if old := [each for each in given if kind and each in SETS[f"{kind}-of-keras-1"]]:
        yield "1", f"{last}({old[0]}=…)"
    if last in {"fit_generator", "evaluate_generator", "predict_generator"}:
        yield f"Model.{last}", last
    if last in _OPTIMIZERS and "legacy" not in called and not {"params", None} & set(given):
        if "lr" in given and not node.args:  # torch's optimizers take the parameters first
            yield "optimizers.lr", f"{last}(lr=…)"
        if "decay" in given:
            yield "optimizers.decay", f"{last}(decay=…)"
    if last == "ModelCheckpoint" and "period" in given:
        yield "callbacks.ModelCheckpoint.period", "ModelCheckpoint(period=…)"
    if last in ("save_weights", "ModelCheckpoint"):
        path = "".join(texts_of(node.args[0])[-1:]) if node.args else ""
        takes = ".weights.h5" if last == "save_weights" or "save_weights_only" in given else (".h5", ".keras")
        if "save_format" in given or (path.endswith(_OF_WEIGHTS) and not path.endswith(takes)):
            yield "Model.save_weights", f"{last}({path!r})" if path else f"{last}(save_format=…)"


VARIABLE, HOME = "KERAS_BACKEND", "KERAS_HOME"

#: Packages that use Keras' backend.
_KERAS = {"keras", "keras_hub", "keras_cv", "keras_nlp"}

#: Backends of Keras that use no NVIDIA GPU → their imports. Source: keras/src/backend of 3.15, whose numpy
#: backend takes image resizing and random numbers from jax.
_WITHOUT_GPU = {"numpy": ("jax",), "openvino": ("openvino",)}


def with_keras_backend(
    script: ScriptFacts, env: Mapping[str, str], project: Path, home: Path | None = None, *, gpus: bool = False
) -> ScriptFacts:
    """Return the facts of a script that imports Keras, with its backend as its framework and among its imports.

    A script's own assignment goes before ``env``, the target's, and that before keras.json of ``home``, where that is
    this machine's. Source: keras/src/backend/config.py of 3.15.
    Raises UsageError for a backend that Keras does not have, and for one that uses no GPU where one is requested.
    """
    if not _KERAS & set(script.imports):
        return script
    assigned, default = (each and each.rpartition(" ")[2] for each in (script.keras_backend, script.keras_default))
    backend = assigned or env.get(VARIABLE) or default or _configured(env, project, home)
    if not backend:  # it is TensorFlow, which no release of Keras requires, whatever else computes
        return replace(script, imports=tuple(sorted({*script.imports, "tensorflow"})))
    if backend in _WITHOUT_GPU:
        if gpus:
            message = f"{VARIABLE}={backend} keeps Keras on the CPU, but the run requests GPUs"
            raise UsageError(message, run=f"seatrial run … --gpus none   # or on a GPU: {_set_to('jax', script)}")
        return replace(script, framework=None, imports=tuple(sorted({*script.imports, *_WITHOUT_GPU[backend]})))
    if backend not in FRAMEWORKS:
        known = sorted((*FRAMEWORKS, *_WITHOUT_GPU))
        closest = next(iter(difflib.get_close_matches(backend.lower(), known, n=1)), "jax")
        message, cause = f"{VARIABLE}={backend}: Keras has no such backend", f"it has {', '.join(known)}"
        run = _set_to(closest, script) if assigned else f"seatrial run … --env {VARIABLE}={closest}"
        raise UsageError(message, cause=cause, run=run)
    return replace(script, framework=backend, imports=tuple(sorted({*script.imports, backend})))


def _set_to(backend: str, script: ScriptFacts) -> str:
    """Return how to set the backend: a script's own assignment takes precedence over the environment."""
    if script.keras_backend is None:
        return f"--env {VARIABLE}={backend}"
    return f'set os.environ["{VARIABLE}"] = "{backend}" in {script.keras_backend.partition(" ")[0]}'


@fallback(None, on=(OSError, ValueError, AttributeError))
def _configured(env: Mapping[str, str], project: Path, home: Path | None) -> str | None:
    """Return the backend of keras.json, in KERAS_HOME inside the project or, here, in the user's home; or None."""
    folder = project / env[HOME] if env.get(HOME) else home / ".keras" if home else None
    if folder is None:
        return None
    backend = json.loads((folder / "keras.json").read_text(encoding="utf-8")).get("backend")
    return backend if isinstance(backend, str) else None
