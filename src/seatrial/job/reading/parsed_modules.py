"""The project's files as they are parsed: each once, and no more of them than a plan may wait for."""

from __future__ import annotations

import ast
import builtins
import re
import shlex
import symtable
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TypeAlias, TypeVar

from seatrial.errors import TargetError
from seatrial.job.reading.assignments import early_reads
from seatrial.job.reading.flow import COMPREHENSIONS, Flow, FunctionNode, Tests, parameters
from seatrial.job.reading.modules import find_module, folders_of, is_file
from seatrial.job.reading.signs import SETS, dotted, full_name, imported_names, last_name
from seatrial.system.project_files import read_bytes, read_sources
from seatrial.system.source import MAX_BYTES, MOST_MARKS, UnreadableSourceError, marks, parse_source
from seatrial.system.text import as_typed, regex

#: Most files read: reading is for hints, and a plan waits for it.
_MAX_FILES = 500
_MOST_MARKS, _MOST_BYTES = 3 * MOST_MARKS, 10 * MAX_BYTES

#: A ``__main__`` check, a loop or a call at module level; calls that only prepare are excluded.
STARTS = regex(r"""(?m)^(?:if __name__ *==|(?:for|while|with) |(?!print|warnings|sys|os|logging|torch)[\w.]+\()""")
#: ``from net import make``, ``import net``; most files that an error lists.
_IMPORTED, _MOST_USERS = regex(r"(?m)^\s*(?:from|import) +([\w.]+)(?: +import +(.*))?"), 3

Import: TypeAlias = ast.Import | ast.ImportFrom

#: A module's top (""), or one of its functions.
Unit: TypeAlias = tuple[Path, str]
#: A class, of which a variable is made; or (file, name there), where None stands for the file's module.
Meaning: TypeAlias = str | tuple[Path, str | None]
_T = TypeVar("_T", str, tuple[Path, str | None])
_MOST_MEANINGS = 8

#: Makes a script of a notebook, without its % and ! lines.
CONVERT = "pip install jupytext && jupytext --to py"
#: Most bytes searched for undefined names, the script first, and for names that nothing has assigned yet: 50 ms of CPU.
_MOST_CHARACTERS, _MOST_EARLY = 200_000, 60_000
#: Builtins, including those of other interpreters and releases; Python 2's; scopes that Flow reads with the enclosing
#: code.
_ELSEWHERE = {*dir(builtins), "get_ipython", "display", "snakemake", "profile", "_", "reveal_type", "WindowsError"}
_ELSEWHERE |= {"ExceptionGroup", "BaseExceptionGroup", "PythonFinalizationError", "ngettext", "ic"}
_OF_PYTHON_2 = {"basestring", "cmp", "file", "long", "raw_input", "reduce", "reload", "unichr", "unicode", "xrange"}
_INNER = {"lambda", "listcomp", "setcomp", "dictcomp", "genexpr"}
#: Source text that may define names at run time.
_DYNAMIC = regex(rb"\b(?:globals|exec|execfile|builtins|__builtins?__)\b|\b(?:locals|vars|dir)\(\)|sys\.modules")
_CATCHING = {"NameError", "UnboundLocalError", "Exception", "BaseException"}
_UNDEFINED, _EARLY = "{} not defined", "nothing assigns before"


@dataclass
class Module:
    """A module of the project.

    Attributes:
        bound: name in it → (file, name there), for what it imports from the project; the name is None for a module.
        types: variable → the class that it was made of. names: see imported_names. unclear: name bound twice, which
            those tables lack → its entries in them.
    """

    path: Path
    shown: str
    flow: Flow
    source: bytes
    bound: dict[str, tuple[Path, str | None]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    unclear: dict[str, list[Meaning]] = field(default_factory=dict)

    @cached_property
    def rebound(self) -> set[str]:
        """Return the names, ``pkg.Net`` too, that the code binds to anything but one import, in whichever scope."""
        found, imports = set[str](), dict[str, str]()
        for node in (each for statement in self.flow.body("") for each in ast.walk(statement)):
            if isinstance(node, Import):
                found |= {name for name, full in imported_names(node).items() if imports.setdefault(name, full) != full}
            elif isinstance(node, FunctionNode | ast.ClassDef | ast.arg):
                found.add(node.arg if isinstance(node, ast.arg) else node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(dotted(node))
        return found

    def bind(self, table: dict[str, _T], name: str, value: _T) -> None:
        """Note what a name stands for in ``bound`` or ``types``, or in ``unclear`` once it stands for two things."""
        if table.setdefault(name, value) != value or name in self.unclear:
            known: list[Meaning] = [*self.unclear.get(name, ()), table.pop(name), value]
            self.unclear[name] = [*dict.fromkeys(known)][:_MOST_MEANINGS]

    def meanings(self, name: str) -> list[Meaning]:
        """Return what a name stands for, or may."""
        return [*self.unclear.get(name, ()), *filter(None, (self.bound.get(name), self.types.get(name)))]

    def has_module(self, node: ast.expr) -> bool:
        """Return whether an expression is a module of the project, or ``builtins``."""
        return self.bound.get(last_name(node), ("", ""))[1] is None or self.names.get(last_name(node)) == "builtins"

    def lacks(self, name: str) -> bool:
        """Return whether a module cannot have a name: its text lacks it, binds none dynamically, no build makes it."""
        if (proto := re.fullmatch(r"(.+)_pb2(?:_grpc)?", name)) and self.path.name == "__init__.py":
            return is_file(self.path.with_name(f"{proto[1]}.proto"))
        if name.startswith("_") or name.endswith("version") or not name.isascii():
            return False
        by_text = rb"import[\s(\\]*\*|__getattr__|globals|locals|vars|exec|modules|attach"
        found = re.search(rb"\b%s\b|%s" % (name.encode(), by_text), self.source)
        return found is None and not any(self.path.parent.glob(f"{name}.*"))


_At: TypeAlias = Callable[[Path], Module | None]


class ParsedModules:
    """Parses files on demand.

    Args:
        start: the script. It must parse; a module that does not may never be imported.
        inside: nothing is read elsewhere, wherever an import points.
        any_python: it may be written for the Python of a ready image.

    Attributes:
        mains: files run as scripts. broken: files that did not parse. syntax: file → (its newest, ``net.py:7``).
    """

    def __init__(self, project: Path, start: Path, inside: Path, *, any_python: bool) -> None:
        self.project, self.start, self.inside = project, start, inside
        self.any_python, self.mains = any_python, {start}
        self.broken: dict[Path, UnreadableSourceError] = {}
        self.syntax: dict[Path, tuple[tuple[int, int], str]] = {}
        self._parsed: dict[Path, tuple[ast.Module, bytes] | None] = {}
        self._bytes_left, self._marks_left = _MOST_BYTES, _MOST_MARKS

    def begin(self, provided: Callable[[Path, Import], bool]) -> None:
        """Discard the notes on modules. Args: provided: whether an import in a file needs no installed package."""
        self._provided = provided
        self._modules: dict[Path, Module | None] = {}

    def at(self, path: Path) -> Module | None:
        """Return the file's module; None if too long, one too many or not parsed. Raises TargetError for the script."""
        if path not in self._modules:
            if len(self._modules) >= _MAX_FILES:
                return None
            if path not in self._parsed:
                self._parsed[path] = self._parse(path, required=path == self.start)
            self._modules[path] = None
            if (parsed := self._parsed[path]) is not None:
                flow = Flow(parsed[0], main=path in self.mains, provided=lambda node: self._provided(path, node))
                self._modules[path] = Module(path, self.shown(path), flow, parsed[1])
        return self._modules[path]

    def known(self) -> list[Module]:
        """Return the modules parsed so far."""
        return [module for module in self._modules.values() if module is not None]

    def files(self) -> tuple[str, ...]:
        """Return the names of the files that were looked at, the unreadable ones too."""
        return tuple(self.shown(path) for path in self._modules)

    def shown(self, path: Path) -> str:
        """Return the file's path in the project; only its name if it lies elsewhere."""
        return str(path.relative_to(self.project)) if path.is_relative_to(self.project) else path.name

    def refuse_old(self, path: Path) -> None:
        """Refuse a file that every run imports and that is written for Python before 3.7. Raises TargetError."""
        error = self.broken.get(path)
        if error is not None and (error.python_2 or _ASYNC.search(error.text)) and not self.any_python:
            raise unreadable(error, path)

    def refuse_broken(self, always: Collection[Unit]) -> None:
        """Raise TargetError for a file that is not Python and that every run imports. ``always``: units that run."""
        for path, error in self.broken.items():
            if error.grammar and (path, "") in always and not self.any_python:
                raise unreadable(error, path)

    def _parse(self, path: Path, *, required: bool) -> tuple[ast.Module, bytes] | None:
        """Return (a file's tree, its source); None for a long file, or an unreadable one that is not required."""
        try:
            if is_file(path) and path.stat().st_size > min(MAX_BYTES, self._bytes_left):
                return None
            source = read_bytes(path, inside=self.inside, limit_bytes=MAX_BYTES, refusal=TargetError)
            self._bytes_left -= len(source)
            if (count := marks(source)) > min(MOST_MARKS, self._marks_left):
                return None
            self._marks_left -= count
            tree = parse_source(source, self.shown(path))
            if _HINTS.search(source):
                from seatrial.system.newer_syntax import in_old_syntax

                if (least := in_old_syntax(source.decode("utf-8-sig", "replace"))[1]) is not None:
                    self.syntax[path] = (least[0], f"{self.shown(path)}:{least[1]}")
            return tree, source
        except TargetError:
            if required:
                raise
        except UnreadableSourceError as error:
            if required and not (self.any_python and error.grammar):
                raise unreadable(error, path) from None
            self.broken[path] = error
        return None


#: Words of newer syntax; modules without them need no search.
_HINTS = regex(
    rb"^[ \t]*(?:match[ \t(]|except[ \t]*\*|type[ \t]+\w|(?:async[ \t]+)?def[ \t]+\w+[ \t]*\[|class[ \t]+\w+[ \t]*\["
    rb"|except[ \t]+[^(:\n]+,)|\b(?:[tT][rR]?|[rR][tT])[\"']"
    rb"|\b[rR]?[fF][rR]?(?P<quote>[\"'])[^\"'\n]{0,400}\{(?:[^}\n]{0,400}?(?:(?P=quote)|\\)|[^}\"'\n]{0,400}$)",
    re.MULTILINE,
)


#: ``cuda(async=True)``, ``from async import x``, ``async = 3``; not ``async def``, ``async with``, ``async for``.
_ASYNC = regex(r"([(,]\s*)async\s*=|(?<![\w.\"'])async\s*(?:[=).,:]|import\b)|\b(?:from|import)\s+async\b|\.async\b")


def unreadable(error: UnreadableSourceError, path: Path) -> TargetError:
    """Return the error to raise for the file at ``path``."""
    if error.python_2:
        return TargetError(
            f"{error.python_2}: this is Python 2, which no image that seatrial builds can run",
            cause="the target is this file or imports it at once",
            run=f"2to3 -w {as_typed(path)}   # or an image that has Python 2: seatrial run --image IMAGE …",
        )
    if error.magic:
        return notebook_error(f"{error.magic} works only in a notebook", path, "/^[[:space:]]*[%!]/d")
    typed = as_typed(path)
    cause, run = "it is not valid Python 3.8 to 3.14", f"${{EDITOR:-vi}} +{error.line} {typed}"
    if word := _ASYNC.search(error.text):
        cause = "async is a keyword since Python 3.7; PyTorch 0.4 renamed the argument to non_blocking, and older"
        cause += " releases have no code for GPUs released since 2018"
        edit = r"-name '*.py' -exec sed -i 's/\([(,] *\)async *=/\1non_blocking=/g' {} +"
        run = f"find {as_typed(path.parent)} {edit}" if word[1] else f"{run}   # rename async"
    elif "tabs" in str(error):
        cause = "Python 2 read a tab as up to 8 columns; Python 3 rejects indentation that mixes tabs and spaces"
        run = f"expand -i {typed} > {typed}.new && mv {typed}.new {typed}"
    elif not error.grammar:
        cause = "it is only parsed, for its imports and GPU use; it is never run here"
    return TargetError(str(error), cause=cause, run=run)


def notebook_error(message: str, file: Path, delete: str) -> TargetError:
    """Return the error for a script that was a notebook. ``delete``: what sed removes such lines by."""
    notebook, source = file.with_suffix(".ipynb"), read_bytes(file, inside=file.parent)
    run, note = f"sed -i '{delete}' {as_typed(file)}", "and list in requirements.txt what they install"
    if is_file(notebook) and b"jupytext" not in source:
        run = f"{CONVERT} {as_typed(notebook)}"
    # sed would delete the code of a %%time cell, which is in the call's string, and leave the lines of a %%bash cell
    elif re.search(rb"run_cell_magic|(?m:^%%(?!time|capture|prun|memit))", source):
        run, note = f"${{EDITOR:-vi}} {as_typed(file)}", "write out the code of %% cells, delete other % and ! lines"
    return TargetError(message, cause="a script made of a notebook keeps its % and ! lines", run=f"{run}    # {note}")


def undefined_names(
    modules: ParsedModules,
    visited: Collection[Unit],
    always: Collection[Unit],
    stored: Collection[str | None],
    may: Callable[[Unit, Tests], bool],
) -> Iterator[tuple[str, str, bool]]:
    """Yield (``train.py:54 uses MODEL_PATH, …``, the edit that mends it, whether every run reaches it).

    ``visited``, ``always``: units that may run, that always do. ``stored``: attributes set on modules, None for any.
    ``may``: see Files.may_run.
    """
    left, early_left = (0, 0) if modules.any_python or None in stored else (_MOST_CHARACTERS, _MOST_EARLY)
    for module in modules.known():
        stars = [modules.at(path) for path, inner in module.bound.values() if inner == "*"]
        elsewhere = len(re.findall(rb"import\s+\*", module.source)) > len(stars) or None in stars
        ours = module.path == modules.start or module.path not in modules.mains
        if (size := len(module.source)) > left or elsewhere or not ours or _DYNAMIC.search(module.source):
            continue
        left, early_left, apart = left - size, early_left - size, None
        loose, bound = _loose_names(module.source)
        known, found = bound | _ELSEWHERE | {*stored}, dict[tuple[str, str], tuple[bool, int]]()
        for unit in (each for each in visited if each[0] == module.path):
            function = module.flow.functions.get(unit[1])
            names = loose.get(function.lineno if function else 0, set()) - known
            outer = {*_ELSEWHERE, *filter(None, stored)}
            if function is not None:
                outer = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
            body = module.flow.body(unit[1]) if early_left > 0 else ()
            early = {*map(id, early_reads(body, module.flow.globals | outer))}
            if not (names or early):
                continue
            guarded, tried = apart = apart or _guarded(module)
            for node, certain, _, runs, tests in module.flow.walk(unit[1]):
                why = _EARLY if id(node) in early else _UNDEFINED
                if isinstance(node, ast.Name) and (why is _EARLY or node.id in names) and id(node) not in guarded:
                    sure = (runs or (certain and id(node) in tried)) and unit in always
                    if may(unit, ()) <= may(unit, tests):  # else another branch runs
                        found[node.id, why] = max((sure, -node.lineno), found.get((node.id, why), (sure, -node.lineno)))
        together = dict[tuple[bool, int, str], list[str]]()
        for (name, why), (sure, line) in found.items():
            if (sure or name not in _OF_PYTHON_2) and all(star and star.lacks(name) for star in stars):
                together.setdefault((sure, line, why), []).append(name)
        for (sure, line, why), (first, *others) in together.items():
            listed = f"{', '.join((first, *others[:-1]))} and {others[-1]}" if others else first
            are, them = ("are", "them") if others else ("is", "it")
            edit = f"define {listed} in {module.shown}, or import {them}"
            edit = f"2to3 -w {as_typed(module.path)}" if {first, *others} <= _OF_PYTHON_2 else edit
            yield f"{module.shown}:{-line} uses {listed}, which {why.format(are)}", edit, sure


def _guarded(module: Module) -> tuple[set[int], set[int]]:
    """Return the ids of nodes that may use an undefined name, and of those that run first in a ``try`` and may not."""
    parts: list[ast.AST] = []
    first: list[ast.AST] = []
    for node in (inner for each in module.flow.body("") for inner in ast.walk(each)):
        if isinstance(node, ast.AnnAssign):
            parts.append(node.annotation)
        elif isinstance(node, ast.Try | ast.With):
            caught: list[ast.expr | None] = [each.context_expr for each in getattr(node, "items", ())]
            caught += [each.type for each in getattr(node, "handlers", ())]
            kinds = [inner for each in caught for inner in ast.walk(each or ast.Name("Exception"))]
            catches = not _CATCHING.isdisjoint(map(last_name, kinds))
            parts += node.body if catches else ()
            errors = [inner for each in caught for inner in getattr(each, "elts", [each])]
            sure = not catches and isinstance(node, ast.Try) and isinstance(node.body[0], ast.Assign | ast.Expr)
            sure = sure and all(last_name(each).endswith("Error") for each in errors)
            if sure and not any(isinstance(each, COMPREHENSIONS) for each in ast.walk(node.body[0])):
                first.append(node.body[0])
    guarded, tried = ({id(inner) for each in some for inner in ast.walk(each)} for some in (parts, first))
    return guarded, tried


def _loose_names(source: bytes) -> tuple[dict[int, set[str]], set[str]]:
    """Return (line of a function, 0 for module level → its names that the module must define; the module's names)."""
    loose, bound, hidden = dict[int, set[str]](), set[str](), list[tuple[int, str]]()
    pending: list[tuple[symtable.SymbolTable, int]] = []
    with warnings.catch_warnings(), suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        warnings.simplefilter("ignore")
        pending.append((symtable.symtable(source.decode("utf-8-sig", "replace"), "module", "exec"), 0))
    while pending:
        table, line = pending.pop()
        own = isinstance(table, symtable.Function) and table.get_name() not in _INNER
        line = table.get_lineno() if own else line
        for symbol in table.get_symbols() if str(table.get_type()) in ("module", "function", "class") else ():
            name = symbol.get_name()
            is_set = symbol.is_assigned() or symbol.is_imported()
            if is_set and (table.get_type() == "module" or symbol.is_declared_global()):
                bound.add(name)
            elif symbol.is_global() and not name.startswith("__"):
                loose.setdefault(line, set()).add(name)
            elif not own:  # of a class, a comprehension or a lambda
                hidden.append((line, name))
        pending += [(each, line) for each in table.get_children()]
    for line, name in hidden:
        loose.get(line, set()).discard(name)
    return loose, bound


def idle_error(target: str, project: Path, arguments: Sequence[str] = ()) -> TargetError:
    """Return the error for a file that only has definitions; the fix runs the project's scripts that import it."""
    parts = [each for each in re.split(r"[/.]", target.removeprefix("-m ").removesuffix(".py")) if each != "__init__"]
    names = {".".join(parts[at:]) for at in range(len(parts))}
    files = (path for folder in folders_of(project) for path in sorted(folder.glob("*.py")))
    found = list[tuple[bool, bool, str]]()
    pairs = ((path, text) for path in islice(files, _MAX_FILES) for text in read_sources([path], project, MAX_BYTES))
    for file, text in pairs:
        lines = [match.groups() for match in _IMPORTED.finditer(text)]
        imported = {f"{module}.{name}".strip(".") for module, some in lines for name in re.split(r"\W+", some or "")}
        if not names.isdisjoint({*imported, *(module.strip(".") for module, _ in lines)}) and STARTS.search(text):
            shown = str(file.relative_to(project))
            found.append(("__main__" not in text, "train" not in shown, shown))
    first = [[each[2], *["--"] * bool(arguments), *arguments] for each in sorted(found) if each[0] == min(found)[0]]
    users = [f"seatrial run {shlex.join(each)}" for each in first[:_MOST_USERS]]
    message = f"{target} only defines functions or classes; running it does nothing"
    cause = None if users else "no script of the project imports it"
    return TargetError(message, cause=cause, run="\n".join(users) or None)


def called_by(module: Module, unit: str, call: ast.Call, at: _At, *, unclear: bool = False) -> Iterator[Unit]:
    """Yield the project's functions that a call in ``unit`` runs: its own, and those that it is given by name."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not given and full_name(dotted(call.func), module.names) in SETS["runners"]:
        given = [ast.Name("main")]  # of the script, by tf.app.run()
    for each in [call.func, *given]:
        called = dotted(each)
        if called and (each is call.func or isinstance(each, ast.Name)):
            yield from named(module, unit, called, at, unclear=unclear)


def named(module: Module, unit: str, called: str, at: _At, *, unclear: bool = False) -> Iterator[Unit]:
    """Yield the project's functions that ``net.make``, ``Net``, ``self.load`` or ``make`` stands for in ``unit``;
    with ``unclear`` those that it may stand for, if it has several meanings."""
    first, _, rest = called.partition(".")
    flow, is_self = module.flow, first == "self" and "." in unit
    if first == "super" and rest and (above := flow.bases.get(unit.partition(".")[0])):
        called, first = f"{above[0]}.{rest}", above[0]
    known = is_self or first in flow.functions or first in flow.bases or module.meanings(first)
    if not (known or any(each[0] == "*" for each in module.bound)):
        return  # as for most calls
    kinds = [each for each in module.meanings(first) if isinstance(each, str) and rest]
    kinds = [unit.partition(".")[0]] if is_self else kinds
    names = [f"{each}.{rest}".rstrip(".") for each in kinds] + [called] * (not kinds or unclear)
    firsts = {each.partition(".")[0] for each in (called, *names)}
    defined = {each for each in firsts if each in flow.functions or each in flow.bases}
    twice = [each for each in firsts if each in module.unclear or (each in module.names and each in defined)]
    several = flow.is_replaced(kinds[0], rest) if is_self else bool(twice)
    is_local = not kinds and unit and first in (*parameters(flow.functions[unit]), *flow.assigned(unit))
    if several is not unclear or is_local:
        return
    for name in names:
        first, _, rest = name.partition(".")
        imported = [each for each in module.meanings(first) if isinstance(each, tuple)]
        for path, inner in imported:
            other, inside = source_of(at(path), ".".join(part for part in (inner, rest) if part), at)
            yield from functions_of(other, inside) if other and inside else ()
        own = [*functions_of(module, name)] if unclear or not imported else []
        starred = [] if own or imported else [at(path) for path, inner in module.bound.values() if inner == "*"]
        found = (source_of(other, name, at) for other in starred)
        yield from own or (each for other, inner in found if other for each in functions_of(other, inner))


def source_of(module: Module | None, name: str, at: _At) -> tuple[Module | None, str]:
    """Return the module that defines a name, and its name there; packages pass it on: ``from .net import Net``."""
    for _ in range(_MOST_MEANINGS):
        first, _, rest = name.partition(".")
        if module is None or module.path.name != "__init__.py":
            break
        if {first, name} & {*module.flow.functions, *module.flow.bases}:
            break
        nodes = (node for node in module.flow.body("") if isinstance(node, ast.ImportFrom) and node.level == 1)
        passed = [(node.module, each) for node in nodes if node.module for each in node.names]
        pairs = [(path, each.name) for path, each in passed if (each.asname or each.name) == first]
        pairs = pairs or [(path, first) for path, each in passed if each.name == "*"]
        sources = [(find_module(name, [module.path.parent]), inner) for name, inner in pairs]
        found = [(other, inner) for file, inner in sources if file and (other := at(file))]
        if found[1:]:
            found = [each for each in found if each[1] in {*each[0].flow.functions, *each[0].flow.bases}]
        if len(found) != 1:
            break
        module, name = found[0][0], ".".join(filter(None, (found[0][1], rest)))
    return module, name


def functions_of(module: Module, name: str) -> Iterator[Unit]:
    """Yield a function or method of the module, and what making an object of a class runs."""
    flow = module.flow
    if name in flow.functions:
        yield module.path, name
    elif name in flow.bases:  # a class: calling it runs its __init__
        if f"{name}.__init__" in flow.functions:
            yield module.path, f"{name}.__init__"
    elif "." in name:  # a method of a class above
        owner, _, method = name.partition(".")
        for base in flow.bases.get(owner, ()):
            if f"{base}.{method}" in flow.functions:
                yield module.path, f"{base}.{method}"
                return
