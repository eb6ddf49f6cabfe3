"""The reasons why a script stays on the CPU, read from its source: lines that choose it, and missing lines."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from seatrial.errors import SeatrialError
from seatrial.job.model import Target
from seatrial.job.reading.modules import STANDARD_MODULES
from seatrial.job.reading.signs import dotted
from seatrial.job.script import script_facts
from seatrial.system.source import MAX_BYTES, MOST_MARKS, UnreadableSourceError, marks, parse_source

#: Values that show no device. Source: CUDA C++ Programming Guide, "CUDA Environment Variables": devices behind the
#: first index that does not exist are invisible.
_HIDING = frozenset({"", "-1", "none", "None", "NoDevFiles", "99"})
#: Keyword arguments of well-known trainers that take the CPU. Sources: lightning.ai, huggingface.co/docs/transformers
#: and /docs/accelerate.
_CPU_ARGUMENTS = {("accelerator", "cpu"), ("use_cpu", True), ("no_cuda", True), ("cpu", True), ("device_map", "cpu"),
                  ("device", "cpu"), ("device", -1)}  # fmt: skip
#: Calls that create a device, or set the one for all.
_DEVICES = {"torch.device", "device", "torch.set_default_device", "set_default_device"}
#: Packages that move models and batches to the GPU by themselves.
_MOVERS = ("transformers", "accelerate", "lightning", "pytorch_lightning", "fastai", "ignite", "composer", "keras")
#: Libraries that can use a GPU.
_LIBRARIES = {
    *_MOVERS, "torch", "tensorflow", "jax", "cupy", "numba", "cudf", "cuml", "mxnet", "paddle", "pycuda", "warp",
    "xgboost", "lightgbm", "catboost", "flax", "timm", "torchvision", "diffusers", "ultralytics",
}  # fmt: skip

#: Libraries that use a GPU by themselves → a line that prints the devices they found.
_ASK = {
    "jax": "import jax; print(jax.devices())",
    "tensorflow": 'import tensorflow as tf; print(tf.config.list_physical_devices("GPU"))',
    "keras": "import keras; print(keras.distribution.list_devices())",
}

#: Words of a flag that switches the GPU on.
_ON_FLAGS = ("--cuda", "--gpu", "--use-cuda", "--use_cuda", "--use-gpu", "--use_gpu", "--accel")
_OFF_FLAGS = ("--no-cuda", "--no_cuda", "--cpu", "--no-gpu", "--no_gpu", "--use-cpu", "--use_cpu", "--no-accel")


@dataclass(frozen=True)
class Reason:
    """A sentence with its place, and what to change. ``weight``: the lower, the more it explains."""

    weight: int
    words: str
    change: str


def reasons(target: Target, project: Path) -> tuple[Reason, ...]:
    """Return the reasons in the script and the modules that it imports, strongest first; () without a script."""
    try:
        facts = script_facts(target, project)
        trees = {name: tree for name in facts.files if (tree := _tree(project, name)) is not None}
    except (SeatrialError, OSError):
        return ()
    if not trees:
        return ()
    found = [reason for name, tree in trees.items() for reason in _File(name, tree, target.args).reasons()]
    imported = {module.partition(".")[0] for module in (*facts.modules, *facts.imports, *facts.optional_imports)}
    imported -= STANDARD_MODULES
    found += _nowhere(target.value, trees.values(), imported)
    unique = {reason.words: reason for reason in sorted(found, key=lambda reason: reason.weight)}
    return tuple(unique.values())


def _tree(project: Path, name: str) -> ast.Module | None:
    path = project / name
    try:
        if not path.is_relative_to(project) or path.stat().st_size > MAX_BYTES:
            return None
        source = path.read_bytes()
        return parse_source(source, name) if marks(source) <= MOST_MARKS else None
    except (UnreadableSourceError, OSError):
        return None


def _nowhere(script: str, trees: Iterable[ast.Module], imported: set[str]) -> Iterator[Reason]:
    """Yield a reason for each line that a script needs to use a GPU and lacks."""
    if not imported & _LIBRARIES:
        yield Reason(
            1,
            f"{script} imports no library that uses a GPU ({', '.join(sorted(imported)[:4]) or 'only standard ones'})",
            "a library that can use one (torch, JAX, CuPy), or no GPU for it: seatrial run --gpus none",
        )
    elif (
        "torch" in imported
        and not imported & set(_MOVERS)
        and not any(_moves(node) for tree in trees for node in ast.walk(tree))
    ):
        yield Reason(
            4,
            f'nothing in {script} moves model or data to the GPU: no .to(…), .cuda() or "cuda" in it',
            'model.to("cuda") before the optimizer is made, and each batch.to("cuda")',
        )
    elif "torch" not in imported and (library := next((each for each in _ASK if each in imported), None)):
        yield Reason(
            5,
            f"{script} computes with {library}, which takes a GPU by itself where it finds one: it found none",
            f"{_ASK[library]}, as the script's first line, prints the devices found and why a GPU is missing",
        )


def _moves(node: ast.AST) -> bool:
    """Return whether an expression moves something to the GPU, or names it."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "to"
    if isinstance(node, ast.Attribute):
        return node.attr in ("cuda", "to_device", "set_default_device")
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("cuda")


class _File:
    """The lines of one module that choose a device."""

    def __init__(self, name: str, tree: ast.Module, args: tuple[str, ...]) -> None:
        self.name, self.tree, self.args = name, tree, args

    def reasons(self) -> Iterator[Reason]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield from self._call(node)
            elif isinstance(node, ast.Assign):
                for where in node.targets:
                    yield from self._assigned(where, node.value, node.lineno)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                yield from self._assigned(node.target, node.value, node.lineno)
            elif isinstance(node, ast.ExceptHandler):
                yield from self._fallback(node)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from self._default(node)

    def _at(self, line: int) -> str:
        return f"{self.name}:{line}"

    def _assigned(self, where: ast.expr, value: ast.expr, line: int) -> Iterator[Reason]:
        if isinstance(where, ast.Subscript) and dotted(where.value).rpartition(".")[2] == "environ":
            yield from self._variable(_constant(where.slice), value, line)
        name = dotted(where).rpartition(".")[2].lower()
        at, variable = self._at(line), dotted(where)
        if "device" in name and _is_cpu(value):
            yield Reason(3, f'{at} sets {variable} to the CPU: "cpu"', f'{at}: {variable} = "cuda"')
        if name in ("use_cuda", "use_gpu", "cuda", "gpu") and _constant(value) is False:
            yield Reason(3, f"{at} sets {variable} to False", f"{at}: True in its place")

    def _variable(self, name: object, value: ast.expr, line: int) -> Iterator[Reason]:
        """Yield reasons for a variable that frameworks read: visible GPUs, or the platform."""
        value_set = _constant(value)
        if name == "CUDA_VISIBLE_DEVICES" and value_set != "0":
            hides = "which hides every GPU" if str(value_set) in _HIDING else "which hides all GPUs but those"
            shown = repr(value_set) if isinstance(value_set, (str, int)) else "a value of its own"
            yield Reason(
                0 if str(value_set) in _HIDING else 2,
                f"{self._at(line)} sets CUDA_VISIBLE_DEVICES to {shown}, {hides}",
                f"remove {self._at(line)}: seatrial sets CUDA_VISIBLE_DEVICES for the requested GPUs",
            )
        elif name in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME", "ACCELERATE_USE_CPU") and value_set in ("cpu", "true", "1"):
            yield Reason(0, f"{self._at(line)} sets {name} to {value_set!r}", f"take {self._at(line)} out")

    def _call(self, call: ast.Call) -> Iterator[Reason]:
        called = dotted(call.func)
        last = called.rpartition(".")[2]
        words = [value for arg in call.args if isinstance(value := _constant(arg), str)]
        if called.endswith("config.update") and words in (["jax_platforms", "cpu"], ["jax_platform_name", "cpu"]):
            line = self._at(call.lineno)
            yield Reason(0, f"{line} keeps JAX on the CPU: {words[0]} is 'cpu'", f"take {line} out")
        elif last in ("setdefault", "putenv") and len(call.args) == 2:
            yield from self._variable(_constant(call.args[0]), call.args[1], call.lineno)
        elif last == "update" and "environ" in called:
            for keyword in call.keywords:
                yield from self._variable(keyword.arg, keyword.value, call.lineno)
            for table in call.args:
                if isinstance(table, ast.Dict):
                    for key, value in zip(table.keys, table.values, strict=True):
                        yield from self._variable(key and _constant(key), value, call.lineno)
        elif last == "set_visible_devices" and call.args and isinstance(call.args[0], ast.List | ast.Tuple):
            if not call.args[0].elts and "GPU" in words:
                yield Reason(0, f"{self._at(call.lineno)} hides every GPU from TensorFlow", "take that line out")
        elif called in _DEVICES and last == "set_default_device" and any(_is_cpu(arg) for arg in call.args):
            yield Reason(3, f'{self._at(call.lineno)} sets the default device to "cpu"', '"cuda" in its place')
        elif any(word.startswith("-") for word in words):
            yield from self._flag(call, [word for word in words if word.startswith("-")])
        else:
            yield from self._arguments(call, called)

    def _flag(self, call: ast.Call, names: list[str]) -> Iterator[Reason]:
        """Yield reasons for an option of the command line: of argparse, click, absl or typer."""
        given = {keyword.arg: _constant(keyword.value) for keyword in call.keywords}
        long = max(names, key=len)
        used = [arg.partition("=") for arg in self.args if arg.partition("=")[0] in names]
        if "device" in long or "accelerator" in long:
            value = next((after or _behind(self.args, arg) for arg, _, after in used), given.get("default"))
            if str(value).lower() == "cpu":
                default = f'{long} is "cpu" unless it is given ({self._at(call.lineno)})'
                yield Reason(2, f"{long} cpu was given" if used else default, f"seatrial run … -- {long} cuda")
        elif long in _ON_FLAGS and given.get("action") == "store_true" and not used:
            yield Reason(2, f"{long} is off unless it is given ({self._at(call.lineno)})", f"seatrial run … -- {long}")
        elif long in _OFF_FLAGS and used:
            yield Reason(0, f"{long} was given", f"leave {long} out")

    def _arguments(self, call: ast.Call, called: str) -> Iterator[Reason]:
        """Yield reasons for ``Trainer(accelerator="cpu")`` and similar; ``map_location`` proves little."""
        if not called.rpartition(".")[2][:1].isupper() and called != "pipeline":
            return
        for keyword in call.keywords:
            if (keyword.arg, _constant(keyword.value)) in _CPU_ARGUMENTS:
                shown = f"{called}({keyword.arg}={ast.unparse(keyword.value)})"
                yield Reason(1, f"{self._at(call.lineno)} takes the CPU: {shown}", f"take {keyword.arg} out of it")

    def _fallback(self, handler: ast.ExceptHandler) -> Iterator[Reason]:
        """Yield reasons for a caught error of the GPU, after which training goes on without it."""
        for node in ast.walk(handler):
            if isinstance(node, ast.Assign | ast.Return) and node.value is not None and _is_cpu(node.value):
                yield Reason(
                    0,
                    f"{self._at(node.lineno)} goes on with the CPU after an error that the except in line "
                    f"{handler.lineno} hides",
                    f"let the error of {self._at(handler.lineno)} out: raise",
                )

    def _default(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Reason]:
        named = [*function.args.posonlyargs, *function.args.args]
        pairs = list(zip(named[::-1], function.args.defaults[::-1], strict=False))
        pairs += [(a, d) for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if d]
        for argument, default in pairs:
            if "device" in argument.arg and _is_cpu(default):
                yield Reason(
                    5,
                    f'{function.name}({argument.arg}="cpu") is the default in {self._at(function.lineno)}',
                    f'{argument.arg}="cuda" where {function.name} is called',
                )


def _behind(args: tuple[str, ...], flag: str) -> str:
    place = args.index(flag) + 1
    return args[place] if place < len(args) else ""


def _constant(node: ast.expr) -> object:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return -value if isinstance(value, (int, float)) else None
    return node.value if isinstance(node, ast.Constant) else None


def _is_cpu(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and dotted(node.func) in _DEVICES and node.args:
        node = node.args[0]
    value = _constant(node)
    return isinstance(value, str) and value.partition(":")[0] == "cpu"


def reason_by_torch(facts: Mapping[str, object]) -> Reason | None:
    """Return the reason that torch itself reported at the script's end, if the hook recorded it."""
    if "cuda_build" in facts and not facts["cuda_build"]:
        version = str(facts.get("version"))[:40]
        return Reason(
            -1,
            f"torch {version} is a CPU build: it cannot use any GPU",
            "install torch from an index of CUDA builds, or let seatrial build the image: seatrial run --on docker",
        )
    return None
