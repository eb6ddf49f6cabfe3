"""Read how code uses Keras: names below its modules, and calls in a form that only Keras 2 has."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from seatrial.job.reading.signs import dotted, texts_of

#: Prefix of a sign for a dotted name as code writes it.
_USE = "keras:"

#: What code calls Keras and its modules; names that are usual for a module of another name.
_USUAL = {"K": "backend", "tf": "tensorflow"}
_MODULES = {*_USUAL, "keras", "tensorflow", "backend", "layers", "losses", "metrics", "callbacks", "constraints"}
_MODULES |= {"models", "optimizers", "preprocessing", "image", "sequence", "utils", "applications"}

_GENERATORS = {"fit_generator", "evaluate_generator", "predict_generator"}
_OPTIMIZERS = {"Adam", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl"}
_OF_WEIGHTS = (".h5", ".hdf5", ".ckpt", ".tf")


def keras_signs(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (sign, name to show) for a name below one of Keras' modules, and for a call of Keras 2."""
    if isinstance(node, ast.Attribute):
        name = dotted(node)
        if name.partition(".")[0] in _MODULES:
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
    if last in ("save_weights", "ModelCheckpoint"):
        path = "".join(texts_of(node.args[0])[-1:]) if node.args else ""
        takes = ".weights.h5" if last == "save_weights" or "save_weights_only" in given else (".h5", ".keras")
        if "save_format" in given or (path.endswith(_OF_WEIGHTS) and not path.endswith(takes)):
            yield "Model.save_weights", f"{last}({path!r})" if path else f"{last}(save_format=…)"


def keras_names(seen: Mapping[str, str], modules: Mapping[str, str]) -> dict[str, str]:
    """Map the full names of what code uses of Keras to the places: ``keras.backend.mean`` of ``K.mean``.

    Args:
        modules: dotted names of all that is imported, which show what ``K`` and ``keras`` are.
    """
    parents = {".".join(name.split(".")[:size]) for name in modules for size in (1, 2, -1)} | {*modules}
    own = [each for each in parents if f"{each}.".startswith(("keras.", "tensorflow.keras.")) or each == "tensorflow"]
    found: dict[str, str] = {}
    for sign, where in seen.items():
        if sign.startswith(_USE):
            first, _, rest = sign.removeprefix(_USE).partition(".")
            module = _USUAL.get(first, first)
            found |= {f"{each}.{rest}": where for each in own if each.rpartition(".")[2] == module}
    return found
