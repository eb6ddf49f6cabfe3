"""Reading a script and the modules of its project that it imports, from the script outwards, as Python would."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from seatrial.errors import TargetError
from seatrial.job.reading import parsed_modules, signs
from seatrial.job.reading.argparse_words import ParserWords, parsed_words
from seatrial.job.reading.configurations import CONFIGURATION, composed, flattened, instances, targets
from seatrial.job.reading.constants import ANY, ParsedCall, Text, member
from seatrial.job.reading.devices import Devices
from seatrial.job.reading.evidence import NOTED, PIPED, NodeReader, ProjectReading
from seatrial.job.reading.file_calls import demanded, named_values
from seatrial.job.reading.files import Files
from seatrial.job.reading.flow import FunctionNode, RunNode, Tests, only_defines
from seatrial.job.reading.import_roots import MOST_MODULES, ImportRoots
from seatrial.job.reading.modules import is_file
from seatrial.job.reading.parsed_modules import Import, Module, ParsedModules, Unit, called_by, functions_of, named
from seatrial.job.reading.signs import SETS, dotted, full_name, is_constant, keywords, last_name, literal
from seatrial.system.project_files import read_sources
from seatrial.system.source import MAX_BYTES
from seatrial.system.text import regex

#: Most units read: reading is for hints, and a plan waits for it.
_MOST_UNITS, _MOST_SHOWN = 5_000, 3
_MOST_MADE = 100  # objects of Hydra, and calls that make them
#: Decorators whose functions a command line or a cluster starts; methods that training calls of what a class makes.
_STARTING, _RUN = {"call_parse", "command", "remote"}, ("forward", "__getitem__", "__iter__", "training_step", "setup")
#: Packages that make options of a data class's fields.
_PARSES_FIELDS = regex(rb"HfArgumentParser|TrlParser|tyro|simple_parsing|pyrallis|draccus|\bTap\b")
#: A script's name in a text; signs of a process alone; a dotted name; a value in a configuration.
_SCRIPT, _OF_PROCESSES = regex(rb"""["']([\w./-]+\.py)["']"""), SETS["of-processes"]
_LOCAL = regex(r"(?:.*[/@])?((?:localhost|127\.0\.0\.1)(?::\d+)?)(?:/.*)?")  #: address of a service on this machine
#: Code that starts a service itself, or has one in its own process.
_SERVES = regex(
    r"mongod\b|(redis|mlflow|sql|search)\W+(server|ui)\b|testcontainers|fakeredis|mongomock|pg_ctl|mysqld\b"
)
_DOTTED, _VALUE = regex(r"[A-Za-z_]\w*(?:\.\w+)+"), regex(r"""[:=,\[-]\s*["']?(\w+)""")


class ProjectReader:
    """Walks from the script through what it calls and imports: first what runs in any case, then what may run.

    Args:
        calls: names in the script that its importer calls: functions, classes, ``Class.method``.
        arguments: that the script is started with. folder: the working directory; the project by default.
        before: files that run before the script, such as a module's packages. placed, foreign: see ImportRoots.
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
        foreign: Set[str] = frozenset(),
        modules: ParsedModules | None = None,
        follows: bool = True,
    ) -> None:
        self.project, self.start, self.calls, self.follows = project, start, calls, follows
        named = [word.rpartition("=")[2].partition(":")[0] for word in arguments if ".py" in word]
        self.also = [*before, *((folder or project) / word for word in named if word.endswith(".py"))]
        self.roots = ImportRoots(project, start, roots, folder or project, placed, foreign)
        self.modules = modules or ParsedModules(project, start, inside, any_python=any_python)
        self.modules.begin(self.roots.provided)
        self.files = Files((start, ""), self.modules.at, arguments, self.roots.folder)
        self.parsers = ParserWords(arguments)
        self.devices = Devices(self.modules.at, self.files.constants, start, arguments)
        self.nodes = NodeReader(start, arguments, self.files.named)
        self.reading = self.nodes.reading
        self.least_python: tuple[tuple[int, int], str] | None = None
        self.certain: list[Unit] = []
        self.either: list[Unit] = []  # what unclear names may stand for: their imports are needed, nothing is certain
        self.perhaps: list[Unit] = []
        self.visited: dict[Unit, None] = {}
        self.mentioned: set[str] = set()
        self.set_there: set[str | None] = set()  # attributes set on modules, None for any
        self.imported_by_text: list[tuple[Unit, ast.expr, ast.expr | None]] = []  # module, use
        self.runs: list[tuple[Unit, ast.Call, RunNode]] = []  # calls that run a script in the same process
        self.hydra: list[tuple[Path, ast.Call]] = []
        self.made: list[tuple[Unit, str, str, ast.Call]] = []  # what Hydra may make: class, key above, settings
        self.makers: list[tuple[Unit, ast.Call, Tests]] = []  # calls of Hydra's instantiate
        self.tracking: list[tuple[Unit, ast.Call, str, Tests]] = []
        self.clients: list[ParsedCall] = []  # calls that connect to a service
        self.parsed: dict[tuple[str, ...] | None, str] = {}  # arguments that parse_args reads; None: the command line
        self.composed: dict[str, str] = {}  # file, relative to the working directory → where
        self.words_typed = self.unread = tuple(arguments)
        self.words = {word for each in arguments for word in re.findall(r"\w+", each)}

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
        while self.certain or self._import_by_text() or self._run_here() or self._compose() or self._instantiate():
            self._visit(self.certain)
            if self.roots.added and len(self.visited) == 1:  # by the script's module level, as is usual
                return None
        while not self.roots.added and (self.either or self.perhaps or self._mention()):
            self._visit(self.either or self.perhaps)
        if self.roots.added:
            return None
        for modules in (self.reading.needed, self.reading.optional):
            for name in [each for each in modules if each.partition(".")[0] in self.roots.own]:
                del modules[name]
        return self._evaluated(module)

    def _evaluated(self, module: Module | None) -> ProjectReading:
        """Return what the visited code reads, writes and needs with the run's arguments; ``module``: the script."""
        ignored = [*self._take_own_words()]
        self.devices.arguments = self.files.constants.arguments = [*self.files.with_files()]
        for sign, where in self.files.read_settings(self.composed).items():
            self.reading.signs.setdefault(sign, where)
        used = {name for name, each in self.files.uses.items() if any(likely for likely, *_ in each)}
        ignored += [f"{each}, a placeholder for yours" for each in self.files.constants.placeholders(used)]
        writes = self.files.found()
        names = [*self.reading.needed, *self.reading.optional]
        imported = {name.partition(".")[0] for name in names}
        others = (each for each in self.modules.known() if each is not module)
        code = "".join(each.source.decode("utf-8", "replace") for each in self.modules.known())
        texts = (each.source.decode("utf-8", "replace").partition("\nif __name__")[0] for each in others)
        starts = (
            module is None or not only_defines(module.flow.body("")) or any(map(parsed_modules.STARTS.search, texts))
        )
        devices, always = self.devices.found(self.visited, imported), self.files.constants.always
        self.files.constants.may_assign = self.devices.may_assign
        self.files.follow()
        reads = self.files.reads(self.devices.truth)  # by what is likely, and so after the devices
        tried = self.files.order.may_run(tried=True)
        self.modules.refuse_broken(always)
        wrong = [*parsed_modules.undefined_names(self.modules, self._may_visit(), always, self.set_there, tried)]
        may_fail = [*(each for each, _, sure in wrong if not sure), self.reading.certain_signs.get("lacks", "")]
        may = self.files.order.may_run()
        self.nodes.decide(self.files.constants, may, tried, self.roots.own)
        folders = {above for each in self.modules.known() for above in each.path.parents if "dotenv" in code}
        code += "".join(read_sources([each / ".env" for each in folders], self.project, MAX_BYTES))
        if piped := self.reading.likely.get(PIPED):
            ignored.append(f"{piped} runs a downloaded script in a shell: read the script first")
        replaced = "\\" if re.search(r"""replace\(r?["']\\|PureWindowsPath""", code) else "\0"
        started = [*self._read_started()]
        return replace(
            self.reading,
            import_roots=tuple(self.roots.names()),
            missing={name: each for name, each in self.roots.missing.items() if name[0] == "." or not self.roots.open},
            writes=writes,
            devices=tuple(each for each in devices if each.device or not started),  # no hints: another script may train
            reads=reads,
            outputs=frozenset(self.files.outputs),
            hub_model=self.files.hub_model,
            remote={**self.files.remote, **dict(self._tracked()), **dict(self._connected(code))},
            inputs=tuple(each for each in self.files.inputs() if replaced not in each.path),
            unchecked=tuple(self.files.unchecked),
            unknown=self.files.unknown(may, names),
            unmade=self.files.unmade(),
            files=(*self.modules.files(), *started),
            misfits=(
                *ignored,
                *self.parsers.misfits(names, self.files.constants),
                *(f"{each}: a run that reaches this line fails" for each in filter(None, may_fail[:_MOST_SHOWN])),
            ),
            failing=(*((each, edit) for each, edit, sure in wrong if sure), *self.parsers.refused),
            env_checks=tuple(self.nodes.env_checks(self.files.constants, code)),
            least_python=self.least_python,
            relative=self.nodes.relative,
            idle=not self.calls and not starts,
        )

    def _tracked(self) -> Iterator[tuple[str, str]]:
        """Yield (``run.wandb=online|logs``, its mode, ``*`` for unknown, and folder; place) of calls that may run."""
        may = self.files.order.may_run(tried=True)
        perhaps = {*self._may_visit()} - self.files.order.reached()  # as a library calls functions
        usual = [each for each in self.tracking if may(each[0], each[3])]
        for unit, node, where, _ in usual or (each for each in self.tracking if each[0] in perhaps):
            given = {key: each for key, each in keywords(node).items() if not is_constant(each, None)}
            mode, folder = given.get("mode"), given.get("dir", given.get("save_dir"))
            text = self.files.constants.text(folder, unit)
            place = os.path.normpath(text.text) if text else "…" if folder else "."
            known = literal(mode) or ("offline" if is_constant(given.get("offline"), True) else "")
            known = "offline" if mode and "WANDB_MODE" in ast.dump(mode) else known  # the variable, which the run sets
            modes = [known] if known or not mode else self.devices.values(mode, unit) or [ANY]
            yield from ((f"run.wandb={each or ''!s}|{place}", where) for each in modes if each or folder)

    def _connected(self, code: str) -> Iterator[tuple[str, str]]:
        """Yield (``local.localhost:27017``, place) of clients in likely code whose service is on this machine."""
        constants, likely, sets = self.files.constants, self.files.order.is_likely, is_file(self.project / ".env")
        for unit, node, _, tests in self.clients if self.clients and not _SERVES.search(code) else ():
            given = [*node.args, *keywords(node).values()]
            texts = [constants.text(each, unit) for each in given if literal(each) or not sets]
            texts = texts if given else [Text("localhost", True)]
            local = [found[1] for each in texts if each and (found := _LOCAL.fullmatch(each.text))]
            if local and unit in constants.always and likely(unit, tests) and (module := self.modules.at(unit[0])):
                yield f"local.{local[0]}", f"{module.shown}:{node.lineno}"

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
        asked, self.imported_by_text = self.imported_by_text, []
        shown, codes = self.files.constants.text, b" ".join(each.source for each in self.modules.known() if asked)
        ids = [use.text if (use := shown(used, unit)) else "" for unit, _, used in asked]
        typed = [word.rpartition("=")[2] for word in self.words_typed]
        texts = [
            shown(name, unit)
            for (unit, name, used), each in zip(asked, ids, strict=True)  # gym imports the environment that is made
            if used is None or (each in typed if {*ids} & {*typed} else codes.count(each.encode(errors="replace")) > 1)
        ]
        known = [each.text.partition(":")[0] for each in texts if each and each.text != ANY]
        files, words = [self.roots.folder / each for each in typed if each.endswith(CONFIGURATION)], {*self.words}
        for text in read_sources(files if texts else (), self.project, MAX_BYTES):
            words |= {*_VALUE.findall(text)}
            known += islice(dict.fromkeys(_DOTTED.findall(text)), MOST_MODULES * (len(known) < len(texts)))
        for wanted in (each.replace(".", "/") for each in known if re.fullmatch(r"[A-Za-z_][\w.*]*", each)):
            self.certain += ((path, "") for path in self.roots.matching(wanted, words))
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
                self.files.order.note(unit, [(file, "")], always=seen.always, tests=seen.tests)
        return bool(self.certain)

    def _read_started(self) -> Iterator[str]:
        """Note what scripts of the project need that this one starts, and yield the files that show it.

        A variable may stand for each script whose name is in the module.
        """
        reached, known = self.files.order.reached(), {self.start}
        for unit, node in (each for each in self.nodes.starts if self.follows and each[0] in reached):
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
            functions = module.flow.functions.items() if (module := self.modules.at(path)) else ()
            own = {(path, name) for name, each in functions if call in each.decorator_list}
            if path not in self.modules.mains and own and own.isdisjoint(self.files.constants.callers):
                continue  # an imported module's own way to start
            files, lost = composed(call, path, self.modules.shown(path), self.words_typed, self.project)
            missing = ((os.path.relpath(file, self.roots.folder), where) for file, where in lost)
            self.composed |= {} if "ConfigStore" in self.mentioned else dict(missing)
            unit = next(iter(own), (path, ""))
            for file, text in files:
                self.composed.setdefault(shown := os.path.relpath(file, self.roots.folder), shown)
                self._name_targets(file, text)
            self.files.config = flattened(files, self.words_typed)
            self.made += islice(((unit, *each) for each in instances(self.files.config)), _MOST_MADE)
        return bool(self.certain)

    def _instantiate(self) -> bool:
        """Queue what an object runs that Hydra makes of a class of the project, with the settings of its file."""
        made, self.made, self.files.constants.looks = self.made, [], 0
        members = self.files.constants.members
        ways = [(*each, [*members(each[1].args[0], each[0])]) for each in self.makers[: _MOST_MADE * bool(made)]]
        for unit, name, above, call in made:
            parts, own = self._located(name)
            module = self.modules.at(own[-1][0]) if own else None
            if module is None or (above and self.files.uses.keys().isdisjoint(above[:-1].split("."))):
                continue
            ends = {tuple(above.split(".")[:at]) for at in range(1, above.count(".") + 1)}
            known = [each for each in ways if any((*each[3][at:],) in ends for at in range(len(each[3])))]
            units = [*named(module, "", ".".join(parts[len(own) :]), self.modules.at)]
            later = [*self._called_later(units)]
            self.certain += (*units, *later)
            for at, way, tests, _ in (
                known or [each for each in ways if not each[3]] or [(unit, call, (), [])] * (not ways)
            ):
                given = {each.arg: each for each in (*call.keywords, *way.keywords)}
                one = ast.Call(call.func, [], [*given.values()], lineno=call.lineno)
                self.files.note(at, one, units, always=False, tests=tests)
                self.files.order.note(at, later, always=False, tests=tests)
        return bool(self.certain)

    def _located(self, name: str) -> tuple[list[str], list[tuple[Path, Path]]]:
        """Return the parts of a class's dotted name, and (file, root) of the project's packages and module in it."""
        parts = name.split(".", signs.MOST_PARTS)[: signs.MOST_PARTS]
        return parts, [each for each in self.roots.located(parts, self.roots.absolute) or [] if each is not None]

    def _called_later(self, called: Sequence[Unit]) -> Iterator[Unit]:
        """Yield the methods that training calls of what is made, of its class and of those that it is derived from."""
        for path, made in (each for each in called if each[1].endswith(".__init__")):
            found, module, owner = set[str](), self.modules.at(path), made.removesuffix(".__init__")
            while module is not None and owner not in found:
                found.add(owner)
                own = [each for each in _RUN if f"{owner}.{each}" in module.flow.functions and each not in found]
                yield from ((module.path, f"{owner}.{each}") for each in own)
                found.update(own)
                base = next(iter(module.flow.bases.get(owner, ())), "")
                place, inner = module.bound.get(base, (module.path, base))
                module, owner = parsed_modules.source_of(self.modules.at(place), inner or "", self.modules.at)

    def _name_targets(self, file: Path, text: str) -> None:
        """Queue the classes that a configuration names."""
        for number, name, is_vague in targets(text):
            parts, own = self._located(name)
            self.certain += [(each[0], "") for each in own]
            if own and (module := self.modules.at(own[-1][0])):
                self.certain += functions_of(module, parts[-1])
                self.roots.own.add(parts[0])
                self.roots.found_under.setdefault(own[-1][1])
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
            self.least_python = max(filter(None, (self.least_python, self.modules.syntax.get(path))), default=None)
        known = unit in self.visited or len(self.visited) >= _MOST_UNITS
        self.visited.setdefault(unit)
        if known or module is None:
            return
        for method, function in module.flow.functions.items() if not name else ():
            last, where = method.rpartition(".")[2], f"{module.shown}:{function.lineno} {method}"
            if last in signs.LIGHTNING_1:
                self.reading.signs.setdefault("lightning-1", where)
            elif f"{method[: -len(last)]}lr_scheduler_step" in module.flow.functions:
                pass  # Lightning checks no scheduler
            elif last == "configure_optimizers" and signs.SCHEDULES.search(ast.unparse(function)):
                self.reading.signs.setdefault(f"{signs.NAMED}{signs.SCHEDULERS}", where)
            if _STARTING & {last_name(getattr(each, "func", each)) for each in function.decorator_list}:
                queue.append((path, method))
        for seen in module.flow.walk(name):
            self._note(module, name, seen, certain)
            if isinstance(seen.node, Import) and not self.roots.exhausted:
                self._follow(module, seen.node, seen, unit, queue if seen.needed else self.perhaps)
            elif isinstance(seen.node, ast.Call) and seen.certain and queue is not self.perhaps:
                called = [*called_by(module, name, seen.node, self.modules.at)]
                idle = self._of_command(module, name, seen.node) is False
                self.files.of_others |= idle
                (self.perhaps if idle else queue).extend(called)
                queue += self._called_later(called)
                self.either += called_by(module, name, seen.node, self.modules.at, unclear=True)

    def _may_visit(self) -> list[Unit]:
        """Return the visited functions without those that conditions of this run leave out."""
        tried = self.files.order.may_run(tried=True)
        methods = {each.path: each.flow.functions for each in self.modules.known()}  # also by their bare names
        idle = [each for each in self.files.order.reached() if not tried(each, ())]
        away = {methods.get(path, {}).get(name) for path, name in idle}
        return [each for each in self.visited if methods.get(each[0], {}).get(each[1], each) not in away]

    def _note(self, module: Module, unit: str, seen: RunNode, certain: bool) -> None:
        node = seen.node
        self.parsers.note_use(node)
        if isinstance(node, ast.Name):  # nearly half of all nodes
            self.mentioned.add(node.id)
            if isinstance(node.ctx, ast.Load):
                self.files.seen.add(node.id)
        if not isinstance(node, NOTED):
            return
        self.nodes.note(module, unit, seen, certain)
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
                if dot and any(dotted(each) == key for each in ast.walk(node.value)):
                    self.files.constants.joined[key.rpartition(".")[2]] = node.value, (module.path, unit)
                if dot and module.types.get(owner, "").rpartition(".")[2] in SETS["mappings"]:
                    setting = node.value if seen.always else ast.copy_location(ast.Constant(None), node)
                    self.files.constants.set_keys.append((key, setting, (module.path, unit)))
        if isinstance(node, ast.Attribute | ast.Subscript):
            use = certain and seen.tests == (), (module.path, unit), seen.tests
            self.files.uses.setdefault(member(node) or "", []).append(use)
            self.files.constants.stored |= {f"[{member(node)}]"} if isinstance(node.ctx, ast.Store) else set()
        if isinstance(node, ast.ClassDef) and not node.decorator_list:
            self.files.of_class |= {id(getattr(each, "value", None)): node.name for each in node.body}
        own = (name for name, each in module.flow.functions.items() if each is node)
        where = (module.path, next(own, unit) if isinstance(node, FunctionNode) else unit)  # defaults are of calls
        self.files.named_values += ((*pair, where, seen.tests) for pair in named_values(node))
        if isinstance(node, ast.Call | ast.Assign | ast.AugAssign):
            self.roots.extend(module, node, lambda entry: self.files.constants.text(entry, (module.path, unit)))
        sources = (each.source for each in (module, self.modules.at(self.start)) if each)
        if isinstance(node, ast.Call) or (isinstance(node, ast.ClassDef) and any(map(_PARSES_FIELDS.search, sources))):
            self.files.constants.note_options((module.path, unit), node)
        if isinstance(node, ast.Assert | ast.If):
            callers = self.files.constants.callers.get((module.path, unit), ())
            last = (self.start, ""), module.flow.body("")[-1].end_lineno  # a main function's only call
            once = [(each.unit, each.node.end_lineno) for each in callers] == [last]
            main = module.path == self.start and (not unit or once)
            checks = demanded(node, module.flow.assigned(unit), main=main)
            self.files.demanded |= {id(call): texts for call, texts in checks}
        if isinstance(node, ast.Call):
            self._note_call(module, unit, node, seen, certain)

    def _note_call(self, module: Module, unit: str, node: ast.Call, seen: RunNode, certain: bool) -> None:
        full = full_name(called := dotted(node.func), module.names)
        self.mentioned |= {literal(each) or "" for each in node.args[1:2] if called == "getattr"}
        if called in ("setattr", "vars") and node.args and module.has_module(node.args[0]):
            self.set_there.add(literal(node.args[1]) if len(node.args) > 1 else None)
        if called.endswith("main") and {"config_path", "config_name"} & {*keywords(node)}:
            self.hydra.append((module.path, node))
        if called.rpartition(".")[2] == "instantiate" and node.args:
            self.makers.append(((module.path, unit), node, seen.tests))
        if last_name(node.func) in ("import_module", "__import__") and certain and node.args:
            if "".join(signs.texts_of(module_name := node.args[0])).startswith("."):
                package = keywords(node).get("package", [*node.args[1:], module_name][0])
                own = ast.Constant(".".join(Path(module.shown).parent.parts))
                package = own if dotted(package) in ("__package__", "__name__") else package
                module_name = ast.BinOp(package, ast.Add(), module_name)
            self.imported_by_text.append(((module.path, unit), module_name, None))
        elif certain and "entry_point" in (given := keywords(node)) and ("id" in given or node.args):
            self.imported_by_text.append(((module.path, unit), given["entry_point"], given.get("id") or node.args[0]))
        if full.endswith(("wandb.init", "wandb.Settings", ".WandbLogger")):
            self.tracking.append(((module.path, unit), node, f"{module.shown}:{node.lineno}", seen.tests or ()))
        if full in SETS["clients"]:
            self.clients.append(ParsedCall((module.path, unit), node, certain and seen.always, seen.tests))
        if full in SETS["run-here"] and certain and seen.certain and node.args:
            self.runs.append(((module.path, unit), node, seen))
        run = list(named(module, unit, called, self.modules.at)) if called else []
        by_typer = module.types.get(called, "").endswith("Typer")
        if not run and (by_typer or full in SETS["runners"]):
            entries = [*called_by(module, unit, node, self.modules.at)]
            decorated = ((name, each) for name, by in module.flow.functions.items() for each in by.decorator_list)
            commands = [name for name, each in decorated if dotted(getattr(each, "func", each)) == f"{called}.command"]
            entries += [(module.path, name) for name in commands if not commands[1:]]
            self.files.order.note((module.path, unit), entries, always=seen.always, tests=seen.tests)
            self.files.constants.entries.update(entries)
            for path, name in (each for each in entries if each[1]):
                if source := self.modules.at(path):
                    self.files.constants.note_options((path, name), source.flow.functions[name])
        run = run or [*called_by(module, unit, node, self.modules.at)] * (self._of_command(module, unit, node) is True)
        lent = [] if run or called.endswith("set_defaults") else [*called_by(module, unit, node, self.modules.at)]
        self.files.order.note((module.path, unit), lent, always=False, tests=None)  # perhaps, as optimize(objective)
        functions = [each.flow.functions.get(name) for path, name in run if (each := self.modules.at(path))]
        self.parsers.note(
            ParsedCall((module.path, unit), node, certain and seen.always, seen.tests),
            f"{module.shown}:{node.lineno}",
            own=lambda name: bool(name) and any(named(module, unit, name, self.modules.at)),
            taken={each.arg for function in functions if function for each in function.args.args},
        )
        self.files.note((module.path, unit), node, run, always=seen.always, tests=seen.tests)
        if node.args or node.keywords or not run:
            self.parsed |= dict.fromkeys(parsed_words(node), f"{module.shown}:{node.lineno}")

    def _of_command(self, module: Module, unit: str, node: ast.Call) -> bool | None:
        """Return whether ``set_defaults(func=train)`` belongs to the typed sub-command; None for any other call."""
        owner, _, last = dotted(node.func).rpartition(".")
        made = module.flow.assigned(unit).get(owner, []) if last == "set_defaults" else []
        before = [each for each in made if isinstance(each, ast.Call) and each.lineno < node.lineno]
        is_one = before and last_name(before[-1].func) == "add_parser"
        return not {*self.words_typed}.isdisjoint(signs.texts_of(before[-1])) if is_one else None

    def _follow(self, module: Module, node: Import, seen: RunNode, unit: Unit, queue: list[Unit]) -> None:
        """Queue files of the project that an import in ``unit`` names; note the other modules."""
        where, need = f"{module.shown}:{node.lineno}", queue is self.certain
        for name, files, is_own, is_alone in self.roots.resolved(module, node, self.modules.at, needed=need):
            if is_alone:
                self.nodes.tops.setdefault(files[0], f"{where} imports {name}")
            queue += (units := [(file, "") for file in files])
            self.files.order.note(unit, units, always=seen.always, tests=seen.tests)
            if not is_own and queue is self.perhaps:
                self.nodes.note_perhaps(module, unit, seen.tests, name, where)
            elif not is_own:
                if seen.certain:
                    self.reading.fallbacks.discard(name)
                elif name not in self.reading.needed:
                    self.reading.fallbacks.add(name)
                self.reading.needed.setdefault(name, where)


def read_project(project: Path, roots: list[Path], inside: Path, start: Path, **how: Any) -> ProjectReading:
    """Read a script, again if it adds to its path; ``how``: of ProjectReader. Raises TargetError: it cannot be read."""
    reader = ProjectReader(project, roots, inside, start, **how)
    while (reading := reader.read()) is None:
        known = reader.roots
        roots = [each for each in known.absolute if each not in known.packaged]
        how |= {"placed": known.placed, "foreign": known.foreign, "modules": reader.modules}
        reader = ProjectReader(project, roots, inside, start, **how)
    return reading
