"""Find what code shows of packages' versions: conditions that it sets on them, and calls of Keras 2 alone."""

from __future__ import annotations

import ast
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from seatrial.errors import UsageError
from seatrial.job.reading.modules import FRAMEWORKS
from seatrial.job.reading.signs import NAMED, dotted, full_name, keywords, last_name, texts_of

if TYPE_CHECKING:
    from seatrial.job.script import ScriptFacts

_SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_EXCHANGED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}

#: Functions that parse a version, or its numbers, from text.
_READERS = {"Version", "LooseVersion", "StrictVersion", "parse", "parse_version", "digit_version", "map"}
_READERS |= {"tuple", "int"}
_DEEPEST = 12

#: Module-level names of a file → the expressions that they are assigned.
Values = Mapping[str, Sequence[ast.expr | None]]


class _Side(NamedTuple):
    """Hold a side of a comparison: a constant version, or the module whose version it is, in one of the forms below."""

    value: str
    is_module: bool
    form: str = "text"


#: Form of a version → operators that give a bound. Python compares texts by characters, so only == and != count.
_READABLE = {"text": "== !=", "parts": "", "first": "== != < >=", "version": "== != < <= > >="}


def version_bounds(node: ast.AST, values: Values, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (module, ``<=1.4.0``) without which a statement or a call fails. Args: names: see imported_names.

    Include check_min_version and require_version of transformers and diffusers.
    """
    match node:
        case ast.Assert(test=test):
            yield from _bounds(test, True, values, names)
        case ast.If(test=test, body=[*_, ast.Raise()]):
            yield from _bounds(test, False, values, names)
        case ast.Call(func=func, args=[ast.Constant(value=str(text)), *_]) if "_version" in last_name(func):
            top, called = full_name(dotted(func), names).partition(".")[0], last_name(func)
            with suppress(InvalidRequirement, InvalidVersion):
                if called == "check_min_version":
                    yield top, f">={Version(text).base_version}"
                elif called == "require_version" and (wanted := Requirement(text)).specifier:
                    yield wanted.name, str(wanted.specifier)


def _bounds(test: ast.expr, holds: bool, values: Values, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the bounds on versions if a condition holds, or if it does not."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield from _bounds(inner, not holds, values, names)
        case ast.BoolOp(op=op, values=parts) if isinstance(op, ast.And) == holds:
            for part in parts:
                yield from _bounds(part, holds, values, names)
        case ast.Compare(left=first, ops=ops, comparators=others) if holds or len(ops) == 1:
            sides = [_side(each, values, names) for each in (first, *others)]
            for left, compared, right in zip(sides, ops, sides[1:], strict=False):
                if left and right and left.is_module != right.is_module and (sign := _SIGNS.get(type(compared))):
                    module, other = (left, right) if left.is_module else (right, left)
                    sign = sign if left.is_module else _EXCHANGED.get(sign, sign)
                    yield from _bound(module, sign if holds else _OPPOSITE[sign], other.value)


def _bound(module: _Side, sign: str, version: str) -> Iterator[tuple[str, str]]:
    if sign in _READABLE[module.form].split():
        later = ".*" if module.form == "first" and sign in ("==", "!=") else ""
        with suppress(InvalidSpecifier):
            yield module.value, str(SpecifierSet(f"{sign}{version}{later}"))


def _side(node: ast.expr, values: Values, names: Mapping[str, str], deep: int = 0) -> _Side | None:
    """Return what an expression stands for; None if it is neither a version nor a constant."""

    def inner(each: ast.expr, form: str = "") -> _Side | None:
        found = _side(each, values, names, deep + 1) if deep < _DEEPEST else None
        return found._replace(form=form) if found and form and found.form != "first" else found

    name = full_name(dotted(node), names)
    if name.endswith(".__version__"):
        top = name.partition(".")[0]
        return _Side(top, True) if top else None
    match node:
        case ast.Constant(value=str() | int() as value):
            return _Side(str(value), False)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            numbers = [str(each.value) for each in parts if isinstance(each, ast.Constant)]
            return _Side(".".join(numbers), False) if len(numbers) == len(parts) else None
        case ast.Name(id=known):
            found = values.get(known, ())
            return inner(found[0]) if len(found) == 1 and found[0] is not None else None
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=text, attr="split"), args=[ast.Constant(value="+")])
        ):
            return inner(text)
        case ast.Subscript(value=text, slice=ast.Constant(value=0) | ast.Slice(lower=None, step=None)):
            whole = inner(text)
            return whole._replace(form="first") if whole and whole.form != "text" else None
        case ast.Call(func=ast.Attribute(value=text, attr="split"), args=[ast.Constant(value=".")]):
            return inner(text, "parts")
        case ast.Call(func=func, args=[*_, last]) if last_name(func) in _READERS:
            return inner(last, "version")
        case ast.ListComp(generators=[each]) | ast.GeneratorExp(generators=[each]):
            return inner(each.iter, "version")
    return None


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

    A script's own assignment takes precedence over the environment, and the environment over keras.json.
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
                f"{VARIABLE}={backend} keeps Keras on the CPU, but the run requests GPUs",
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
    """Return how to set the backend: a script's own assignment takes precedence over the environment."""
    if script.keras_backend is None:
        return f"--env {VARIABLE}={backend}"
    return f'set os.environ["{VARIABLE}"] = "{backend}" in {script.keras_backend.partition(" ")[0]}'


def _configured(env: Mapping[str, str], project: Path, home: Path | None) -> str | None:
    """Return the backend of keras.json, in KERAS_HOME inside the project or, here, in the user's home; or None."""
    folder = project / env[HOME] if env.get(HOME) else home / ".keras" if home else None
    if folder is None:
        return None
    try:
        backend = json.loads((folder / "keras.json").read_text(encoding="utf-8")).get("backend")
    except (OSError, ValueError, AttributeError):
        return None
    return backend if isinstance(backend, str) else None
