"""Reading a script and the modules of its project that it imports, from the script outwards, as Python would."""

from __future__ import annotations

import ast
import glob
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from seatrial.errors import TargetError
from seatrial.job.reading.argparse_words import ParserWords, parsed_words
from seatrial.job.reading.configurations import CONFIGURATION, composed, targets
from seatrial.job.reading.constants import ANY, member
from seatrial.job.reading.devices import Devices, Reason
from seatrial.job.reading.env_checks import EnvCheck, env_checks
from seatrial.job.reading.file_calls import Read, Write
from seatrial.job.reading.files import Files
from seatrial.job.reading.flow import RunNode, Tests, fails, only_defines
from seatrial.job.reading.import_roots import ImportRoots, imported_modules, is_cython
from seatrial.job.reading.keras_names import keras_signs
from seatrial.job.reading.modules import Missing, is_empty, is_file, is_folder, remedy
from seatrial.job.reading.parsed_modules import (
    STARTS,
    Import,
    Module,
    ParsedModules,
    Unit,
    called_by,
    functions_of,
    named,
    undefined_names,
)
from seatrial.job.reading.signs import (
    LIGHTNING_1,
    MOST_PARTS,
    NAMED,
    REPORT_TO,
    SETS,
    TELLING,
    assigned_variables,
    dotted,
    full_name,
    host_path,
    imported_names,
    keywords,
    last_name,
    literal,
    modules_of,
    read_variable,
    signs,
    started_file,
    used_paths,
)
from seatrial.job.reading.version_checks import version_bounds
from seatrial.system.project_files import matching, read_sources
from seatrial.system.source import MAX_BYTES
from seatrial.system.text import regex

#: Most units read: reading is for hints, and a plan waits for it.
_MOST_UNITS, _MOST_PATHS, _MOST_SHOWN = 5_000, 100, 3
#: Types of nodes of which more than the names is noted.
_NOTED = (
    *(*TELLING, ast.Assign, ast.AugAssign, ast.Dict, ast.Assert, ast.If, ast.List, ast.Tuple),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
)


#: Decorators whose functions a command line or a cluster starts; methods that training calls of what a class makes.
_STARTING, _RUN = {"call_parse", "command", "remote"}, ("forward", "__getitem__", "__iter__", "training_step", "setup")
#: Packages that make options of a data class's fields.
_PARSES_FIELDS = regex(rb"HfArgumentParser|TrlParser|tyro|simple_parsing|pyrallis|draccus|\bTap\b")
#: What asks whether a package is installed, is_apex_available(), find_spec("wandb"), HAS_XLA, or for another machine.
_ASKS = regex(
    r"(?i)(?:.*\.)?(?:(?!is_available$)\w*_(?:available|installed|imported)|find_spec|find_loader|_*(?:has|have)_\w+)$"
    r"|(?:os\.)?(?:environ|getenv)\b|os\.name$|(?:sys\.)?(?:version_info|platform|modules)\b"
)
#: A script's name in a text; signs of a process alone; the most modules that a pattern of names may give.
_SCRIPT, _OF_PROCESSES, _MOST_MODULES = regex(rb"""["']([\w./-]+\.py)["']"""), SETS["of-processes"], 300
_DOTTED = regex(r"[A-Za-z_]\w*(?:\.\w+)+")

#: Endings of a Cython module's source, and of what is generated from it; none of them can be imported.
_OF_CYTHON = {".pyx", ".pxd", ".c", ".cpp", ".h", ".html"}


@dataclass(frozen=True)
class Readings:
    """Hold what reading shows of a script and the project's modules; a place is ``file.py:line``.

    Attributes:
        missing: module of one of the project's packages, or name in a module, as it is imported; it is needed and not
            there.
        asserted: ``mmcv<=1.4.0`` → where the script fails unless the module has such a version.
        paths: literal path that may lie outside of the project, ``../data`` or ``/home/me/data`` → where.
        writes: files and folders that it makes outside of the working directory.
        reads: paths that it reads in any usual run, Hydra's files, and paths of the author's machine.
        unchecked: where it reads files, in any usual run, whose paths options or settings give and none shows.
        unmade: files in folders that it does not make. outputs: options whose paths it makes and does not read.
        hub_model: (name, where) of the first model that it loads by a hub's name in every run, or None.
        remote: ``remote.s3`` → where such a path is opened through fsspec, which needs the store's driver.
        devices: what keeps it from the GPUs, with these arguments.
        variables: variable that the code sets in every run → (value, where). read_variables: one it reads → where.
        files: the files that were read, relative to the project where they are inside.
        import_roots: folders of the project, ``.`` or ``src``, that modules are imported from and that are not the
            script's own.
        misfits: warnings about arguments that the script's parser rejects, and about code that fails if it runs.
        failing: what every run reaches and what mends it: (``train.py:54 uses PATH, which is not defined``, an edit).
        env_checks: values of variables that it rejects.
        least_python: the newest syntax in what runs in any case, ``((3, 10), "net.py:7")``, or None.
        idle: the script, and every module of the project that it imports, only has definitions.
    """

    missing: dict[str, Missing] = field(default_factory=dict)
    asserted: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    writes: tuple[Write, ...] = ()
    reads: tuple[Read, ...] = ()
    unchecked: tuple[str, ...] = ()
    unmade: tuple[Write, ...] = ()
    outputs: frozenset[str] = frozenset()
    hub_model: tuple[str, str] | None = None
    remote: dict[str, str] = field(default_factory=dict)
    devices: tuple[Reason, ...] = ()
    variables: dict[str, tuple[str, str]] = field(default_factory=dict)
    read_variables: dict[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    import_roots: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()
    failing: tuple[tuple[str, str], ...] = ()
    env_checks: tuple[EnvCheck, ...] = ()
    least_python: tuple[tuple[int, int], str] | None = None
    idle: bool = False


@dataclass(frozen=True)
class ProjectReading(Readings):
    """Add all else that is seen, each with its first place.

    Attributes:
        needed, optional: dotted names of modules that are not the project's. likely: optional ones that no condition
            with a known value leaves out.
        signs, certain_signs: kind of sign → evidence; ``certain`` where the code runs in any case.
        relative: the first relative import that runs in any case in no package: (where, ``.net``, the import of its
            module, "" of the script).
    """

    needed: dict[str, str] = field(default_factory=dict)
    optional: dict[str, str] = field(default_factory=dict)
    likely: dict[str, str] = field(default_factory=dict)
    signs: dict[str, str] = field(default_factory=dict)
    certain_signs: dict[str, str] = field(default_factory=dict)
    relative: tuple[str, str, str] | None = None


class ProjectReader:
    """Walks from the script through what it calls and imports: first what runs in any case, then what may run.

    Args:
        calls: names in the script that its importer calls: functions, classes, ``Class.method``.
        arguments: that the script is started with. folder: the working directory; the project by default.
        before: files that run before the script, such as a module's packages. placed: see ImportRoots.
        follows: scripts that it starts are read.
    """

    def __init__(
        self,
        project: Path,
        roots: list[Path],
        inside: Path,
        start: Path,
        *,
        calls: Sequence[str] = (),
        arguments: Sequence[str] = (),
        any_python: bool = False,
        folder: Path | None = None,
        before: Sequence[Path] = (),
        placed: Sequence[Path] = (),
        modules: ParsedModules | None = None,
        follows: bool = True,
    ) -> None:
        self.project, self.start, self.calls, self.follows = project, start, calls, follows
        named = [word.rpartition("=")[2].partition(":")[0] for word in arguments if ".py" in word]
        self.also = [*before, *((folder or project) / word for word in named if word.endswith(".py"))]
        self.roots = ImportRoots(project, start, roots, folder or project, placed)
        self.modules = modules or ParsedModules(project, start, inside, any_python=any_python)
        self.modules.begin(self.roots.provided)
        self.files, self.parsers = Files(self.modules.at, arguments, self.roots.folder), ParserWords(arguments)
        self.devices = Devices(self.modules.at, self.files.constants, start, arguments)
        self.reading = ProjectReading()
        self.least_python: tuple[tuple[int, int], str] | None = None
        self.relative: tuple[str, str, str] | None = None
        self.tops = {start: ""}  # file that is run in no package → where it is imported
        self.checks: list[tuple[Unit, str, ast.stmt]] = []
        self.own: set[str] = set()  # top-level names under which the project has something
        self.found_under: dict[Path, None] = {}
        self.certain: list[Unit] = []
        self.either: list[Unit] = []  # what unclear names may stand for: their imports are needed, nothing is certain
        self.perhaps: list[Unit] = []
        self.visited: dict[Unit, None] = {}
        self.mentioned: set[str] = set()
        self.used = self.files.used
        self.set_there: set[str | None] = set()  # attributes set on modules, None for any
        self.decorators: set[int] = set()
        self.imported_by_text: list[tuple[Unit, ast.Call]] = []
        self.joins: list[tuple[Unit, Tests, str]] = []  # calls behind conditions that need a launcher's ranks
        self.later: list[tuple[Unit, Tests, str, str]] = []  # imports that a run may come to
        self.starts: list[tuple[Unit, ast.expr]] = []  # scripts in lists of words
        self.runs: list[tuple[Unit, ast.Call, RunNode]] = []  # calls that run a script in the same process
        self.hydra: list[tuple[Path, ast.Call]] = []
        self.parsed: dict[tuple[str, ...] | None, str] = {}  # arguments that parse_args reads; None: the command line
        self.composed: dict[str, str] = {}  # file, relative to the working directory → where
        self.words_typed = self.unread = tuple(arguments)
        self.typed = {word.partition("=")[0].lstrip("-") for word in arguments if word.startswith("-")}
        self.words = {word for each in arguments for word in re.findall(r"\w+", each)}

    def _decide_conditions(self) -> None:
        """Note ranks that are needed, and imports that may run, behind conditions."""
        always, likely = self.files.constants.always, self.files.constants.likely
        for unit, tests, evidence in self.joins:
            if likely and unit in always and likely(unit, tests):
                self.reading.certain_signs.setdefault("needs-ranks", evidence)
        may = self.files.may_run((self.start, ""), self.devices.truth)
        for unit, tests, name, where in self.later:
            tested = (dotted(node) for test, _ in tests or () for node in ast.walk(test))
            if name.partition(".")[0] not in self.own and not any(map(_ASKS.match, tested)) and may(unit, tests):
                self.reading.likely.setdefault(name, where)

    def read(self) -> ProjectReading | None:
        """Read the script and its imports; return None if they extend sys.path. Raises TargetError."""
        module = self.modules.at(self.start)
        self.certain.append((self.start, ""))
        if self.calls and module is not None:
            self._visit(self.certain)  # now it is known what the names stand for
            self.certain += [unit for call in self.calls for unit in named(module, "", call, self.modules.at)]
        for path in (each.resolve() for each in self.also if is_file(each)):
            also = self.modules.at(path)
            self.certain += [(path, ""), *(functions_of(also, "get_config") if also else ())]  # of ml_collections
        while self.certain or self._import_by_text() or self._run_here() or self._compose():
            self._visit(self.certain)
            if self.roots.added and len(self.visited) == 1:  # by the script's module level, as is usual
                return None
        while not self.roots.added and (self.either or self.perhaps or self._mention()):
            self._visit(self.either or self.perhaps)
        if self.roots.added:
            return None
        for name in [each for each in self.reading.missing if self.roots.open and each[0] != "."]:
            del self.reading.missing[name]
        for modules in (self.reading.needed, self.reading.optional):
            for name in [each for each in modules if each.partition(".")[0] in self.own]:
                del modules[name]
        ignored = [*self._take_own_words()]
        self.files.read_settings(self.composed)
        for tracker, where in self.files.reports.items():
            self.reading.signs.setdefault(f"{NAMED}{REPORT_TO}{tracker}", where)
        ignored += [f"{each}, a placeholder for yours" for each in self.files.constants.placeholders(self.used)]
        writes = self.files.found((self.start, ""))
        wrong = [*undefined_names(self.modules, self.visited, self.files.constants.always, self.set_there)]
        may_fail = [*(each for each, _, sure in wrong if not sure), self.reading.certain_signs.get("lacks", "")]
        names = [*self.reading.needed, *self.reading.optional]
        imported = {name.partition(".")[0] for name in names}
        usual = {self.project, self.project / "src", self.roots.folder / "src", *self.roots.packaged}
        own = [root for root in self.found_under if root in usual and root != self.start.parent]
        others = (each for each in self.modules.known() if each is not module)
        texts = (each.source.decode("utf-8", "replace").partition("\nif __name__")[0] for each in others)
        starts = module is None or not only_defines(module.flow.body("")) or any(map(STARTS.search, texts))
        devices = self.devices.found(self.visited, imported)
        reads = self.files.reads((self.start, ""), self.devices.truth)  # by what is likely, and so after the devices
        self._decide_conditions()
        started = [*self._read_started()]
        return replace(
            self.reading,
            import_roots=tuple(str(root.relative_to(self.project)) for root in own),
            writes=writes,
            devices=tuple(each for each in devices if each.device or not started),  # no hints: another script may train
            reads=reads,
            outputs=frozenset(self.files.outputs),
            hub_model=self.files.hub_model,
            remote=self.files.remote,
            unchecked=tuple(self.files.unchecked),
            unmade=self.files.unmade((self.start, "")),
            files=(*self.modules.files(), *started),
            misfits=(
                *ignored,
                *self.parsers.misfits(names),
                *(f"{each}: a run that reaches this line fails" for each in filter(None, may_fail[:_MOST_SHOWN])),
            ),
            failing=tuple((each, edit) for each, edit, sure in wrong if sure),
            env_checks=tuple(env_checks(self.checks, self.files.constants)),
            least_python=self.least_python,
            relative=self.relative,
            idle=not self.calls and not starts,
        )

    def _take_own_words(self) -> Iterator[str]:
        """Read options from the list passed to ``parse_args([…])``, if no other call parses arguments."""
        [own, *others] = self.parsed or [None]
        if own is None or others:
            return
        self.files.constants.arguments = self.devices.arguments = [*own]
        self.devices.is_fixed = True
        if typed := next((each for each in self.words_typed if each.startswith("-")), None):
            yield f"{self.parsed[own]} parses a list in the code, not the command line: {typed} has no effect"

    def _import_by_text(self) -> bool:
        """Queue modules whose names consist of constants and arguments, ``f"nets.{name}"``, or are in a typed file."""
        texts = [self.files.constants.text(call.args[0], unit) for unit, call in self.imported_by_text]
        self.imported_by_text.clear()
        known = [each.text for each in texts if each and each.text != ANY]
        typed = [word.rpartition("=")[2] for word in self.words_typed if word.endswith(CONFIGURATION)]
        files = [self.roots.folder / each for each in typed] * (len(known) < len(texts))
        for text in read_sources(files, self.project, MAX_BYTES):
            known += islice(dict.fromkeys(_DOTTED.findall(text)), _MOST_MODULES)
        for wanted in (each.replace(".", "/") for each in known if re.fullmatch(r"[A-Za-z_][\w.*]*", each)):
            parts = re.compile(wanted.replace("*", "([^/]+)"))
            for root in self.roots.absolute if self.words or "*" not in wanted else ():
                scripts = filter(is_file, matching(root, f"{wanted}.py", _MOST_MODULES))
                packages = filter(is_file, matching(root, f"{wanted}/__init__.py", _MOST_MODULES))
                names = {**{path.parent: path for path in packages}, **{path.with_suffix(""): path for path in scripts}}
                for name, path in names.items():
                    made = parts.fullmatch(name.relative_to(root).as_posix())
                    if made and set(made.groups()) <= self.words:
                        self.certain.append((path, ""))
                        self.found_under.setdefault(root)
                        self.own.add(name.relative_to(root).parts[0])
        return bool(self.certain)

    def _run_here(self) -> bool:
        """Queue what the code runs in this process, ``runpy.run_path("a.py")``, ``exec(open("a.py").read())``."""
        runs, self.runs = self.runs, []
        for unit, call, seen in runs:
            roots = self.roots.absolute if last_name(call.func) == "run_module" else []
            inner = (each for each in ast.walk(call) if isinstance(each, ast.Call) and each.args)
            opened = next((each.args[0] for each in inner if last_name(each.func) == "open"), None)
            text = self.files.constants.text(opened if dotted(call.func) == "exec" else call.args[0], unit)
            name = text.text if text else ANY
            places = [root / f"{name.replace('.', '/')}.py" for root in roots] or [self.roots.folder / name]
            for file in (each.resolve() for each in places if ANY not in name and is_file(each)):
                if dotted(call.func) == "exec" or "__main__" in ast.dump(call):
                    self.modules.mains.add(file)
                self.certain.append((file, ""))
                self.files.note_runs(unit, [(file, "")], always=seen.always, tests=seen.tests)
        return bool(self.certain)

    def _read_started(self) -> Iterator[str]:
        """Note what scripts of the project need that this one starts, and yield the files that show it.

        A variable may stand for each script whose name is in the module.
        """
        reached, known = self.files.reached((self.start, "")), {self.start}
        for unit, node in (each for each in self.starts if self.follows and each[0] in reached):
            text, module = self.files.constants.text(node, unit), self.modules.at(unit[0])
            shown = text.text if text else ANY
            named = _SCRIPT.findall(module.source) if module and ANY in shown else [b""]
            names = [shown.replace(ANY, each.decode()) for each in named]
            places = [folder / each for each in names for folder in (self.roots.folder, unit[0].parent)]
            for file in dict.fromkeys(each.resolve() for each in places if each.suffix == ".py" and is_file(each)):
                if file in known or not file.is_relative_to(self.project):
                    continue
                known.add(file)
                roots = [file.parent, *self.roots.absolute]
                with suppress(TargetError):
                    own = read_project(self.project, roots, self.project, file, folder=self.roots.folder, follows=False)
                    for table in ("needed", "optional", "signs"):
                        theirs = {key: where for key, where in getattr(own, table).items() if key not in _OF_PROCESSES}
                        getattr(self.reading, table).update({**theirs, **getattr(self.reading, table)})
                    yield from own.files

    def _compose(self) -> bool:
        """Queue what the run's configuration names, Hydra's or a typed file: ``_target_: src.models.Net``."""
        calls, self.hydra = self.hydra, []
        for file in (self.roots.folder / each for each in self.unread if each.endswith((".yaml", ".yml"))):
            self._name_targets(file, "".join(read_sources([file], self.project, MAX_BYTES)))
        self.unread = ()
        for path, call in calls:
            files, lost = composed(call, path, self.modules.shown(path), self.words_typed, self.project)
            missing = ((os.path.relpath(file, self.roots.folder), where) for file, where in lost)
            self.composed |= {} if "ConfigStore" in self.mentioned else dict(missing)
            for file, text in files:
                self.composed.setdefault(shown := os.path.relpath(file, self.roots.folder), shown)
                self._name_targets(file, text)
        return bool(self.certain)

    def _name_targets(self, file: Path, text: str) -> None:
        """Queue the classes that a configuration names."""
        for number, name, is_vague in targets(text):
            parts = name.split(".", MOST_PARTS)[:MOST_PARTS]
            own = [each for each in (self.roots.located(parts, self.roots.absolute) or []) if each is not None]
            self.certain += [(each[0], "") for each in own]
            if own and (module := self.modules.at(own[-1][0])):
                self.certain += functions_of(module, parts[-1])
                self.own.add(parts[0])
                self.found_under.setdefault(own[-1][1])
            elif not own and not is_vague:
                self.reading.needed.setdefault(name, f"{self.modules.shown(file)}:{number}")

    def _mention(self) -> bool:
        """Queue functions that code which was read speaks of, and modules that only a condition imports."""
        for module in self.modules.known():
            for name, function in module.flow.functions.items():
                owner, _, known = name.rpartition(".")
                # Calling a class runs its __init__, using it its other methods of that kind.
                spoken_of = (owner if known.startswith("__") else known) in self.mentioned or function.decorator_list
                if (module.path, name) not in self.visited and spoken_of:
                    self.perhaps.append((module.path, name))
        return bool(self.perhaps)

    def _visit(self, queue: list[Unit]) -> None:
        """Read the first unit of a queue; what it runs for certain joins the queue."""
        path, name = unit = queue.pop(0)
        certain = queue is self.certain
        module = self.modules.at(path)
        if certain:
            self.modules.refuse_old(path)
            both = self.least_python, self.modules.syntax.get(path)
            self.least_python = max(filter(None, both), default=None)
        known = unit in self.visited or len(self.visited) >= _MOST_UNITS
        self.visited.setdefault(unit)
        if known or module is None:
            return
        for method, function in module.flow.functions.items() if not name else ():
            if method.rpartition(".")[2] in LIGHTNING_1:
                self.reading.signs.setdefault("lightning-1", f"{module.shown}:{function.lineno} {method}")
            if _STARTING & {last_name(getattr(each, "func", each)) for each in function.decorator_list}:
                queue.append((path, method))
        for seen in module.flow.walk(name):
            self._note(module, name, seen, certain)
            if isinstance(seen.node, Import) and not self.roots.exhausted:
                self._follow(module, seen.node, seen, unit, queue if seen.needed else self.perhaps)
            elif isinstance(seen.node, ast.Call) and seen.certain and queue is not self.perhaps:
                queue += (called := [*called_by(module, name, seen.node, self.modules.at)])
                queue += (each for made in called for each in self._run_by_libraries(*made))
                self.either += called_by(module, name, seen.node, self.modules.at, unclear=True)

    def _run_by_libraries(self, path: Path, name: str) -> Iterator[Unit]:
        """Yield what training calls of an object that a class makes."""
        owner, _, method = name.rpartition(".")
        if method == "__init__" and (module := self.modules.at(path)):
            yield from ((path, f"{owner}.{each}") for each in _RUN if f"{owner}.{each}" in module.flow.functions)

    def _note(self, module: Module, unit: str, seen: RunNode, certain: bool) -> None:
        node = seen.node
        self.parsers.note_use(node)
        if isinstance(node, ast.Name):  # nearly half of all nodes
            self.mentioned.add(node.id)
        if not isinstance(node, _NOTED):
            return
        if isinstance(node, ast.Attribute):
            self.mentioned.add(node.attr)
            if isinstance(node.ctx, ast.Store) and (dotted(node.value) != "self" or unit.endswith("__post_init__")):
                self.files.constants.stored.add(node.attr)
            if (isinstance(node.ctx, ast.Store) or node.attr == "__dict__") and module.has_module(node.value):
                self.set_there.add(node.attr if node.attr != "__dict__" else None)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(node.value, ast.Call) and isinstance(target, ast.Name):
                    module.bind(module.types, target.id, dotted(node.value.func))
                owner, dot, _ = (key := dotted(target)).partition(".")
                if dot and module.types.get(owner, "").rpartition(".")[2] in SETS["mappings"]:
                    setting = node.value if seen.always else ast.copy_location(ast.Constant(None), node)
                    self.files.constants.set_keys.append((key, setting, (module.path, unit)))
        for name, value in assigned_variables(node).items():
            if name == "KERAS_BACKEND":
                sign = "keras-backend" if isinstance(node, ast.Assign) else "keras-default"
                self.reading.signs.setdefault(sign, f"{module.shown}:{node.lineno} {value}")
            if certain and seen.certain:
                self.reading.variables.setdefault(name, (value, f"{module.shown}:{node.lineno}"))
        if certain and (read := read_variable(node)):
            self.reading.read_variables.setdefault(read, f"{module.shown}:{getattr(node, 'lineno', 1)}")
        if certain and seen.likely and isinstance(node, ast.Attribute | ast.Subscript):
            self.used.add(member(node) or "")
        if isinstance(node, ast.Call | ast.Assign | ast.AugAssign):
            self.roots.extend(module, node, lambda entry: self.files.constants.text(entry, (module.path, unit)))
        if isinstance(node, ast.Call) or (isinstance(node, ast.ClassDef) and self._parses_fields(module)):
            self.files.constants.note_options((module.path, unit), node)
        self.files.note_demands(node)
        if isinstance(node, ast.If) and certain and seen.certain and fails(node.body):
            for each in module.flow.guarded(node.test):
                names = [] if getattr(each, "level", 0) else modules_of(each)
                self.reading.needed.update(dict.fromkeys(names, f"{module.shown}:{each.lineno}"))
        if isinstance(node, ast.Assert | ast.If) and certain and seen.always:
            self.checks.append(((module.path, unit), f"{module.shown}:{node.lineno}", node))
        if isinstance(node, ast.Assert | ast.If | ast.Call) and certain and seen.always:  # nothing catches its error
            for bound in version_bounds(node, module.flow.assigned(""), module.names):
                self.reading.asserted.setdefault("".join(bound), f"{module.shown}:{node.lineno}")
        if (path := host_path(node)) and len(self.reading.paths) < _MOST_PATHS:
            self.reading.paths.setdefault(path, f"{module.shown}:{getattr(node, 'lineno', 1)}")
        self.decorators.update(map(id, getattr(node, "decorator_list", ())))
        if certain and seen.likely and id(node) not in self.decorators:
            for text, option in used_paths(node, self.typed):
                place = f"{module.shown}:{getattr(node, 'lineno', 1)}"
                self.files.named.setdefault(posixpath.normpath(text), Read(text, place, option, verb="names"))
        if started := started_file(node):
            self.starts.append(((module.path, unit), started))
        if isinstance(node, Import):
            module.names |= imported_names(node)
        if isinstance(node, TELLING):
            for sign, shown in (*signs(node, module.names), *keras_signs(node)):
                evidence = f"{module.shown}:{node.lineno} {shown}"
                self.reading.signs.setdefault(sign, evidence)
                holds = {"notebook": seen.always, "input": seen.likely and not shown.startswith("sys.")}
                if certain and holds.get(sign, seen.certain):
                    self.reading.certain_signs.setdefault(sign, evidence)
                elif certain and sign == "needs-ranks" and seen.tests:
                    self.joins.append(((module.path, unit), seen.tests, evidence))
        if isinstance(node, ast.ImportFrom) and node.level and module.path in self.tops and certain and seen.needed:
            written = "." * node.level + (node.module or "")
            self.relative = self.relative or (f"{module.shown}:{node.lineno}", written, self.tops[module.path])
        if isinstance(node, ast.Call):
            self._note_call(module, unit, node, seen, certain)

    def _parses_fields(self, module: Module) -> bool:
        return any(_PARSES_FIELDS.search(each.source) for each in (module, self.modules.at(self.start)) if each)

    def _note_call(self, module: Module, unit: str, node: ast.Call, seen: RunNode, certain: bool) -> None:
        called = dotted(node.func)
        if called in ("setattr", "vars") and node.args and module.has_module(node.args[0]):
            self.set_there.add(literal(node.args[1]) if len(node.args) > 1 else None)
        if called.endswith("main") and {"config_path", "config_name"} & {*keywords(node)}:
            self.hydra.append((module.path, node))
        if last_name(node.func) in ("import_module", "__import__") and certain and node.args:
            self.imported_by_text.append(((module.path, unit), node))
        if full_name(called, module.names) in SETS["run-here"] and certain and seen.certain and node.args:
            self.runs.append(((module.path, unit), node, seen))
        run = list(named(module, unit, called, self.modules.at)) if called else []
        by_typer = module.types.get(called, "").endswith("Typer")
        if not run and (by_typer or full_name(called, module.names) in SETS["runners"]):
            entries = [*called_by(module, unit, node, self.modules.at)]
            decorated = ((name, each) for name, by in module.flow.functions.items() for each in by.decorator_list)
            commands = [name for name, each in decorated if dotted(getattr(each, "func", each)) == f"{called}.command"]
            entries += [(module.path, name) for name in commands if not commands[1:]]
            self.files.note_runs((module.path, unit), entries, always=seen.always, tests=seen.tests)
            self.files.constants.note_entries(entries)
        functions = [each.flow.functions.get(name) for path, name in run if (each := self.modules.at(path))]
        self.parsers.note(
            *(node, f"{module.shown}:{node.lineno}"),
            certain=certain and seen.always,
            own=lambda name: bool(name) and any(named(module, unit, name, self.modules.at)),
            taken={each.arg for function in functions if function for each in function.args.args},
        )
        self.files.note((module.path, unit), node, run, always=seen.always, tests=seen.tests)
        if node.args or node.keywords or not run:
            self.parsed |= dict.fromkeys(parsed_words(node), f"{module.shown}:{node.lineno}")

    def _follow(self, module: Module, node: Import, seen: RunNode, unit: Unit, queue: list[Unit]) -> None:
        """Queue files of the project that an import in ``unit`` names; note the other modules."""
        absolute = self.roots.absolute
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:  # its names may be modules of a package
            self.roots.located([node.module.partition(".")[0]], absolute)
        for name, roots, bound in imported_modules(node, module.path, absolute):
            parts = name.split(".", MOST_PARTS)[:MOST_PARTS]
            found = self.roots.located(parts, roots)
            if found is None:
                return
            other = self.modules.at(found[-1][0]) if found[-1] is not None else None
            lacking = [each for each in bound.values() if each not in (None, "*") and other and other.lacks(each)]
            if lacking and found[0] is not None and self.roots.is_guess(parts, roots, found[0][1]):
                found, lacking = [None], []  # the installed package datasets, not src/datasets
            if roots is absolute and any(found):
                self.own.add(parts[0])
            file, root = found[0] or (module.path, None)
            if file.stem == name and roots is absolute and root in (self.start.parent, *self.roots.placed):
                self.tops.setdefault(file, f"{module.shown}:{node.lineno} imports {name}")
            for each in found:
                if each is not None:
                    queue.append((each[0], ""))
                    self.files.note_runs(unit, [(each[0], "")], always=seen.always, tests=seen.tests)
                    if roots is absolute:
                        self.found_under.setdefault(each[1])
            is_module = isinstance(node, ast.Import) or name == node.module  # and no name in a module
            cython = found[-1] is None and is_cython(".".join(parts), roots)
            folders = [root.joinpath(*parts[:-1]) for root in roots if len(parts) > 1]
            folders += [root / parts[0] for root in roots if len(parts) > 1 and is_empty(root / parts[0])]
            inside = is_module and (any(found[:-1]) or roots is not absolute or any(map(is_folder, folders)))
            if queue is self.certain and found[-1] is None and (inside or cython):
                self._note_missing(module, node, parts, roots, None)
            if found[-1] is not None:
                for local, inner in bound.items():
                    module.bind(module.bound, f"*{found[-1][0]}" if local == "*" else local, (found[-1][0], inner))
            for lacked in lacking if queue is self.certain else ():
                name_in = [*parts[: None if name != "__init__" else 0], str(lacked)]
                self._note_missing(module, node, name_in, roots, other)
            modules = self.reading.optional if queue is self.perhaps else self.reading.needed
            own = cython or roots is not absolute or any(found) or self.roots.holds(module, parts[0])
            if not own:
                modules.setdefault(name, where := f"{module.shown}:{node.lineno}")
                if queue is self.perhaps:
                    self.later.append((unit, seen.tests, name, where))

    def _note_missing(
        self, module: Module, node: Import, parts: list[str], roots: list[Path], of: Module | None
    ) -> None:
        """Note a module, or a name ``of`` one, that the project lacks; a build may make it."""
        for root in roots:
            inside = root.joinpath(*parts[:-1])
            there = {path.suffix for path in inside.glob(f"{glob.escape(parts[-1])}.*")}
            if ".pyx" in there and "pyximport" not in {**self.reading.needed, **self.reading.optional}:
                there -= _OF_CYTHON
            if is_folder(inside / parts[-1]) or there:
                return
        level = node.level if isinstance(node, ast.ImportFrom) else 0
        name = "." * level + ".".join(parts)
        if name not in self.reading.missing:
            fix = remedy(parts, roots, self.project, of.shown if of else "", relative=level > 0)
            self.reading.missing[name] = Missing(f"{module.shown}:{node.lineno}", fix)


def read_project(project: Path, roots: list[Path], inside: Path, start: Path, **how: Any) -> ProjectReading:
    """Read a script, again if it adds to its path; ``how``: of ProjectReader. Raises TargetError: it cannot be read."""
    reader = ProjectReader(project, roots, inside, start, **how)
    while (reading := reader.read()) is None:
        known = reader.roots
        roots = [each for each in known.absolute if each not in known.packaged]
        reader = ProjectReader(project, roots, inside, start, placed=known.placed, modules=reader.modules, **how)
    return reading
