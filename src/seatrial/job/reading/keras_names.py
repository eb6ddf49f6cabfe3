"""Find calls in a form that only Keras 2 has."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from seatrial.job.reading.signs import NAMED, dotted, keywords, texts_of

_GENERATORS = {"fit_generator", "evaluate_generator", "predict_generator"}
_OPTIMIZERS = {"Adam", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl"}
_OF_WEIGHTS = (".h5", ".hdf5", ".ckpt", ".tf")


def keras_signs(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (sign, name to show) of a call of Keras 2, for either package that Keras may be imported from."""
    for name, shown in _forms(node) if isinstance(node, ast.Call) else ():
        yield f"{NAMED}keras.{name}", shown
        yield f"{NAMED}tensorflow.keras.{name}", shown


def _forms(node: ast.Call) -> Iterator[tuple[str, str]]:
    called, given = dotted(node.func), keywords(node)
    last = called.rpartition(".")[2]
    if last in _GENERATORS:
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
