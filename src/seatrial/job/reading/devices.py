"""The device that a script chooses on a machine with GPUs, and the lines, options and settings that decide it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from seatrial.errors import fallback
from seatrial.job.reading.constants import ANY, member
from seatrial.job.reading.flow import statements
from seatrial.job.reading.modules import STANDARD_MODULES
from seatrial.job.reading.parsed_modules import Module, Unit
from seatrial.job.reading.signs import SETS, TABLES, dotted, keywords, last_name, literal
from seatrial.job.reading.values import Evaluation, is_flag

_MOST_SINKS, _LONGEST = 300, 60
#: Code that gives options a value after they are parsed.
_REWRITES = re.compile(rb"\bsetattr\(|\.__dict__|\bvars\(\w+\)(\.update|\[)|\bexec\(")
#: Modules without these words choose no device.
_TELLING = re.compile(rb"cuda|gpu|device|accelerator|use_cpu|\.to\(|jax|Trainer\(|instantiate\(|LightningCLI", re.I)

#: Arguments of well-known trainers that choose the device → how they do.
_OF_TRAINERS: dict[str, str] = TABLES["trainers"]
#: Variables that choose the GPUs which a framework finds.
_VISIBLE, _PLATFORMS = "CUDA_VISIBLE_DEVICES", {"JAX_PLATFORMS", "JAX_PLATFORM_NAME", "ACCELERATE_USE_CPU"}
#: Package of boosted trees → its classes and functions, the argument without which they compute on the CPU.
_BOOSTERS: dict[str, list[str]] = TABLES["boosters"]
_ON_GPU = re.compile(r"(cuda|gpu)(:\d+|_hist)?", re.I).fullmatch
#: Options that turn a GPU on, or name it by its number.
_OF_A_GPU = re.compile("(use_)?(gpu|cuda)s?").fullmatch
#: Losses and new tensors, which move no model.
_BESIDES = r"(?i)criterion\w*|\w*loss(es)?(_f(n|unc(tion)?))?|\w*tensor|zeros|ones|full|randn?"
#: Devices of torch and Lightning that no NVIDIA GPU is → whose they are. Source: docs.pytorch.org, "torch.device".
_OTHERS = {"hpu": "Intel's Gaudi", "mps": "Apple's GPU", "npu": "Huawei's NPU", "tpu": "Google's", "xpu": "Intel's GPU"}
#: An option with its value, or with the words behind it, among words joined by NUL.
_WITH_VALUES = re.compile(r"(?<![^\0])([-+]{0,2}[A-Za-z][\w.-]*)(?:=([^\0]+)|\0((?:[^-=\0][^=\0]*(?:\0|$))+))")
#: Options that name GPUs by their numbers, where one number alone may also count them; and that count them.
_NUMBERED = re.compile(r"((?:cuda_)?visible_devices|(?:gpu|device|cuda)_?(?:ids?|list|map))|(?:gpu|device|cuda)s?")
_COUNTED = re.compile(r"(n|num)_?(gpus?|devices)(_per_node)?|gpus?_(num|count|per_node)|(tensor_parallel|tp)_size")
_GPUS = re.compile(f"{_NUMBERED.pattern}|{_COUNTED.pattern}")
#: Packages that move models and batches to the GPU by themselves, and those that move nothing; all that can use one.
_MOVERS, _PLAIN, _LIBRARIES = SETS["movers"], SETS["plain"], SETS["movers"] | SETS["libraries"]
#: Calls that take GPUs by number in keywords of these names.
_TAKES_GPUS = re.compile(r"\w*(Trainer|DataParallel|LLM|Fabric)|train|fit|from_pretrained|instantiate|LightningCLI")
_OF_GPUS = {"auto", "cuda", "ddp", "dp", "gpu"}
_CHOOSE = {"device", "device_type", "task_type", "tree_method", "gpu_id"}
#: Libraries that use a GPU by themselves → a line that prints the devices they found.
_ASK: dict[str, str] = TABLES["finds"]


class Reason(NamedTuple):
    """A sentence with its place, and what to change.

    Attributes:
        weight: the lower, the more it explains.
        device: ``cpu``, ``mps``, ``cuda:3``, or after ``visible:`` the GPUs that the script shows to a framework; ""
            for a hint, shown only after a run that stayed on the CPU.
        certain: whether it holds in every run with these arguments.
    """

    weight: int
    words: str
    change: str
    device: str = "cpu"
    certain: bool = False


class _Sink(NamedTuple):
    """An expression that chooses a device, its devices, and the options, settings and line that they come from."""

    place: str
    node: ast.expr
    unit: Unit
    devices: frozenset[str] | None
    options: tuple[str, ...]
    settings: tuple[str, ...]
    origin: tuple[str, str]
    kind: str = "move"


class Caution(NamedTuple):
    """Hold a sentence about a run with GPUs, and what to change; ``refused`` if certain."""

    words: str
    change: str
    refused: bool


def verdicts(reasons: Sequence[Reason], gpus: int, machine: int | None = None) -> Iterator[Caution]:
    """Yield what a script's choice of a device means for a run with ``gpus`` GPUs, numbered from 0.

    ``machine``: number of its GPUs, to which CUDA_VISIBLE_DEVICES refers without a container.
    """
    chooses = machine is not None and any(each.device.startswith("visible") for each in reasons)
    for reason in reasons:
        kind, _, value = reason.device.partition(":")
        owner, count = ("machine", machine) if kind == "visible" and machine is not None else ("run", gpus)
        numbers = value.replace(" ", "").split(",")
        valid = [each.isdecimal() and int(each) < count for each in numbers]
        there = numbers[: [*valid, False].index(False)]
        more = "seatrial run … --gpus "
        have = f"the {owner} has {count} GPU{'s' * (count > 1)}, numbered from 0"
        if kind == "visible" and not there and not value.startswith(("GPU-", "MIG-")):
            yield Caution(f"{reason.words}, which hides every GPU: {have}", reason.change, reason.certain)
        elif kind == "visible" and len(set(there)) < gpus and there == numbers:
            yield Caution(f"{reason.words}, so the script sees {len(set(there))}: {have}", reason.change, False)
        elif kind == "visible" and there and there != numbers:
            yield Caution(f"{reason.words}, but {have}", f"{more}{len(numbers)}", False)
        elif kind == "cuda" and not there and not chooses:
            yield Caution(f"{reason.words}, but {have}", reason.change or f"{more}{int(value) + 1}", False)
        elif kind in _OTHERS:
            yield Caution(f"{reason.words}, {_OTHERS[kind]}: the run has NVIDIA's alone", reason.change, reason.certain)
        elif kind == "cpu":
            runs = "runs" if reason.certain else "may run"
            yield Caution(f"the script {runs} on the CPU: {reason.words}", reason.change, reason.certain)


class Devices(Evaluation):
    """Collects the expressions that choose devices, with their values on a machine with GPUs."""

    #: Whether the code sets the options' values, so that the command line cannot change them.
    is_fixed = False

    @fallback((), on=RecursionError)  # hundreds of elif
    def found(self, units: Iterable[Unit], imported: set[str]) -> tuple[Reason, ...]:
        """Return what keeps the script from its GPUs, strongest first. ``units``: the parts that run, in order."""
        modules = {path: module for path, _ in units if (module := self.module_at(path)) is not None}
        self._choosing: dict[int, bool] = {}
        self.is_open = False  # a setattr sets what is not seen
        telling = {path for path, module in modules.items() if _TELLING.search(module.source)}
        self.units = [unit for unit in units if unit[0] in telling]
        handlers: list[tuple[Unit, ast.ExceptHandler]] = []
        for unit in self.units:
            for node in statements(self.body(unit)):
                if isinstance(node, ast.ExceptHandler):
                    handlers.append((unit, node))
                elif isinstance(getattr(node, "ctx", None), ast.Store) and (key := member(node)):
                    self.setters.setdefault(key, []).append(unit)
                    if not isinstance(node, ast.Attribute) or last_name(node.value) != "self":
                        self.outside.add(key if isinstance(node, ast.Attribute) else f"[{key}]")
                elif isinstance(node, ast.Call) and dotted(node.func) == "setattr":
                    self.is_open = True
        self.runs = {id(call.node): unit for unit, calls in self.constants.callers.items() for call in calls}
        sinks = list(self._sinks())
        found = [*self._hidden(sinks, imported), *self._on_cpu(sinks, imported), *self._beyond(sinks)]
        found += [*_typed(self.arguments), *self._fallbacks(handlers), *self._boosters(units, imported)]
        found += _nowhere(self.start.name, [*modules.values()], imported)
        return tuple({each.words: each for each in sorted(found, key=lambda each: each.weight)}.values())

    def _hidden(self, sinks: list[_Sink], imported: set[str]) -> Iterator[Reason]:
        visible = [sink for sink in sinks if sink.kind.startswith("visible:") and not self._guarded(sink)]
        for sink in visible:
            [shown, *others] = sorted(sink.devices or {ANY})
            name, _, value = shown.partition("=")
            certain = not others and len(visible) == 1
            if name == _VISIBLE and ANY not in value:
                change = self._change(sink, "0") or f"remove {sink.place}: the script then sees exactly the run's GPUs"
                yield Reason(0, f'{sink.place} sets {_VISIBLE} to "{value}"', change, f"visible:{value}", certain)
            elif value in ("cpu", "true", "1") or (value == "[]" and imported.isdisjoint(("jax", "torch"))):
                words = f"calls {name}([])" if value == "[]" else f"sets {name} to {value!r}"
                yield Reason(0, f"{sink.place} {words}", f"remove {sink.place}", "visible:", certain)

    def _guarded(self, sink: _Sink) -> bool:
        """Return whether an unknown condition around an expression decides which of its values is used."""
        nodes = (each for node in self.body(sink.unit) for each in ast.walk(node))
        around = [each for each in nodes if isinstance(each, ast.If | ast.IfExp)]
        tests = [each.test for each in around if any(inner is sink.node for inner in ast.walk(each))]
        own = set() if sink.kind.startswith("count:") else _names(sink.node)  # empty for a constant
        shared = (each for each in tests if not own or not own.isdisjoint(_names(each)))
        return any(len({bool(value) for value in self.values(each, sink.unit) or ()}) != 1 for each in shared)

    def _on_cpu(self, sinks: list[_Sink], imported: set[str]) -> Iterator[Reason]:
        moves = [sink for sink in sinks if ":" not in sink.kind]
        of_gpus = [each for each in self.arguments if re.search("cuda|gpu", each, re.I)]  # no option's may choose one
        flags = self.constants.options.values()
        may_choose = any(not any(is_flag(word.partition("=")[0], each) for each in flags) for word in of_gpus)
        named = (name for name, each in self.constants.options.items() if _OF_A_GPU(name) and self.typed(each))
        given = ((each, name[-1] == "s" or name[:4] == "use_") for name in named for each in self.of_option(name) or ())
        may_choose |= any(type(value) is int and value >= off_at_0 for value, off_at_0 in given)
        if _reaches_gpu(moves) or len(sinks) == _MOST_SINKS or may_choose:
            return
        known = all(sink.devices is not None for sink in moves) and not self.is_open
        sources = [module.source for path, _ in self.units if (module := self.module_at(path))]
        known = known and not any(map(_REWRITES.search, sources))
        plain = known and imported - STANDARD_MODULES <= _PLAIN
        for name in filter(self._is_parsed, self.constants.options):
            if re.search("cuda|gpu|accel|device|cpu", name) or any(name in sink.options for sink in moves):
                change = self._try_option(name, lambda: _reaches_gpu(self._sinks()))
                kept = self.of_option(name) or frozenset()  # none of a default that is computed: nothing is said of it
                if known and change is None and _OF_A_GPU(name) and not imported & _MOVERS:
                    change = self._try_option(name, partial(self._is_on, name, numbered=-1 in kept))
                if kept and (change is not None or kept <= {"cpu", -1, False}):
                    hint = "cpu" if change else ""
                    certain = bool(change) and plain
                    yield Reason(1 if change else 4, self._as_it_is(name), change or "", hint, certain)
        chosen = [sink for sink in moves if sink.devices == frozenset(["cpu"]) and sink.kind != "back"]
        for sink in sorted(chosen, key=lambda each: (not each.settings, not isinstance(each.node, ast.Constant)))[:1]:
            decides = sink.kind in ("trainer", "off") or bool(sink.settings)
            words = next(iter(sink.settings), f"{sink.origin[0]} chooses the CPU: {sink.origin[1]}")
            wanted = "cuda" if sink.settings and not isinstance(sink.node, ast.Constant) else "the GPU"
            wanted = "true" if words.lower().endswith(" false") else wanted
            change = f"choose {wanted} in {words.partition(' ')[0]}"
            certain = (known and decides) or (plain and isinstance(sink.node, ast.Constant))  # a name may change
            trains = known and not imported & _MOVERS and any(b".backward(" in each for each in sources)
            yield Reason(2, words, change, "cpu" if decides or plain or trains else "", certain)

    def _is_on(self, name: str, *, numbered: bool) -> bool:
        """Return whether an option is on: the number of a GPU where a negative one is the CPU."""
        values = self.of_option(name) or ()
        return any(isinstance(each, int) and each >= 0 if numbered else each is True for each in values)

    def _beyond(self, sinks: list[_Sink]) -> Iterator[Reason]:
        several = len({each for sink in sinks for each in sink.devices or () if each.startswith("cuda:")}) > 1
        reaches = _reaches_gpu(sinks)  # then a device of another maker that is only made may be unused
        unclear = {each.place for each in sinks if each.devices is None and member(each.node) is None}
        trainers = (each for each in sinks if each.kind == "trainer")
        on_cpu = {each.place for each in trainers if {"cpu", *_OTHERS} & (each.devices or set())}
        for sink in sinks:
            [device, *others] = sink.devices or {""}
            place = next(iter(sink.settings), sink.origin[0]).partition(" ")[0]
            counts = sink.kind.startswith("count:") and sink.place not in on_cpu | unclear
            if counts and sink.unit in self.constants.always and not self._guarded(sink):
                name, where = sink.kind.removeprefix("count:"), place if sink.settings else sink.place
                yield from () if others else _numbered(f"{where} {name}={device}", name, device)
            if not others and re.fullmatch(r"cuda:[1-9]\d*", device):
                edit = "" if several else f"choose {device.partition(':')[0]}:0 in {place}"
                yield Reason(3, f"{sink.place} uses {device}", self._change(sink, "cuda:0", "0") or edit, device)
            usual = sink.unit in self.constants.always and not (reaches and sink.kind == "device")
            if not others and device in _OTHERS and usual and not self._guarded(sink):
                change = self._change(sink, "cuda", "gpu") or f"choose cuda in {place}"
                yield Reason(0, f"{sink.place} uses {device}", change, device)

    def _boosters(self, units: Iterable[Unit], imported: set[str]) -> Iterator[Reason]:
        if imported & _LIBRARIES - set(_BOOSTERS) or not imported & set(_BOOSTERS) or any(map(_ON_GPU, self.arguments)):
            return
        found: list[Reason] = []
        for unit in units:
            module = self.module_at(unit[0])
            for node in statements(self.body(unit)):
                named = node.arg if isinstance(node, ast.keyword) else literal(node)
                if named and (named in _CHOOSE or _ON_GPU(named)):
                    return
                if isinstance(node, ast.Call) and module is not None and (name := dotted(node.func)):
                    first, dot, rest = name.partition(".")
                    package, _, last = (module.names.get(first, first) + dot + rest).rpartition(".")
                    classes, argument, *instead = _BOOSTERS.get(package, ["$", ""])
                    if re.match(classes, last):
                        words = f"{module.shown}:{node.lineno} calls {name}(…) without {argument}"
                        certain = None not in keywords(node) and last != "train"
                        found.append(Reason(2, words, "".join(instead) or f"add {argument}", certain=certain))
        yield from found[:1]

    def _fallbacks(self, handlers: list[tuple[Unit, ast.ExceptHandler]]) -> Iterator[Reason]:
        """Yield the lines that choose the CPU after a caught error."""
        for unit, handler in handlers:
            module = self.module_at(unit[0])
            for node in (each for each in ast.walk(handler) if isinstance(each, ast.Assign | ast.Return)):
                devices = self._devices(node.value, unit, "") if node.value is not None else None
                if module is not None and devices == frozenset(["cpu"]):
                    words = f"{module.shown}:{node.lineno} falls back to the CPU after a caught error"
                    yield Reason(0, words, f"raise the error that {module.shown}:{handler.lineno} catches", "")

    def _is_parsed(self, name: str) -> bool:
        """Return False for an option of Click's whose function belongs to another program: nothing here calls it."""
        option = self.constants.options[name]
        module = self.module_at(option.unit[0])
        functions = module.flow.functions.items() if module and option.unit[0] != self.start else ()
        owners = [(option.unit[0], each) for each, function in functions if option.node in function.decorator_list]
        return not owners or any(map(self.constants.callers.get, owners))

    def _as_it_is(self, name: str) -> str:
        """Return ``--device is "cpu" by default (train.py:3)``."""
        option = self.constants.options[name]
        flag, module = max(option.flags, key=len), self.module_at(option.unit[0])
        [value, *_] = self.of_option(name) or [None]
        shown = "off" if value is False else "on" if value is True else f'"{value}"' if value is not None else "None"
        place = f"{module.shown if module else ''}:{option.node.lineno}"
        return f"{flag} is {shown}" + (" in this command" if self.typed(option) else f" by default ({place})")

    def _change(self, sink: _Sink, *values: str) -> str | None:
        """Return the option that makes it the first GPU; None if none does."""

        def is_first() -> bool:
            found = self._devices(sink.node, sink.unit, sink.kind) or frozenset()
            return not found.isdisjoint(("cuda", "cuda:0", f"{_VISIBLE}=0"))

        return next(filter(None, (self._try_option(name, is_first, *values) for name in sink.options)), None)

    def _try_option(self, name: str, is_chosen: Callable[[], bool], *values: str) -> str | None:
        """Return the words that give an option a value with which ``is_chosen`` is true; None if no value does."""
        option, given = self.constants.options[name], self.arguments
        flag, rest = max(option.flags, key=len), given
        if not flag.startswith("-") or self.is_fixed:
            return None
        takes_none = "action" in keywords(option.node) or "is_flag" in keywords(option.node)
        known = values or ("cuda", "0", "gpu", "true", *([] if self.typed(option) else ["1"]))
        tried = [[flag]] if takes_none else [[flag, value] for value in known]
        if self.typed(option):
            rest = [word for word in given if not is_flag(word.partition("=")[0], option)]
            tried = [[]] if takes_none else tried
        try:
            for words in tried if self.left > 0 else ():
                self.arguments = [*rest, *words]
                self.begin()
                if self.of_option(name) is not None and is_chosen():
                    return f"seatrial run … -- {' '.join(words)}" if words else f"remove {flag}"
        finally:
            self.arguments = given
            self.begin()
        return None

    def _sinks(self) -> Iterator[_Sink]:
        """Yield what chooses a device, at most a few hundred."""
        yield from islice((sink for unit in self.units for sink in self._of_unit(unit)), _MOST_SINKS)

    def _of_unit(self, unit: Unit) -> Iterator[_Sink]:
        module = self.module_at(unit[0])
        for statement in filter(self._may_choose, self.scope(unit).statements if module is not None else ()):
            for node in self.expressions(statement, unit):
                for expression, kind in _chosen(node):
                    if kind == "device=" and id(node) in self.runs:  # a function of the project
                        continue
                    self.options, self.settings, self.origin = {}, {}, None
                    devices = self._devices(expression, unit, kind)
                    around = ast.walk(statement) if isinstance(expression, ast.Constant) else ()
                    for each in around:
                        if isinstance(each, ast.IfExp) and expression in ast.walk(each):
                            self.values(each.test, unit)  # for the settings that it comes from
                    derived = kind == "device=" or member(expression) in ("device", "dtype")
                    if devices is None and (derived or dotted(expression).partition(".")[0] in ("torch", "np", "tf")):
                        continue
                    settings, owner = "".join(self.settings), member(getattr(expression, "value", expression))
                    exact = f"trainer.{member(expression)}" in self.constants.settings or "trainer/" in settings
                    if owner == "trainer" and settings and not exact:  # another object's
                        continue
                    line = self._line(expression, node, unit)
                    is_back = kind == "move" and isinstance(expression, ast.Constant) and devices == frozenset(["cpu"])
                    yield _Sink(
                        f"{module.shown}:{getattr(node, 'lineno', 1)}",  # type: ignore[union-attr]
                        *(expression, unit, devices, tuple(self.options), tuple(self.settings), line),
                        "back" if is_back else kind,
                    )

    def _may_choose(self, statement: ast.stmt) -> bool:
        """Return False for a statement that no arguments let choose a device; each statement is searched once."""
        if id(statement) not in self._choosing:
            self._choosing[id(statement)] = any(any(_chosen(node)) for node in ast.walk(statement))
        return self._choosing[id(statement)]

    def _line(self, expression: ast.expr, node: ast.AST, unit: Unit) -> tuple[str, str]:
        """Return the place and the text of the line that decides a device."""
        path, number = self.origin or (unit[0], getattr(expression, "lineno", getattr(node, "lineno", 1)))
        module = self.module_at(path)
        lines = module.source.decode("utf-8", "replace").splitlines() if module else []
        line = "".join(lines[number - 1 : number]).strip().rstrip(",")
        return f"{module.shown if module else path.name}:{number}", line[:_LONGEST]

    def _devices(self, node: ast.expr, unit: Unit, kind: str) -> frozenset[str] | None:
        values = self.values(node, unit)
        if values is None:
            return None
        if ":" in kind:
            return frozenset(f"{kind.partition(':')[2]}={each}" if kind[0] == "v" else str(each) for each in values)
        if kind == "off":
            return frozenset("cpu" if each else "cuda" for each in values)
        unset = {"move": "cpu", "cuda": "cuda"}.get(kind)
        devices = {device for each in values if (device := unset if each is None else _device(each))}
        return frozenset(devices) if len(devices) == len(values) else None


def _typed(words: Sequence[str]) -> Iterator[Reason]:
    """Yield the options that name GPUs by numbers, with the GPU of the highest number that all readings require."""
    for flag, own, rest in _WITH_VALUES.findall("\0".join(words)):
        name, value = flag.lstrip("-+").replace("-", "_").lower().rpartition(".")[2], (own or rest).replace("\0", " ")
        shown, kind = f"{flag}{'=' if own else ' '}{value}".strip(), _NUMBERED.fullmatch(name)
        if not (own or flag[0] == "-") or not (kind or _COUNTED.fullmatch(name)):
            continue
        if kind and (device := value.strip().partition(":")[0]) in _OTHERS:
            yield Reason(1, f"{shown} names {device}", f"give {flag} cuda", device)
        yield from _numbered(shown, name, value)


def _numbered(shown: str, name: str, value: str) -> Iterator[Reason]:
    """Yield the GPU of the highest number that a value of an option or a keyword requires in all readings."""
    kind, numbers = _NUMBERED.fullmatch(name), re.sub(r"cuda:|[\[\]()'\"\s]", "", ",".join(value.split()))
    top = max(map(int, numbers.split(","))) if re.fullmatch(r"\d{1,3}(,\d{1,3})*", numbers) else 0
    are_names = kind and (kind[1] or "," in numbers or "cuda:" in value or "[" in value)
    if (top := top if are_names else top - 1) > 0:
        count = f"{'needs at least' if kind and name[-1] != 's' else 'asks for'} {top + 1} GPUs"
        yield Reason(3, f"{shown} {f'names GPU {top}' if are_names else count}", "", f"cuda:{top}")


def _names(node: ast.AST) -> set[str]:
    return {ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute)}


def _reaches_gpu(sinks: Iterable[_Sink]) -> bool:
    devices = (each for sink in sinks if ":" not in sink.kind for each in sink.devices or ())
    return any(each != "cpu" and each not in _OTHERS for each in devices)


def _nowhere(script: str, modules: list[Module], imported: set[str]) -> Iterator[Reason]:
    """Yield what a script needs to use a GPU and lacks."""
    source = b"".join(module.source for module in modules)
    moves = imported & _MOVERS or re.search(rb"\bcuda|\.to\(|to_device|default_device", source)
    if not imported & _LIBRARIES:
        named = ", ".join(sorted(imported - STANDARD_MODULES)[:4]) or "only standard ones"
        words = f"{script} imports no library that uses a GPU ({named})"
        yield Reason(1, words, "import torch, JAX or CuPy, or request no GPU: seatrial run --gpus none", "")
    elif "torch" in imported and not moves:
        words = f'nothing in {script} moves the model or data to the GPU: no .to(…), .cuda() or "cuda"'
        change = 'model.to("cuda") before the optimizer is made, and each batch.to("cuda")'
        yield Reason(4, words, change, "cpu" if b".backward(" in source else "")
    elif "torch" not in imported and (library := next((each for each in _ASK if each in imported), None)):
        words = f"{script} uses {library}, which uses a GPU if it finds one: it found none"
        change = f"add {_ASK[library]} as line 1: it prints the devices found and why a GPU is missing"
        yield Reason(5, words, change, "")


def _device(value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"cuda:{value}" if value >= 0 else "cpu"
    text = str(value).lower().strip("/ ")
    if (kind := text.partition(":")[0]) in _OTHERS:
        return kind
    if isinstance(value, bool | None) or not re.fullmatch(r"(cpu|cuda|gpu)(:.*)?|auto|\d+", text):
        return None
    index = re.search(r"\d+$", text)
    return "cpu" if text.startswith("cpu") else f"cuda:{index[0]}" if index else "cuda"


def _chosen(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Yield (expression, kind) of each device in a node, and of each framework's variable as ``visible:NAME``."""
    pairs: list[tuple[ast.expr | None, ast.expr]] = []
    if isinstance(node, ast.Assign):
        targets = (each for each in node.targets if isinstance(each, ast.Subscript))
        pairs = [(each.slice, node.value) for each in targets if last_name(each.value) == "environ"]
    elif isinstance(node, ast.Call):
        last = last_name(node.func)
        if last in ("setdefault", "putenv", "update") and len(node.args) == 2:
            pairs = [(node.args[0], node.args[1])]
        elif last == "update" and "environ" in dotted(node.func):
            tables = [each for each in node.args if isinstance(each, ast.Dict)]
            pairs = [pair for each in tables for pair in zip(each.keys, each.values, strict=True)]
            pairs += [(ast.Constant(each.arg), each.value) for each in node.keywords]
        elif last == "set_visible_devices" and node.args and ast.unparse(node.args[0]) == "[]":
            yield ast.Constant("[]"), f"visible:{last}"
    for name, value in pairs:
        known = (literal(name) or "").upper()
        if known == _VISIBLE or known in _PLATFORMS:
            yield value, f"visible:{known}"
    if isinstance(node, ast.Call):
        yield from _choices(node)


def _choices(node: ast.Call) -> Iterator[tuple[ast.expr, str]]:
    """Yield (expression of a device, kind) for a call that takes one."""
    called, last = dotted(node.func), last_name(node.func) or getattr(node.func, "attr", "")
    moved = getattr(node.func, "value", node.func)
    name = last_name(moved.func if isinstance(moved, ast.Call) else moved)
    if last in ("cuda", "to") and re.fullmatch(_BESIDES, name):
        return
    given = keywords(node)
    tables = [given.get(None)] if last.endswith(("Trainer", "Fabric")) else []
    tables += [each for each in node.args[:1] if last == "instantiate" and member(each) == "trainer"]
    tables += [ast.Attribute(ast.Name("config"), "trainer")] * (last == "LightningCLI")
    for table in filter(None, tables):  # of a file: Trainer(**config["trainer"])
        for name in {"accelerator", "devices", "gpus"} - {*given}:
            given[name] = ast.copy_location(ast.Subscript(table, ast.Constant(name)), node)
    if _TAKES_GPUS.fullmatch(last) and literal(given.get("accelerator")) in (None, *_OF_GPUS):
        yield from ((value, f"count:{name}") for name, value in given.items() if name and _GPUS.fullmatch(name))
    first = node.args[0] if node.args else given.get("device")
    if isinstance(node.func, ast.Attribute) and last == "cuda" and called != "torch.cuda":
        yield first or ast.Constant("cuda"), "cuda"
    elif isinstance(node.func, ast.Attribute) and last == "to" and first is not None:
        yield first, "move"
    elif first and re.fullmatch(r"torch\.device|torch\.cuda\.set_device|(torch\.)?set_default_device", called):
        yield first, "device"
    elif last[:1].isupper() or last in ("pipeline", "train", "fit", "instantiate"):
        yield from ((given[name], kind) for name, kind in _OF_TRAINERS.items() if name in given)
    elif "device" in given:
        yield given["device"], "device="
