"""ScriptFacts: what a training script shows of itself when read, not run: framework, launcher, compiler."""

from __future__ import annotations

import ast
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seatrial.errors import TargetError
from seatrial.job.model import Target
from seatrial.recipe_names import source_of
from seatrial.system.project_files import read_bytes
from seatrial.system.source import MAX_BYTES, MOST_MARKS, UnreadableSourceError, marks, parse_source

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

#: Reading ends there: it is for hints, and what a plan waits for.
_MAX_FILES = 500
_MOST_MARKS, _MOST_BYTES = 3 * MOST_MARKS, 10 * MAX_BYTES
_MOST_NAMES = 1_000
#: Parts of a dotted name that are looked at.
_MOST_PARTS = 20
#: Kinds of nodes that can be a sign of something; most are not.
_TELLING = (ast.Constant, ast.Call, ast.Attribute, ast.Import, ast.ImportFrom)
#: Names of one ``from x import …`` that are looked for as files.
_MOST_ALIASES = 200


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
    reader = _Reader(project, roots, start.parent if target.kind == "recipe" else project)
    reader.read_all(start)
    return reader.facts()


def _source(target: Target, project: Path) -> Path | None:
    if target.kind == "script":
        return project / target.value
    if target.kind == "recipe":
        return source_of(target.value)  # read only
    if target.kind == "module":
        return find_module(target.value, [project, project / "src"], main=True)
    return None


def find_module(name: str, roots: list[Path], *, main: bool = False) -> Path | None:
    """The file of a dotted module under one of the roots; with ``main``, a package's ``__main__.py``."""
    for root in roots:
        base = root.joinpath(*name.split("."))
        for file in (base.with_name(base.name + ".py"), base / ("__main__.py" if main else "__init__.py")):
            if is_file(file):
                return file
    return None


def is_file(path: Path) -> bool:
    """There is a file of this name, wherever links lead."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, a null byte: no file has it
        return False


def is_folder(path: Path) -> bool:
    """There is a folder of this name, wherever links lead."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


class _Reader:
    """Walks from the script through the project's modules and notes what it sees, first sight first."""

    def __init__(self, project: Path, roots: list[Path], inside: Path) -> None:
        self.project = project
        self.inside = inside  # nothing is read elsewhere, wherever an import points
        self.roots = roots
        self.files: dict[Path, str] = {}
        self.imports: dict[str, None] = {}
        self.seen: dict[str, str] = {}
        self.bytes_left, self.marks_left = _MOST_BYTES, _MOST_MARKS
        self.followed: set[tuple[str, tuple[Path, ...]]] = set()

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
                    if isinstance(node, _TELLING):
                        self._note(node, self.files[path])
                    if isinstance(node, ast.Import | ast.ImportFrom) and len(self.followed) < _MOST_NAMES:
                        pending += self._follow(node, path)

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self.project)) if path.is_relative_to(self.project) else path.name

    def _parse(self, path: Path, *, required: bool) -> ast.Module | None:
        """The file's tree; None of one that is too long, which then shows nothing.

        A module that does not parse may never be imported: only the script itself must.
        """
        try:
            if is_file(path) and path.stat().st_size > min(MAX_BYTES, self.bytes_left):
                return None
            source = read_bytes(path, inside=self.inside, limit_bytes=MAX_BYTES, refusal=TargetError)
            self.bytes_left -= len(source)
            if (count := marks(source)) > min(MOST_MARKS, self.marks_left):
                return None
            self.marks_left -= count
            return parse_source(source, self.files[path])
        except TargetError:
            if required:
                raise
        except UnreadableSourceError as error:
            if required:
                python = f"{sys.version_info.major}.{sys.version_info.minor}"
                cause = f"parsed as Python {python}, which seatrial runs on; newer syntax needs a newer Python"
                cause = (
                    cause if error.grammar else "it is only parsed, for its imports and GPU use; it is never run here"
                )
                run = f"python3 -m py_compile {shlex.quote(str(path))}"
                raise TargetError(str(error), cause=cause, run=run) from None
        return None

    def _follow(self, node: ast.AST, path: Path) -> Iterator[Path]:
        """Files of the project that an import names; other imports are noted by their top-level name."""
        for name, roots in _imported(node, path, self.roots):
            if (name, tuple(roots)) in self.followed or len(self.followed) >= _MOST_NAMES:
                continue
            self.followed.add((name, tuple(roots)))
            parts = name.split(".", _MOST_PARTS)[:_MOST_PARTS]
            local = [find_module(".".join(parts[: end + 1]), roots) for end in range(len(parts))]
            yield from (file for file in local if file is not None)
            namespace_package = local[-1] is not None and any(is_folder(root / parts[0]) for root in roots)
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
        for alias in node.names[:_MOST_ALIASES]:
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
    while isinstance(node, ast.Attribute) and len(parts) < _MOST_PARTS:
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def _is(node: ast.AST, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
