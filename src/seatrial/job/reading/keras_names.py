"""Read how code uses Keras: names below its modules, and calls in a form that only Keras 2 has."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from seatrial.job.reading.signs import dotted

#: Prefix of a sign for a dotted name as code writes it.
_USE = "keras:"

#: What code calls Keras and its modules.
_MODULES = {"keras", "tf", "tensorflow", "K", "backend", "layers", "losses", "metrics", "callbacks", "constraints"}
_MODULES |= {"models", "optimizers", "preprocessing", "image", "sequence", "utils", "applications"}
_USUAL = {"K": "backend", "tf": "tensorflow"}

_GENERATORS = {"fit_generator", "evaluate_generator", "predict_generator"}
_OPTIMIZERS = {"Adam", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl"}


def keras_signs(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (sign, name to show) for a name below one of Keras' modules, and for a call of Keras 2."""
    if isinstance(node, ast.Attribute):
        name = dotted(node)
        first, _, rest = name.partition(".")
        if rest and first in _MODULES:
            yield f"{_USE}{name}", name
    elif isinstance(node, ast.Call):
        for name, shown in _forms(node):
            yield f"{_USE}keras.{name}", shown
            yield f"{_USE}tf.keras.{name}", shown


def _forms(node: ast.Call) -> Iterator[tuple[str, str]]:
    called, given = dotted(node.func), {each.arg: each.value for each in node.keywords}
    last = called.rpartition(".")[2]
    if last in _GENERATORS:
        yield f"Model.{last}", last
    if last in _OPTIMIZERS and "legacy" not in called and not {"params", None} & set(given):
        if "lr" in given and not node.args:  # torch's takes the parameters first
            yield "optimizers.lr", f"{last}(lr=…)"
        if "decay" in given:
            yield "optimizers.decay", f"{last}(decay=…)"
    if last == "ModelCheckpoint" and "period" in given:
        yield "callbacks.ModelCheckpoint.period", "ModelCheckpoint(period=…)"
    only_weights = getattr(given.get("save_weights_only"), "value", False) is True
    if last == "save_weights" or (last == "ModelCheckpoint" and only_weights):
        path = _end(node.args[0]) if node.args else _end(given.get("filepath"))
        if "save_format" in given or (path and not path.endswith(".weights.h5")):
            yield "Model.save_weights", f"{last}({path!r})" if path else f"{last}(save_format=…)"


def _end(node: ast.expr | None) -> str | None:
    """Return the text that an expression ends with: ``.h5`` of ``folder + ".h5"``; None if it is not known."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return _end(node.values[-1]) if node.values else None
    if isinstance(node, ast.BinOp):
        return _end(node.left if isinstance(node.op, ast.Mod) else node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "format":
            return _end(node.func.value)
        return _end(node.args[-1]) if node.func.attr == "join" and node.args else None
    return None


def keras_names(seen: Mapping[str, str], modules: Mapping[str, str]) -> dict[str, str]:
    """Map the full names of what code uses of Keras to the places: ``keras.backend.mean`` of ``K.mean``.

    Args:
        modules: dotted names of all that is imported, which show what ``K`` and ``keras`` are.
    """
    parents = {part for name in modules for part in (name, *_tops(name))}
    places: dict[str, list[str]] = {}
    for each in parents:
        if each in ("keras", "tensorflow") or each.startswith(("keras.", "tensorflow.keras")):
            places.setdefault(each.rpartition(".")[2], []).append(each)
    found = {}
    for sign, where in seen.items():
        first, _, rest = sign.removeprefix(_USE).partition(".")
        for parent in places.get(_USUAL.get(first, first), ()) if sign.startswith(_USE) else ():
            found[f"{parent}.{rest}"] = where
    return found


def _tops(name: str) -> tuple[str, ...]:
    """Return ``tensorflow`` and ``tensorflow.keras`` of ``tensorflow.keras.layers.Dense``."""
    first, second = (*name.split(".", 2), "")[:2]
    return (first, f"{first}.{second}") if (first, second) == ("tensorflow", "keras") else (first,)
