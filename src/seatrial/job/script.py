"""ScriptFacts: what a training script shows of itself when read, not run: framework, launcher, compiler."""

from __future__ import annotations

import ast
import shlex
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import seatrial
from seatrial.errors import TargetError
from seatrial.job.model import Target

#: Top-level module → the framework it stands for. The frameworks themselves are looked for first.
FRAMEWORKS = ("torch", "tensorflow", "jax")
BUILT_ON = {
    "torchvision": "torch",
    "torchaudio": "torch",
    "lightning": "torch",
    "pytorch_lightning": "torch",
    "accelerate": "torch",
    "timm": "torch",
    "transformers": "torch",
    "keras": "tensorflow",
    "flax": "jax",
    "optax": "jax",
}

#: Signs of one process per GPU under torchrun; docs.pytorch.org/docs/stable/elastic/run.html. A Lightning Trainer
#: is none: it starts its own ranks.
_TORCHRUN_NAMES = {
    "init_process_group",
    "init_device_mesh",
    "Accelerator",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "FSDP",
    "fully_shard",
}
#: Signs of a script that starts its own ranks: under torchrun each rank would start a whole world again.
_SPAWNS = {"spawn", "start_processes", "Process"}

_MAX_FILES = 500
_MAX_FILE_BYTES = 1_000_000


@dataclass(frozen=True)
class ScriptFacts:
    """What reading a script and the project's modules it imports showed. Evidence is ``file.py:line name``.

    Attributes:
        imports: top-level names of imported modules that are neither the project's nor the standard library's.
        framework: ``torch``, ``tensorflow``, ``jax`` or None.
        torchrun_evidence: where it wants one process per GPU, or None.
        one_process_evidence: where it drives several GPUs from one process, or starts ranks itself, or None.
        compiler_evidence: where it compiles at run time (torch.compile, Triton, C++ extensions), so that the
            image needs a C compiler, or None.
        files: the files that were read, relative to the project where they are inside.
    """

    imports: tuple[str, ...] = ()
    framework: str | None = None
    torchrun_evidence: str | None = None
    one_process_evidence: str | None = None
    compiler_evidence: str | None = None
    files: tuple[str, ...] = ()

    @property
    def wants_torchrun(self) -> bool:
        return self.torchrun_evidence is not None

    @property
    def multi_gpu_evidence(self) -> str | None:
        """Where it shows that it uses several GPUs; ``job.gpus.select`` asks."""
        return self.torchrun_evidence or self.one_process_evidence


def script_facts(target: Target, project: Path) -> ScriptFacts:
    """Read the target's source, and every module of the project that it imports, with ``ast``.

    An image, or a module that is not the project's, shows nothing: its facts are empty. Of a recipe its own file is
    read and the training library under it is not: that offers much which the recipe does not ask for.

    Raises:
        TargetError: the script itself has a syntax error (file, line and text), or cannot be read.
    """
    start = _source(target, project)
    if start is None:
        return ScriptFacts()
    roots = [project, project / "src"] if target.kind == "module" else [start.parent, project]
    reader = _Reader(project, roots)
    reader.read_all(start)
    return reader.facts()


def _source(target: Target, project: Path) -> Path | None:
    if target.kind == "script":
        return project / target.value
    if target.kind == "recipe":
        return Path(seatrial.__file__).parent / "recipes" / f"{target.value.replace('-', '_')}.py"  # read only
    if target.kind == "module":
        return find_module(target.value, [project, project / "src"], main=True)
    return None


def find_module(name: str, roots: list[Path], *, main: bool = False) -> Path | None:
    """The file of a dotted module under one of the roots; with ``main``, a package's ``__main__.py``."""
    for root in roots:
        base = root.joinpath(*name.split("."))
        for file in (base.with_name(base.name + ".py"), base / ("__main__.py" if main else "__init__.py")):
            if file.is_file():
                return file
    return None


class _Reader:
    """Walks from the script through the project's modules and notes what it sees, first sight first."""

    def __init__(self, project: Path, roots: list[Path]) -> None:
        self.project = project
        self.roots = roots
        self.files: dict[Path, str] = {}
        self.imports: dict[str, None] = {}
        self.seen: dict[str, str] = {}

    def read_all(self, start: Path) -> None:
        pending = [start]
        while pending and len(self.files) < _MAX_FILES:
            path = pending.pop(0)
            if path in self.files:
                continue
            self.files[path] = self._shown(path)
            tree = self._parse(path, required=path == start)
            if tree is not None:
                for node in ast.walk(tree):
                    self._note(node, self.files[path])
                    pending += self._follow(node, path)

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self.project)) if path.is_relative_to(self.project) else path.name

    def _parse(self, path: Path, *, required: bool) -> ast.Module | None:
        """The file's tree. A module that does not parse may never be imported: only the script itself must."""
        shown = self.files[path]
        try:
            if path.stat().st_size > _MAX_FILE_BYTES:
                return None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # e.g. of invalid escapes: the script's own affair
                return ast.parse(path.read_bytes(), filename=shown)
        except SyntaxError as error:
            problem = f"{shown}:{error.lineno or 1}: {error.msg}"
        except ValueError:  # null bytes, before Python 3.12
            problem = f"{shown}:1: not Python source"
        except OSError as error:
            problem = f"{shown} cannot be read: {error.strerror}"
        if required:
            python = f"{sys.version_info.major}.{sys.version_info.minor}"
            cause = f"read as Python {python}, which seatrial runs on; a newer grammar needs a newer one"
            raise TargetError(problem, cause=cause, run=f"python3 -m py_compile {shlex.quote(str(path))}")
        return None

    def _follow(self, node: ast.AST, path: Path) -> Iterator[Path]:
        """Files of the project that an import names; other imports are noted by their top-level name."""
        for name, roots in _imported(node, path, self.roots):
            parts = name.split(".")
            local = [find_module(".".join(parts[: end + 1]), roots) for end in range(len(parts))]
            yield from (file for file in local if file is not None)
            namespace_package = any(root.joinpath(parts[0]).is_dir() and local[-1] for root in roots)
            if roots is self.roots and local[0] is None and not namespace_package:
                self._import(parts[0])

    def _import(self, top: str) -> None:
        if top not in sys.stdlib_module_names and top not in ("", "seatrial"):
            self.imports.setdefault(top)

    def _note(self, node: ast.AST, shown: str) -> None:
        for sign, name in _signs(node):
            self.seen.setdefault(sign, f"{shown}:{node.lineno} {name}")  # type: ignore[attr-defined]

    def facts(self) -> ScriptFacts:
        seen = self.seen
        torchrun: str | None = None
        one_process: str | None = None
        if "torchrun" in seen and "spawn" in seen:
            one_process = seen["spawn"]
        elif "local-rank" in seen:
            torchrun = seen["local-rank"]
        elif "one-process" in seen:
            one_process = seen["one-process"]
        else:
            torchrun = seen.get("torchrun")
        direct = [name for name in FRAMEWORKS if name in self.imports]
        indirect = [BUILT_ON[name] for name in self.imports if name in BUILT_ON]
        return ScriptFacts(
            imports=tuple(sorted(self.imports)),
            framework=next(iter(direct + indirect), None),
            torchrun_evidence=torchrun,
            one_process_evidence=one_process,
            compiler_evidence=seen.get("compiler"),
            files=tuple(self.files.values()),
        )


def _imported(node: ast.AST, path: Path, roots: list[Path]) -> Iterator[tuple[str, list[Path]]]:
    """(dotted name, roots to look under) of what an import statement names, submodules included."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, roots) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            package = path.parents[min(node.level, len(path.parents)) - 1]
            roots = [package]
        prefix = node.module or ""
        if prefix:
            yield prefix, roots
        for alias in node.names:
            submodule = f"{prefix}.{alias.name}".lstrip(".")
            if find_module(submodule, roots):
                yield submodule, roots


def _signs(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(sign, name to show) for a node that is evidence of something."""
    if isinstance(node, ast.Constant) and node.value == "LOCAL_RANK":
        yield "local-rank", "LOCAL_RANK"
    elif isinstance(node, ast.Call):
        called = _dotted(node.func)
        last = called.rpartition(".")[2]
        if last in _TORCHRUN_NAMES:
            yield "torchrun", last
        elif last in _SPAWNS and (called in _SPAWNS or called.split(".")[-2] in ("mp", "multiprocessing")):
            yield "spawn", called
        elif last == "DataParallel":
            yield "one-process", last
        for keyword in node.keywords:
            if keyword.arg == "device_map" and not _is(keyword.value, None):
                yield "one-process", "device_map"
            elif keyword.arg == "torch_compile" and _is(keyword.value, True):
                yield "compiler", "torch_compile=True"
    elif isinstance(node, ast.Attribute) and _dotted(node) == "torch.compile":
        yield "compiler", "torch.compile"
    elif isinstance(node, ast.Import | ast.ImportFrom):
        names = [alias.name for alias in node.names]
        modules = names if isinstance(node, ast.Import) else [f"{node.module}.{name}" for name in names]
        for module in modules:
            if module.split(".")[0] == "triton" or module.startswith("torch.utils.cpp_extension"):
                yield "compiler", module
            elif module == "torch.compile":
                yield "compiler", "torch.compile"


def _dotted(node: ast.AST) -> str:
    """``a.b.c`` of a chain of names, "" where it starts from anything else but keeps the last names."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def _is(node: ast.AST, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
