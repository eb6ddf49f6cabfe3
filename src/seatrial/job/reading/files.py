"""Files and folders that a script creates or reads: the calls, and their paths as far as constants show them."""

from __future__ import annotations

import ast
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from pathlib import Path, PurePosixPath

from seatrial.errors import fallback
from seatrial.job.reading import file_calls as calls
from seatrial.job.reading.argparse_words import typed_options, typed_words
from seatrial.job.reading.configurations import CONFIGURATION, by_ends, initialized, interpolated, read_settings
from seatrial.job.reading.constants import ANY, Constants, ParsedCall, Text, is_outside
from seatrial.job.reading.file_calls import Paths, Read, Write, known_paths
from seatrial.job.reading.flow import CAUGHT, Tests
from seatrial.job.reading.loops import Loops
from seatrial.job.reading.modules import is_file, is_folder
from seatrial.job.reading.parsed_modules import Module, Unit, named
from seatrial.job.reading.run_order import RunOrder, untried
from seatrial.job.reading.signs import PLACEHOLDER, WINDOWS, dotted, full_name, keywords, literal, of_a_machine
from seatrial.system.project_files import read_sources
from seatrial.system.source import MAX_BYTES

_MOST_WRITES, _LONGEST_PATH, _LONGEST_CALL, _MOST_CALLERS, _MOST_TEXTS = 500, 300, 60, 8, 250


class Files:
    """Collects calls while code is read and then finds the files that these calls write and read.

    ``start``: the script's top. ``module_at``: a file's module. ``arguments``: of the script. ``folder``: the working
    directory.
    """

    def __init__(
        self, start: Unit, module_at: Callable[[Path], Module | None], arguments: Sequence[str], folder: Path
    ) -> None:
        self._module_at, self._folder = module_at, folder
        self.constants = Constants(module_at, arguments, folder)
        self._loops = Loops(module_at, self.constants)
        self.order = RunOrder(start, module_at, self.constants.callers)
        self.hub_model: tuple[str, str] | None = None
        self.remote: dict[str, str] = {}
        self.named: dict[str, Read] = {}  # paths that only the author's machine has, in code that is likely to run
        self.unchecked: dict[str, None] = {}
        self._perhaps: dict[str, Read] = {}
        self._read: list[tuple[Unit, ast.Call, Tests, ast.expr, str, str]] = []  # path, its text and its option
        self._downloads: list[tuple[Unit, int, str]] = []  # downloads and programs whose files are not known
        self._written: tuple[Write, ...] = ()
        self.outputs: set[str] = set()
        self.seen = set[str]()  # names
        self.uses: dict[str, list[tuple[bool, Unit, Tests]]] = {}  # attribute or key → is it likely to run, conditions
        self.named_values: list[tuple[str, bool | None, ast.expr, Unit, Tests]] = []  # with their place and conditions
        self.of_class: dict[int, str] = {}  # id of a value that a class's body sets → the class
        self._written_names, self._checked_names = set[str](), set[str]()
        self._tried = set[Unit]()  # units that a usual run reaches, including those called in a ``try``
        self._settings: list[tuple[str, str, str]] = []
        self._noted: list[ParsedCall] = []
        self._reading: list[ParsedCall] = []
        self._asking: list[ParsedCall] = []
        self.demanded: dict[int, list[ast.expr]] = {}  # id of a check → its error's texts; noted before its call
        self._calls: dict[Unit, list[tuple[ast.Call, Sequence[Unit]]]] = {}
        self._calls_left = 20_000  # most calls searched for one that makes a path before the script checks for it
        self._made: list[tuple[ParsedCall, Text | None]] = []
        self._checked: list[tuple[ParsedCall, Text]] = []
        self._making: list[tuple[ParsedCall, Sequence[Unit]]] = []  # calls that may create any path
        self._indirect: list[ParsedCall] = []  # calls of variables and items
        self._moves = self._finds = False  # it changes its working directory; an input exists
        self._files: dict[str, Read] = {}  # configurations that Hydra or ConfigArgParse reads
        self._configs = ANY  # the folder of Hydra's compose()
        self.config: dict[str, object] = {}  # what Hydra composes, by dotted keys
        self.of_others = False  # other sub-commands run functions of their own

    def note(self, unit: Unit, node: ast.Call, called: Sequence[Unit], *, always: bool, tests: Tests) -> None:
        """Note a call in ``unit``, and the parts of the project that it runs."""
        name, last = calls.called_names(node)
        module, call = self._module_at(unit[0]), ParsedCall(unit, node, always, tests)
        self._configs = initialized(node, unit[0], module.names if module else {}, self._folder) or self._configs
        if name == "os.chdir":
            self._moves = True
        elif len(self._noted) < _MOST_WRITES and (name in calls.OPENERS or calls.MAKING & {last, *keywords(node)}):
            self._noted.append(call)
        if not called and len(self._reading) < _MOST_WRITES and any(self._paths(unit, node)):
            self._reading.append(call)
        elif last in calls.ASKS and len(self._asking) < _MOST_WRITES:
            self._asking.append(call)
        elif not calls.GIVES_NONE.fullmatch(last):
            self._calls.setdefault(unit, []).append((node, called))
        if calls.makes_any(node):
            self._making.append((call, called))
        self._indirect += [] if called or isinstance(node.func, ast.Attribute) else [call]
        self.order.note_call(call, called)

    def with_files(self) -> Iterator[str]:
        """Yield the arguments, and those in files that ConfigArgParse reads for typed options."""
        arguments = self.constants.arguments
        yield from arguments
        for option in (each for each in self.constants.options.values() if "is_config_file" in keywords(each.node)):
            for word in self.constants.typed(option, arguments):
                name = re.sub(r"(\.py):.*", r"\1", word)  # of ml_collections
                self._files[name] = Read(name, self._place(option.unit, option.node), option.flags[-1])
                settings, _ = read_settings([name] * (name[-3:] != ".py"), (), self._folder, ())
                yield from (f"--{key}={value}" for key, value, _ in settings if value.lower() != "false")

    def read_settings(self, composed: Mapping[str, str]) -> dict[str, str]:
        """Note settings of files that the script opens or Hydra reads (``composed``: file → where), and typed ones;
        return sign → place."""
        self._files |= {path: Read(path, where, None) for path, where in composed.items()}
        paths = ((path, each.unit) for each in self._reading for path in self._paths(each.unit, each.node))
        opened = [found.text for pair in paths if (found := self.constants.text(*pair))]
        given = (each for each in (*composed, *self.constants.arguments, *opened) if each.endswith(CONFIGURATION))
        keys = {key.partition(".")[2] for key, *_ in self.constants.set_keys}
        settings, seen = read_settings(dict.fromkeys(given), self.constants.arguments, self._folder, keys)
        self._settings = [(key, interpolated(value, self.config), where) for key, value, where in settings]
        self.constants.settings = by_ends(self._set_in_code(), self._settings)
        return seen

    def _set_in_code(self) -> Iterator[tuple[str, str, str]]:
        """Yield (key, value, place) of settings in code; none if something unknown is merged into them."""
        owners = {key.partition(".")[0] for key, *_ in self.constants.set_keys}
        made = [each for each, _ in chain(*self._calls.values())] if owners else []
        names = [dotted(each.args[0] if dotted(each.func) == "setattr" and each.args else each.func) for each in made]
        merged = [each for each in self._reading if calls.called_names(each.node)[1] == "merge_from_file"]
        texts = (self.constants.text(path, each.unit) for each in merged for path in self._paths(each.unit, each.node))
        changes = {f"{owner}{end}" for owner in owners for end in ("", ".merge", ".merge_from_other_cfg", ".update")}
        known = changes.isdisjoint(names) and all(text and is_file(self._folder / text.text) for text in texts)
        for key, value, unit in self.constants.set_keys if known else ():
            text = self.constants.text(value, unit)
            yield key.partition(".")[2], text.text if text and text.sure else ANY, self._place(unit, value)

    def follow(self) -> None:
        """Note what called variables and items run, ``NETS[args.net]()``; call it once assignments are known."""
        known = set[Unit]()
        while known != (reached := self.order.reached()):
            known = reached
            for call in (each for each in self._indirect if each.unit in reached):
                self.constants.looks = 0
                runs = {*self._functions_called(call.node.func, call.unit, reached)}
                made = call if len(runs) == 1 else call._replace(always=False, tests=None)
                self.order.note_call(made, [each for each in runs if made not in self.constants.callers.get(each, ())])
        self.order.join_branches()

    def _functions_called(self, node: ast.expr, unit: Unit, reached: set[Unit]) -> Iterator[Unit]:
        names = [(node, unit)]  # and what they stand for, each once: names may stand for one another
        for name, at in names:
            values = [(value, where) for value, where, _ in self.constants.candidates(name, at, 0) if value]
            names += [each for each in values if each not in names and (each[1] in reached or not each[1][1])]
            if not values and (module := self._module_at(at[0])):
                yield from named(module, at[1], dotted(name), self._module_at)

    def reads(self, truth: Callable[[ast.expr, Unit], bool | None]) -> tuple[Read, ...]:
        """Return what the script reads; () if unseen code may create it. ``truth``: whether a condition holds.

        Sets ``hub_model``, ``outputs``, ``remote`` and ``unchecked``: see Readings.
        """
        reads, self.order.truth = {**self._files}, truth
        if self._moves:
            return self._with_named(reads)

        may, likely = self.order.may_run(tried=True), self.order.is_likely
        self._read_modes()
        writing, asking = self._making_and_checking(may)
        self.constants.always = self.order.reached(lambda unit, run: likely(unit, run.tests, self._lacks))
        self.constants.likely = likely
        self._tried = self.order.reached(lambda unit, run: likely(unit, untried(run.tests) or (), self._lacks))
        typed = {flag: value for flag, value in typed_options(self.constants.arguments) if value}
        self._downloads = [*self._find_downloads()]
        unseen = (each for each, run in chain(*self._calls.values()) if not (run or calls.made_paths(each)))
        given = {literal(each) for call in unseen for each in (*call.args, *keywords(call).values())}
        paths = [(each, path) for each in self._reading for path in self._paths(each.unit, each.node)]
        self._known = {(call.unit[0], ast.dump(path)) for call, path in (*writing, *asking)}
        ways = {(call.unit, ast.dump(path), call.tests): path for call, path in paths}
        texts = ((call, path, text) for call, path in paths for text in self._texts(path, call.unit))
        for (unit, node, _, tests), path, found in texts:
            flag, by_setting, lacks = self.constants.by_option, self.constants.by_setting, self.constants.lacks
            self._read.append((unit, node, tests, path, found.text if found else ANY, flag or ""))
            name, last = calls.called_names(node)
            module, where, same = self._module_at(unit[0]), self._place(unit, node), (unit, ast.dump(path))
            while tests and (other := ways.get((*same, (*tests[:-1], (tests[-1][0], not tests[-1][1]))))):
                if self.constants.text(other, unit) != found:
                    break
                tests = tests[:-1]  # both branches read it
            runs = likely(unit, tests, self._lacks) and unit in self.constants.always
            ready = runs or not calls.OUTPUT.search(flag or "")  # else it lists earlier runs, if there are any
            self.outputs.difference_update({flag or ""} if ready else ())
            if module is None or found is None:
                opens = runs and lacks and not self._downloads and not calls.READERS.isdisjoint((name, last))
                if module and opens and (unit[0], ast.dump(path)) not in self._known:
                    self.unchecked[where] = None
                continue
            if driver := calls.remote_driver(node, found.text, module.names):
                self.remote.setdefault(driver, where)
            is_typed = flag in typed and found.text.startswith(typed[flag]) and may(unit, tests) and ready
            usual, value = runs and (found.sure or by_setting), self.constants.given(flag) if flag else ""
            begin, any_part, _ = found.text.partition(ANY)
            begin = posixpath.dirname(begin) if any_part else begin
            text = posixpath.normpath(begin or ".")
            asks = not ((is_typed and found.text == typed[flag or ""]) or unit in self._required or of_a_machine(text))
            unclear: object = found.text in given or calls.may_be_no_file(node, found.text, text, module.names)
            named = last in calls.NAMES_MODELS and not calls.NO_NAME.fullmatch(begin)
            if named and usual and calls.ON_THE_HUB.fullmatch(begin) and not (self._folder / begin).exists():
                self.hub_model = self.hub_model or (begin, where)
            if named and is_typed and is_folder(model := self._folder / begin) and not any(model.glob("[!.]*")):
                named, text = False, f"{text}/config.json"  # the folder waits for a download
            unclear = unclear or named or (flag and PLACEHOLDER.search(text))
            next_to_script = text.endswith(CONFIGURATION) and is_file(self.order.start[0].parent / text)
            fetched = not (of_a_machine(text) or next_to_script) and self._is_downloaded(text, unit, node.lineno)
            missing, unclear = (usual or is_typed) and not (unclear or fetched in (True, None)), unclear or fetched
            shown = posixpath.join("." * (last in calls.MAY_LACK), text)
            seen = not (unclear or (any_part and last not in calls.MAY_LACK))  # these list a folder
            seen = seen and likely(unit, tests) and unit in self._tried and calls.is_input("", shown, typed=True)
            if (missing or seen) and not (there := self._is_there(unit, node, found, text, asks=asks)):
                advice = " ".join(self._advice(unit, node).split())[:_LONGEST_PATH]
                option = flag if missing or value == found.text else None
                read = Read((text if missing else shown)[:_LONGEST_PATH], where, option, advice, value=value)
                (reads if missing and there is False else self._perhaps).setdefault(text, read)
        return self._with_named(reads)

    def inputs(self) -> Iterator[Read]:
        """Yield absent paths that the run may read: typed ones, settings, defaults, strings. Call ``reads`` first."""
        given = (
            (unit, each) for (unit, node, *_), _ in self._making for each in (*node.args, *keywords(node).values())
        )
        typed = Paths([*(text for _, text in self._made), *(self.constants.text(each, unit) for unit, each in given)])
        made = Paths([text for _, text in self._made])
        checked = {posixpath.normpath(text.text) for _, text in self._checked if posixpath.splitext(text.text)[1]}
        for name, value, where, option in self._candidates():
            is_typed, path = where == name, posixpath.normpath(value)
            fits = calls.is_input(name, value, typed=is_typed or not name) or self._is_local_model(name, value)
            fits = fits and (not name or option not in self.outputs)
            others = (each for *_, each, _ in self._read if name and each != f"./{value}")
            below = (each.endswith(f"/{value}") for each in others)  # another's folder
            known = (typed,) if is_typed else (made, checked) if name else ()
            fits = fits and not any(below) and not any(path in each for each in known)
            texts = (each for *_, each, by in self._read if by == (option or "") and each.startswith(f"{value}."))
            if fits and not self._exists(whole := next(texts, value)):  # with its ending
                yield Read(posixpath.normpath(whole)[:_LONGEST_PATH], where, option)

    @fallback((), on=RecursionError)  # a path of hundreds of terms
    def unknown(self, may: Callable[[Unit, Tests], bool], imported: Iterable[str]) -> tuple[str, ...]:
        """Return reads by unknown paths, likely ones if any; () if an input exists. Call ``inputs`` first."""
        found, reached, likely = dict[str, tuple[bool, str]](), self.order.reached(), self.constants.likely or may
        inside = {self._place(unit, node) for unit, node, *_ in self._read if unit in reached}
        unclear = self._moves or self._downloads or self._finds
        for unit, node, tests, path, text, flag in () if unclear else self._read:
            tried, where = unit in self._tried, self._place(unit, node)
            if begin := text.partition(ANY)[0]:
                found[where] = False, ""
                self._exists(begin)
            elif calls.DATA & {*calls.called_names(node)} and (tried or where not in inside):
                sure, around = likely(unit, tests), f"{unit[0].stem} {unit[1]} {ast.unparse(path)}".lower()
                runs = (sure or (tried and may(unit, tests))) and (unit[0], ast.dump(path)) not in self._known
                if runs and not calls.NO_DATA.search(around):
                    shown = f"{where} {ast.unparse(node)[:_LONGEST_CALL]}{f' by {flag}' if flag else ''}"
                    found.setdefault(where, (not (tried and sure), shown))
        reads = [each for each in found.values() if each[1]]
        doubt = all(doubt for doubt, _ in reads)
        texts = (literal(each[2]) or "" for each in self.named_values if reads and doubt)
        brought = self._finds or any(self._exists(each) and self._finds for each in texts if "." in each)
        made = chain(*(self._calls.get(unit, ()) for unit in (self._calls if doubt else self._tried) if reads))
        brought |= any(calls.BRINGING & {calls.called_names(each)[1], *keywords(each)} for each, run in made if not run)
        brought |= doubt and (bool(self._making) or any(map(calls.OF_DATA.match, imported)))
        return () if brought else tuple(text for each, text in reads if each is doubt)

    def _is_local_model(self, name: str, value: str) -> bool:
        """Return whether a model's name in a hub's form begins with a folder, present or ignored by git."""
        first, slash, _ = value.partition("/")
        fits = bool(slash) and calls.OF_MODELS.fullmatch(name) and calls.ON_THE_HUB.fullmatch(value)
        if not fits or calls.NAMES_MODELS.isdisjoint(calls.called_names(node)[1] for _, node, *_ in self._read):
            return False
        ignored = "".join(read_sources([self._folder / ".gitignore"], self._folder, MAX_BYTES))
        return is_folder(self._folder / first) or bool(re.search(rf"(?m)^/?{re.escape(first)}(/\**)?$", ignored))

    def _exists(self, path: str) -> bool:
        """Return whether a path exists; note that an input does, unless the path holds code, settings or weights."""
        there = os.path.exists(os.path.join(self._folder, os.path.expanduser(path)))  # noqa: PTH110, PTH111, PTH118
        self._finds |= there and bool(path.strip("./")) and not calls.NO_DATA.search(path.lower())
        return there

    def _candidates(self) -> Iterator[tuple[str, str, str, str | None]]:
        """Yield (name, value, place, option) of typed words, and of other paths that no download may create."""
        yield from ((name, value, name, name or None) for name, value in typed_words(self.constants.arguments))
        yield from (("", each.path, each.where, each.option) for each in self._perhaps.values())
        if not self._moves:
            yield from (each for each in self._untyped() if not self._is_downloaded(each[1]))

    def _untyped(self) -> Iterator[tuple[str, str, str, str | None]]:
        typed = {key for key, (_, where) in self.constants.settings.items() if where.endswith(key)}

        @cache
        def used(name: str) -> bool:
            may = any(self.order.holds(at, tests) for _, at, tests in self.uses.get(name, ()))
            return name not in typed and (name in self.seen or may)

        for key, (value, where) in self.constants.settings.items():
            last = key.rpartition(".")[2]
            of_schema = where.rpartition(":")[0] in self._files or ".config:" in where  # protobuf's text
            if of_schema or (used(last) and ".py:" not in where):
                yield key, value, f"{last} in {where}", None
        for name, option in self.constants.options.items():
            text = self.constants.of_option(name) if used(name) else None
            by = self.constants.by_option
            if text and text.sure:
                yield name, text.text, self._place(option.unit, option.node), by or option.flags[0]
        fit = (each for each in self.named_values if calls.is_input(each[0], "./a/b", typed=False))
        wanted = (each for each in fit if (used(each[0]) if each[1] else each[0] not in self._checked_names))
        unused = {value for value, name in self.of_class.items() if not used(name)}
        free = (each for each in wanted if each[0] not in self._written_names and id(each[2]) not in unused)
        likely, callers = self.constants.likely, self.constants.callers
        for name, by_name, node, unit, tests in islice(free, _MOST_TEXTS):
            by_library = unit[0] == self.order.start[0] and not callers.get(unit)  # Fire or a decorator calls it
            runs = (by_library or unit in self._tried) and (likely is not None and likely(unit, untried(tests) or ()))
            of_calls = by_name is None and unit[1] and [each for each, *_ in self.constants.passed(name, unit)]
            text = self.constants.text(node, unit) if runs and node in (of_calls or [node]) else None
            begin, any_part, _ = text.text.partition(ANY) if text else ("", "", "")
            yield name, posixpath.dirname(begin) if any_part else begin, self._place(unit, node), None

    def _with_named(self, reads: dict[str, Read]) -> tuple[Read, ...]:
        """Add the paths of other machines that no read or write names."""
        known = [PurePosixPath(each) for each in (*reads, *(write.path for write in self._written))]
        for path, read in self.named.items():
            pure = PurePosixPath(path)
            if path in reads:
                reads[path] = replace(read, option=reads[path].option or read.option)  # the line to edit
            elif not any((read.verb != "reads" and pure.is_relative_to(x)) or x.is_relative_to(pure) for x in known):
                reads[path] = read
                known.append(pure)
        return tuple(reads.values())

    def _place(self, unit: Unit, node: ast.expr) -> str:
        module = self._module_at(unit[0])
        return f"{module.shown if module else unit[0].name}:{node.lineno}"

    def _paths(self, unit: Unit, node: ast.Call) -> Iterable[ast.expr]:
        names = module.names if (module := self._module_at(unit[0])) else {}
        if full_name(dotted(node.func), names) == "hydra.compose" and (given := [*node.args, *keywords(node).values()]):
            return [ast.BinOp(ast.Constant(f"{self._configs}/"), ast.Add(), given[0])]
        return calls.checked_paths(node) if id(node) in self.demanded else calls.read_paths(node, names)

    def _texts(self, path: ast.expr, unit: Unit) -> Iterator[Text | None]:
        """Yield the texts of a path, one for each pass of a loop, each call of its function or object of its class."""
        constants, known, at, line = self.constants, self.constants.callers, unit, getattr(path, "lineno", 0)
        before: list[ParsedCall] = []
        for _ in range(_MOST_CALLERS):  # a function that is called once takes what its caller takes
            passes = self._loops.passes(at, line)
            for each in passes:
                constants.looped = each
                yield constants.text(path, unit)
            constants.looped = {}
            if passes:
                return
            made = (at[0], f"{at[1].rpartition('.')[0]}.__init__")
            several = (each for each in (made, at) if len(known.get(each, ())) > 1)
            before = known.get(taker := next(several, made if known.get(made) else at), [])
            if len(before) != 1:
                break
            at, line = before[0].unit, before[0].node.lineno
        for call in before[:_MOST_CALLERS]:
            known[taker] = [call]
            yield constants.text(path, unit)
        known[taker] = before
        if not before:
            yield constants.text(path, unit)

    def _read_modes(self) -> None:
        """Count a call that opens a file as a read if every caller passes it a mode that only reads."""
        for call in [each for each in self._noted if calls.called_names(each.node)[0] in calls.OPENERS]:
            mode = next(iter((*call.node.args[1:2], keywords(call.node).get("mode"))), None)
            modes = self._texts(mode, call.unit) if isinstance(mode, ast.Name) else [None]
            if {each and each.sure and each.text for each in modes} <= calls.READS:
                self._noted.remove(call)
                read = ast.Call(call.node.func, call.node.args[:1], [])
                self._reading.append(call._replace(node=ast.copy_location(read, call.node)))

    def _making_and_checking(self, may: Callable[[Unit, Tests], bool]) -> tuple[list[tuple[ParsedCall, ast.expr]], ...]:
        """Return calls that make paths and calls that check for them; settle the order, set ``outputs``."""
        callers, reached = self.constants.callers, self.order.reached()
        for ran in (self._reading, *callers.values()) if self.of_others else ():
            ran[:] = [each for each in ran if each.unit in reached]
        noted = (
            each for each in self._noted if may(each.unit, ()) or not (each.unit in reached or self._is_idle(each.unit))
        )
        turned = ((each, keywords(each.node).get("download", ast.Constant(True))) for each in noted)
        making = [each for each, on in turned if self.order.holds(each.unit, ((on, True), *(each.tests or ())))]
        writing = [(each, path) for each in making for path in calls.made_paths(each.node)]
        texts = ((call, text) for call, path in writing for text in self._texts(path, call.unit))
        made = [(*each, self.constants.by_option or "") for each in texts]
        self._made, self.outputs = [(call, text) for call, text, _ in made], {flag for *_, flag in made}
        self._reading += [each for each in self._asking if id(each.node) in self.demanded]  # by a name
        checks = (each for each in self._asking if id(each.node) not in self.demanded)
        asking = [(each, path) for each in checks for path in calls.checked_paths(each.node)]
        self._written_names, self._checked_names = calls.names_in(writing), calls.names_in(asking)
        self._checked = [(call, text) for call, path in asking for text in self._texts(path, call.unit) if text]
        self._required = {unit for unit, each in callers.items() for call in each if id(call.node) in self.demanded}
        self.order.settle(each.unit for each, _ in (*self._made, *self._checked, *self._making))
        if self._making:
            self._discard_skipped(reached)
        return writing, asking

    def _discard_skipped(self, reached: set[Unit]) -> None:
        """Discard calls that create paths if the run skips all of them, such as unpacking a missing archive."""

        def skips(unit: Unit, tests: Tests) -> bool:
            return any(self._lacks(test, unit, wanted) for test, wanted in tests or ())

        skipped = reached - self.order.reached(lambda unit, run: not skips(unit, run.tests))
        dropped = {id(each.node) for each in self._noted if each.unit in skipped or skips(each.unit, each.tests)}
        if all(unit in skipped or id(node) in dropped for (unit, node, *_), _ in self._making):
            self._making, self._made = [], [each for each in self._made if id(each[0].node) not in dropped]

    def _is_there(self, unit: Unit, node: ast.Call, found: Text, text: str, *, asks: bool | None) -> bool | None:
        """Return whether earlier code may make a path, None for its folder alone, or checks for it, if ``asks``."""
        demanded = asks is None or id(node) in self.demanded
        if demanded and self._made_before(text, unit, node.lineno):
            return True
        ran = self.order.ran_before(unit, node.lineno, at_any_time=True)
        made = [each for each in self._made if each[0].node.lineno <= ran.get(each[0].unit, 0)]
        kept = [each for _, each in made]
        kept += [each for _, each in self._made if asks is False and each and each.text == found.text]  # for results
        known = [each for call, each in self._checked if asks and call.node.lineno <= ran.get(call.unit, 0)]
        seen = found.text in {each.text for each in known}
        if demanded or seen:
            return seen or Paths(kept).has(text)
        files = [each for each in made if calls.called_names(each[0].node)[1] not in calls.MAKES_NO_FILE]
        clear = {id(call.node) for call, each in files if each and each.text[:1] != ANY}
        alone = asks and PurePosixPath(text).suffix and clear.issuperset(id(call.node) for call, _ in files)
        alone = alone and text not in known_paths(tuple(each for _, each in files))
        paths = known_paths(tuple(dict.fromkeys([*kept, *(each for each in known if ANY not in each.text)])))
        return text in paths and (None if alone and not self._made_before(text, unit, node.lineno) else True)

    def _lacks(self, test: ast.expr, unit: Unit, wanted: bool) -> bool:
        """Return whether a test misses the ``wanted`` value because no earlier code makes the path that it checks."""
        check = dotted(getattr(test, "func", test)).rpartition(".")[2]
        if not wanted and unit in self._required and check in calls.ASKS:
            return True  # the caller fails without the result
        for call in calls.needed(test, wanted, {}):
            text = self.constants.text(next(iter(calls.checked_paths(call)), None), unit)
            there = text and os.path.exists(self._folder / text.text)  # noqa: PTH110
            if text and text.sure and not there and not calls.UNKNOWN.search(text.text):
                return self._is_there(unit, call, text, posixpath.normpath(text.text), asks=None) is False
        return False

    def _made_before(self, text: str, unit: Unit, line: int) -> bool:
        """Return whether a call before a line takes the path, or a folder above it, and so may make the path."""
        above = {text, *map(str, PurePosixPath(text).parents)} - {".", "/"}
        for where, end in self.order.ran_before(unit, line, at_any_time=False).items():
            ran = [each for each, called in self._calls.get(where, ()) if each.lineno < end and not called]
            self._calls_left -= len(ran)
            for call in ran if self._calls_left > 0 else ():
                texts = [self.constants.text(each, where) for each in (call, *call.args, *keywords(call).values())]
                if texts[0] is None and any(each and posixpath.normpath(each.text) in above for each in texts):
                    return True
        return self._calls_left <= 0

    def _advice(self, unit: Unit, node: ast.Call) -> str:
        texts = [self.constants.text(each, unit) for each in self.demanded.get(id(node), ())]
        return next((each.text.replace(ANY, "…") for each in texts if each and calls.ADVICE.search(each.text)), "")

    def unmade(self) -> tuple[Write, ...]:
        """Return writes to folders that the script does not make; () if unseen code may. Call ``reads`` first."""
        folders, alone, unclear = list[Text](), [Text(".", True)], list[tuple[Unit, int]]()
        reached, may = self.order.reached(), self.order.may_run(tried=True)
        always, likely = self.constants.always, self.constants.likely
        self.constants.always, self.constants.likely = reached, may  # a path's values at every place that writes it
        noted = [each for each in self._noted if each.unit in reached or not self.of_others]
        run = {id(node) for node, called in chain(*self._calls.values()) if called}  # not makedirs, of many callers
        for unit, node, *_ in (each for each in noted if id(each.node) not in run and not self._recreates(each)):
            made = [path for path, folder, _ in calls.written_paths(node) if folder]
            pairs = [(text, self.constants.by_setting) for path in made for text in self._texts(path, unit)]
            clear = (each and (each.sure or (by_setting and ANY not in each.text)) for each, by_setting in pairs)
            if calls.called_names(node)[1] in calls.FOLDERS and not all(clear):
                unclear.append((unit, node.lineno))
            (alone if calls.makes_one(node) else folders).extend(each for each, _ in pairs if each)
        known = (Paths(folders), {posixpath.normpath(each.text) for each in alone})
        writes = dict[str, Write]()
        for unit, node, _, tests in () if self._moves or self._downloads else noted:
            names, by_mkdir = calls.called_names(node), calls.makes_one(node)
            needy = by_mkdir or names[0] in calls.OPENERS or not calls.NEED_FOLDERS.isdisjoint(names)
            needy = needy and CAUGHT not in (tests or ()) and may(unit, tests)
            ran = self.order.ran_before(unit, node.lineno, at_any_time=True) if unclear and needy else {}
            needy = needy and all(line > ran.get(where, 0) for where, line in unclear)
            texts = [text for path in calls.made_paths(node) for text in self._texts(path, unit)] if needy else []
            checks = (call for test, wanted in tests or () if texts for call in calls.needed(test, wanted, {}))
            checked = Paths([self.constants.text(path, unit) for call in checks for path in calls.checked_paths(call)])
            for text in [each.text for each in texts if each and each.sure]:
                folder = posixpath.normpath(posixpath.dirname(text))
                there = ANY in folder or folder[0] == "~" or WINDOWS.match(text) or is_folder(self._folder / folder)
                there = there or any(folder in each for each in (*known, checked))
                if not (there or self._made_before(folder, unit, node.lineno)):
                    certain = tests == () and unit in always
                    write = Write(text[:_LONGEST_PATH], by_mkdir, self._place(unit, node), certain, None)
                    writes.setdefault(folder, write)
        self.constants.always, self.constants.likely = always, likely
        return tuple(writes.values())

    def _find_downloads(self) -> Iterator[tuple[Unit, int, str]]:
        """Yield (unit, line, words) of calls that create unknown paths; words are empty if these may be any."""
        reached, fills = self.order.reached(), dict[object, bool]()
        for at, ((unit, node, *_), called) in enumerate(self._making):
            if (key := tuple(called) or node) not in fills:
                fills[key] = self._fills(unit, node, called)
            if (unit in reached or "." in unit[1]) and not fills[key]:  # a method may run although no call names it
                given = (*node.args, *keywords(node).values()) if at < _MOST_TEXTS else ()
                texts = [self.constants.text(each, unit) for each in given]
                words = f"{unit[0].stem} {unit[1]} {ast.unparse(node)} {texts}".lower()
                yield unit, node.lineno, "" if not given or calls.OF_MANY.search(words) else words

    def _is_downloaded(self, text: str, unit: Unit | None = None, line: int = 0) -> bool | None:
        """Return whether a download may create a path, with ``unit`` before a line; None if it creates only others."""
        ran = self.order.ran_before(unit, line, at_any_time=True) if unit and self._downloads else {}
        known = self.order.start in ran  # else a framework calls the unit at any time
        before = [words for at, begun, words in self._downloads if not known or begun <= ran.get(at, 0)]
        names = re.findall("[^/.]{3,}", text.lower()) if calls.OF_WEIGHTS.fullmatch(text) else [""]
        if any(not words or any(each in words for each in names) for words in before):
            return True
        return None if before else False  # the user supplies weights that no download mentions

    def _recreates(self, made: ParsedCall) -> bool:
        """Return whether a call recreates a folder that an earlier call always deletes, and which thus must exist."""
        module, folder = self._module_at(made.unit[0]), [ast.dump(each) for each in calls.made_paths(made.node)]
        module = module if calls.called_names(made.node)[1] in calls.FOLDERS else None
        before = module.flow.around(made.unit[1], made.node.lineno) if module else ()
        parts = (each.value for each in before if isinstance(each, ast.Expr) and each.lineno < made.node.lineno)
        removed = (each for each in parts if isinstance(each, ast.Call) and calls.called_names(each)[1] == "rmtree")
        return any([*map(ast.dump, each.args)] == folder and not each.keywords for each in removed)

    def _fills(self, unit: Unit, node: ast.Call, called: Sequence[Unit]) -> bool:
        """Return whether a download's arguments, or the calls in its function, show which paths it makes."""
        inner = [(each.unit, each.node) for each in self._noted if each.unit in called] if called else [(unit, node)]
        texts = [self.constants.text(path, where) for where, call in inner for path, *_ in calls.written_paths(call)]
        return bool(texts) and not any(each is None or calls.IN_ANY.search(each.text) for each in texts)

    def found(self) -> tuple[Write, ...]:
        """Return what is written outside of the working directory, by the path that comes first."""
        self.constants.always = always = self.order.reached(lambda _, run: run.always)
        writes: dict[str, Write] = {}
        for write in (*self._of_calls(always), *self._of_options()):
            known = writes.get(write.path)
            if known is None or (write.certain and not known.certain):
                writes[write.path] = write
        self._written = tuple(writes.values())
        return self._written

    def _of_calls(self, always: set[Unit]) -> Iterator[Write]:
        for unit, node, runs, _ in self._noted:
            if unit not in always and self._is_idle(unit):
                continue
            for target, folder, sure in calls.written_paths(node):
                found = self.constants.text(target, unit)
                if found is None or not (is_outside(found.text) or WINDOWS.match(found.text)):
                    continue
                certain = sure and runs and unit in always and found.sure and not found.anywhere
                certain = certain and not (self._moves and found.text.startswith(".."))
                flag = self.constants.by_option  # of the path's beginning, not of a name in it
                option = flag if flag and found.text.startswith(self.constants.given(flag)) else None
                source = self.constants.text(next(iter(node.args), None), unit)
                copies = bool(source and calls.called_names(node)[1] == "copytree" and source.text in (".", "./"))
                yield Write(found.text[:_LONGEST_PATH], folder, self._place(unit, node), certain, option, copies)
                break

    def _is_idle(self, unit: Unit) -> bool:
        """Return whether no code makes an object of the method's class."""
        owner = unit[1].rpartition(".")[0].rpartition(".")[2]
        code = module.source if (module := self._module_at(unit[0])) else b""
        registered = re.search(rb"\n@.*\nclass %s\b" % owner.encode(), code)
        return bool(owner) and owner not in self.seen and owner not in self.uses and not registered

    def _of_options(self) -> Iterator[Write]:
        """Yield options and settings whose names are of output folders; whether the script writes there is unknown."""
        for name, option in self.constants.options.items():
            found = self.constants.of_option(name) if calls.OUTPUT.search(name) else None
            if found is not None and is_outside(found.text):
                yield Write(found.text, True, self._place(option.unit, option.node), False)
        known = {flag for option in self.constants.options.values() for flag in option.flags}
        for flag, value in typed_options(self.constants.arguments):
            if flag not in known and calls.OUTPUT.search(flag.lstrip("-")) and is_outside(value):
                yield Write(value, True, flag, False)
        for key, value, where in self._settings:
            if calls.OUTPUT_KEYS.fullmatch(key.rpartition(".")[2]) and is_outside(value) and " " not in value:
                yield Write(value[:_LONGEST_PATH], True, where, False)
