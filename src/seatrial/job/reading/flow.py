"""The parts of a module that run: the code that is reached for certain, and the code that may never be.

Code runs for certain at the top, and in a function that such code calls, outside of any condition or early exit.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

from seatrial.job.reading.signs import dotted, last_name, literal
from seatrial.system.text import regex

#: Errors by which a missing package shows, or a module that this Python cannot read.
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "SyntaxError", "Exception", "BaseException"}
_EXITS = {"exit", "_exit", "quit"}
#: Calls that show a message, and do no part of a script's work.
_MESSAGES = {"critical", "echo", "error", "exception", "info", "print", "print_help", "print_usage", "warn", "warning"}

#: Kinds of nodes that show nothing: a tree has one of them for every name.
_OF_SILENT = (ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop)
_SILENT = frozenset(kind for family in _OF_SILENT for kind in family.__subclasses__())

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

#: Kinds with nothing below them that could run.
_LEAVES = frozenset((ast.Name, ast.Constant, ast.Import, ast.ImportFrom, ast.Global, ast.Pass))
_APART = _LEAVES | {ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda}  # nor in a function until its call

#: Nodes some of whose parts may not run, or hold statements.
_BRANCHING = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.BoolOp, ast.IfExp, ast.If, ast.Try),
    *(ast.Assert, ast.Match, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, *COMPREHENSIONS),
)

#: Statements, and parts of them, that hold statements, or rule a whole function.
_HOLDING = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.Try, ast.ExceptHandler, ast.Match),
    *(ast.match_case, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Global, ast.Nonlocal),
)

_COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)

#: Statements that bind a name or do nothing.
_BINDING = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Pass)

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
#: Decides if an import names a module that is there in any case: a standard one, or one of the project.
Provided: TypeAlias = Callable[[ast.Import | ast.ImportFrom], bool]
#: Conditions under which a training runs code, each with the value that it needs; None if others decide.
Tests: TypeAlias = tuple[tuple[ast.expr, bool], ...] | None
#: The condition that no error comes before, which has no known value.
CAUGHT: tuple[ast.expr, bool] = (ast.Set([]), True)


class RunNode(NamedTuple):
    """A node of the source.

    Attributes:
        certain: it runs whenever its block does. needed: so, and no ``except ImportError`` stands around it.
        always: certain, in no loop that may be empty, behind no exit, and nothing catches its errors.
        tests: of the branches that a training may pass by, ``CAUGHT`` if something catches its errors, () if it is
            likely to run; None if unknown.
    """

    node: ast.AST
    certain: bool
    needed: bool
    always: bool
    tests: Tests


class _Runs(NamedTuple):
    """Certainty with which the statements of a block run, in the terms of RunNode."""

    certain: bool
    needed: bool
    always: bool
    tests: Tests

    def behind(self, test: ast.expr, holds: bool) -> _Runs:
        """Return what is known of code that runs if a test holds, or does not; on a GPU, some tests always hold."""
        more = () if holds and _holds_on_gpus(test) else ((test, holds),)
        return _PERHAPS._replace(tests=None if self.tests is None else (*self.tests, *more))


_ALWAYS, _PERHAPS = _Runs(True, True, True, ()), _Runs(False, False, False, None)


class Flow:
    """One module: its top, its functions and its methods, each walked in the order in which it is written.

    Attributes:
        functions: name, or ``Class.name``, → the function; nested ones, too, where no other has the name.
        doubled: names of functions that are defined more than once.
        bases: class → the names of its bases. classes: line → the innermost class around it.
        globals: names that functions assign at the module's top, or in a function around them.
    """

    def __init__(self, tree: ast.Module, *, main: bool, provided: Provided) -> None:
        self._tree = tree
        future = [each for each in tree.body if isinstance(each, ast.ImportFrom) and each.module == "__future__"]
        self._postponed = any(each.name == "annotations" for node in future for each in node.names)
        self._main = main
        self._provided = provided
        self.functions: dict[str, FunctionNode] = {}
        self.doubled: set[str] = set()
        self._assigned: dict[str, dict[str, list[ast.expr | None]]] = {}
        self.bases: dict[str, tuple[str, ...]] = {}
        self.classes: dict[int, str] = {}
        self.globals: set[str] = set()
        for node in _compound(tree):
            if isinstance(node, ast.ClassDef):
                self.bases[node.name] = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
                self.classes |= dict.fromkeys(range(node.lineno, (node.end_lineno or 0) + 1), node.name)
                for method in node.body:
                    if isinstance(method, FunctionNode):
                        self._define(f"{node.name}.{method.name}", method)
            elif isinstance(node, FunctionNode):
                self._define(node.name, node)
            elif isinstance(node, ast.Global | ast.Nonlocal):
                self.globals |= {*node.names}

    def _define(self, name: str, function: FunctionNode) -> None:
        if self.functions.setdefault(name, function) is not function:
            self.doubled.add(name)

    def walk(self, function: str) -> Iterator[RunNode]:
        """Yield the nodes that a call of a function runs; for "", those of an import, and a script's main part."""
        return self._walk(self.body(function), unread=self._postponed or function != "")

    def body(self, function: str) -> Sequence[ast.stmt]:
        """Return the statements of a function, or with "" of the module's top."""
        return self.functions[function].body if function else self._tree.body

    def around(self, function: str, line: int) -> Iterator[ast.stmt]:
        """Yield the statements of the blocks around a function's line: if the line runs, those above it have run."""
        block = self.body(function)
        while block:
            yield from block
            inside = (each for each in block if each.lineno <= line <= (each.end_lineno or 0))
            parts = (getattr(each, name, []) for each in inside for name in ("body", "orelse", "finalbody", "handlers"))
            block = next((part for part in parts if part and part[0].lineno <= line <= part[-1].end_lineno), [])

    def assigned(self, function: str) -> dict[str, list[ast.expr | None]]:
        """Return name → what a function, or with "" the module's top, assigns to it; None if not one expression."""
        if function in self._assigned:
            return self._assigned[function]
        found = self._assigned.setdefault(function, {})
        plain: set[int] = set()
        for node in statements(self.body(function)):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    several = target.elts if isinstance(target, ast.Tuple) else [target]
                    for at, each in enumerate(several if ast.Starred not in map(type, several) else ()):
                        item = ast.copy_location(ast.Subscript(node.value, ast.Constant(at)), node.value)
                        if isinstance(each, ast.Name):
                            plain.add(id(each))
                            found.setdefault(each.id, []).append(node.value if each is target else item)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in plain:
                found.setdefault(node.id, []).append(None)
        return found

    def is_replaced(self, owner: str, name: str) -> bool:
        """Return whether an object's method may be another: ``self`` sets the name, or a class below defines it."""
        below = (each for each, bases in self.bases.items() if owner in bases)
        return any(f"{each}.{name}" in self.functions for each in below) or (owner, name) in self._set

    def attributes(self, owner: str, name: str) -> list[tuple[str, ast.expr]]:
        """Return (function, value) of what a class sets under a name, on itself or in its methods on ``self``."""
        return self._set.get((owner, name), [])

    def in_force(self, values: list[tuple[str, ast.expr]], at: str, line: int) -> list[tuple[str, ast.expr]]:
        """Return which value holds at a line: the last, if one method, or one that __init__ calls next, sets all."""
        own, methods = values, {each for each, _ in values}
        for start in [each for each in methods - {at} if len(methods) == 2 and each.endswith(".__init__")]:
            end, [other] = max(each.lineno for by, each in values if by == start), methods - {start}
            then = (each.value for each in self.body(start) if isinstance(each, ast.Expr) and each.lineno > end)
            called = dotted(getattr(next(then, None), "func", None) or ast.Name(""))
            owner, _, name = other.rpartition(".")
            if called == f"self.{name}" and not self.is_replaced(owner, name):
                own = [each for each in values if each[0] == other]
        known = [each for each in own if each[0] != at or (each[1].end_lineno or 0) < line] or own
        method, last = known[-1]
        if not method or not values[1:] or {each for each, _ in own} != {method}:
            return values
        if all(getattr(each, "value", None) is not last for each in self.body(method)):
            return values
        for each in self.body(method) if method != at else ():  # a method that is called in between reads another
            part = each if isinstance(each, _COMPOUND) else getattr(each, "value", None)
            calls = isinstance(part, ast.stmt) or (isinstance(part, ast.Call) and dotted(part.func)[:5] == "self.")
            if calls and getattr(own[0][1], "lineno", 0) < each.lineno < last.lineno:
                return values
        return [known[-1]]

    @cached_property
    def _set(self) -> dict[tuple[str, str], list[tuple[str, ast.expr]]]:
        found: dict[tuple[str, str], list[tuple[str, ast.expr]]] = {}
        for node in (each for each in _compound(self._tree) if isinstance(each, ast.ClassDef)):
            for each in node.body:
                if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None:
                    targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                    pairs = [("", target.id, each.value) for target in targets if isinstance(target, ast.Name)]
                else:
                    body = each.body if isinstance(each, FunctionNode) else []
                    sets = (one for one in statements(body) if isinstance(one, ast.Assign | ast.AugAssign))
                    parts = [(one, at) for one in sets for at in (getattr(one, "targets", None) or [one.target])]  # type: ignore[union-attr]
                    inner = [(one, at) for one, at in parts if isinstance(at, ast.Attribute)]
                    own = [(one, at.attr) for one, at in inner if last_name(at.value) == "self"]
                    method, unknown = f"{node.name}.{getattr(each, 'name', '')}", ast.Constant(None)
                    pairs = [(method, at, one.value if isinstance(one, ast.Assign) else unknown) for one, at in own]
                for function, name, value in pairs:
                    found.setdefault((node.name, name), []).append((function, value))
        return found

    def guarded(self, check: ast.If) -> Iterator[ast.Import | ast.ImportFrom]:
        """Yield the imports without which a check fails: ``yaml is None`` after ``except ImportError: yaml = None``."""
        names = {last_name(part) for part, holds in conditions(check) if holds}
        for node in (each for each in self._tree.body if names and isinstance(each, ast.Try)):
            handled = [each for handler in node.handlers for each in handler.body if isinstance(each, ast.Assign)]
            unset = [each for each in handled if isinstance(each.value, ast.Constant) and not each.value.value]
            if names & {last_name(target) for each in unset for target in each.targets}:
                yield from (each for each in node.body if isinstance(each, ast.Import | ast.ImportFrom))

    def _walk(self, block: Sequence[ast.stmt], *, unread: bool) -> Iterator[RunNode]:
        pending = _block(block, _ALWAYS)
        pending.reverse()
        while pending:  # no recursion: a chain of a thousand `elif` is one node inside the other
            seen = pending.pop()
            yield seen
            if type(seen.node) not in _LEAVES:
                pending.extend(reversed(self._children(seen, unread=unread)))

    def _children(self, seen: RunNode, *, unread: bool) -> list[RunNode]:
        node, runs = seen.node, _Runs(*seen[1:])
        if not isinstance(node, _BRANCHING):
            skipped = getattr(node, "annotation", None) if unread else None
            return _each([each for each in _inside(node) if each is not skipped], runs)
        if isinstance(node, FunctionNode):
            return _each([*node.decorator_list, *node.args.defaults], runs)
        if isinstance(node, ast.ClassDef):
            return _each([*node.decorator_list, *node.bases], runs) + _block(node.body, runs)
        if isinstance(node, COMPREHENSIONS):
            first = node.generators[0]  # whose list is read even if it is empty
            others = [each for each in (*_inside(node), *_inside(first)) if each not in (first, first.iter)]
            return _each([first.iter], runs) + _each(others, runs._replace(always=False))
        if isinstance(node, ast.Lambda):
            return _each([node.body], _PERHAPS)
        if isinstance(node, ast.BoolOp):
            return _each(node.values[:1], runs) + _each(node.values[1:], _PERHAPS)
        if isinstance(node, ast.IfExp):
            body, orelse = (runs.behind(node.test, taken) for taken in (True, False))
            return [*_each([node.test], runs), *_each([node.body], body), *_each([node.orelse], orelse)]
        if isinstance(node, ast.Assert):
            return _each([node.test], runs) + _each([node.msg] if node.msg else [], _PERHAPS)
        if isinstance(node, ast.If):
            return self._if(node, runs)
        if isinstance(node, ast.Try):
            return self._try(node, runs)
        if isinstance(node, ast.Match):
            bodies = [inner for case in node.cases for inner in _block(case.body, _PERHAPS)]
            return [*_each([node.subject], runs), *bodies]
        inner = runs
        if isinstance(node, ast.With) and any(_suppresses(item.context_expr) for item in node.items):
            inner = inner._replace(needed=False, always=False, tests=None)
        if isinstance(node, ast.For | ast.AsyncFor | ast.While) and not _loops_for_certain(node):
            inner = inner._replace(always=False)
        head: list[ast.expr] = [node.iter] if isinstance(node, ast.For | ast.AsyncFor) else []
        head += [node.test] if isinstance(node, ast.While) else []
        head += [item.context_expr for item in node.items] if isinstance(node, ast.With | ast.AsyncWith) else []
        blocks = [node.body, getattr(node, "orelse", [])]
        return _each(head, runs) + [each for block in blocks for each in _block(block, inner)]

    def _if(self, node: ast.If, runs: _Runs) -> list[RunNode]:
        if _is_main_check(node.test):
            return _block(node.body if self._main else node.orelse, runs)
        if last_name(node.test) == "TYPE_CHECKING" or (isinstance(node.test, ast.Constant) and not node.test.value):
            return _block(node.orelse, runs)
        both = _called(node.body) & _called(node.orelse)
        children = [RunNode(node.test, *runs)]
        pairs = ((node.orelse, True), (node.body, False))
        body, orelse = (runs if fails(other) else runs.behind(node.test, taken) for other, taken in pairs)
        for each in (*_block(node.body, body), *_block(node.orelse, orelse)):
            in_any_case = _called([each.node]) & both
            children.append(RunNode(each.node, *runs._replace(always=False, tests=each.tests)) if in_any_case else each)
        return children

    def _try(self, node: ast.Try, runs: _Runs) -> list[RunNode]:
        """List what runs in a ``try``: imports that may fail are optional; their stand-ins are needed if one may."""
        kinds = [(each, getattr(each.type, "elts", [each.type])) for each in node.handlers]
        caught = [each for each, types in kinds if types == [None] or _IMPORT_ERRORS & {*map(last_name, types)}]
        ends = [handler.body[-1:] for handler in caught]  # in raise or an exit: what was tried is needed after all
        optional = any(not isinstance(end[0], ast.Raise) and _EXITS.isdisjoint(_called(end)) for end in ends)
        tried = [each for each in node.body if isinstance(each, ast.Import | ast.ImportFrom)]
        stands_in = optional and any(not self._provided(each) for each in tried)
        inner = runs._replace(needed=runs.needed and not optional)
        if any(map(_goes_on, node.handlers)):
            inner = inner._replace(always=False, tests=None if runs.tests is None else (*runs.tests, CAUGHT))
        children = _block(node.body, inner)
        for handler in node.handlers:
            children += _block(handler.body, _PERHAPS._replace(needed=runs.needed and stands_in and handler in caught))
        return children + _block(node.orelse, inner) + _block(node.finalbody, runs)


def parameters(function: FunctionNode) -> list[str]:
    """Return the names of a function's parameters."""
    spec = function.args
    return [each.arg for each in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]


def default_of(name: str, function: FunctionNode) -> ast.expr | None:
    """Return a parameter's default."""
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    by_place = zip(reversed(positional), reversed(spec.defaults), strict=False)
    pairs = (*by_place, *zip(spec.kwonlyargs, spec.kw_defaults, strict=True))
    return next((value for each, value in pairs if each.arg == name), None)


def _compound(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield every statement that holds others, in the order of ast.walk."""
    pending: deque[ast.AST] = deque([tree])
    while pending:
        node = pending.popleft()
        yield node
        pending.extend(each for each in ast.iter_child_nodes(node) if isinstance(each, _HOLDING))


def statements(block: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield all that runs when a block does, as it is written: functions and classes in it, but not their insides."""
    pending = [*reversed(block)]
    while pending:
        node = pending.pop()
        yield node
        if type(node) not in _APART:
            pending.extend(reversed([*_inside(node)]))


def _called(block: Sequence[ast.AST]) -> set[str]:
    """Return the functions that a block's own statements call: ``init_process_group`` of ``dist.init_…("nccl")``."""
    calls = [node.value for node in block if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    return {last_name(call.func) for call in calls} - {""}


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield children as ast.iter_child_nodes does, in half the time, without those that show nothing."""
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            yield from (each for each in value if isinstance(each, ast.AST) and type(each) not in _SILENT)
        elif isinstance(value, ast.AST) and type(value) not in _SILENT:
            yield value


def _each(nodes: Sequence[ast.AST], runs: _Runs) -> list[RunNode]:
    return [RunNode(node, *runs) for node in nodes]


def _block(block: Sequence[ast.stmt], runs: _Runs) -> list[RunNode]:
    """List what a block runs; after one that may return none is certain, after one that may exit none ``always``."""
    found = []
    for node in block:
        found.append(RunNode(node, *runs))
        if _leaves(node):
            break
        if runs.certain and any(isinstance(inner, ast.Return) for inner, _ in _statements_in(node)):
            runs = _PERHAPS._replace(tests=runs.tests)
        elif runs.always and any(
            _exits(inner) or (outside and isinstance(inner, ast.Break | ast.Continue))
            for inner, outside in ((node, False), *_statements_in(node))
        ):
            runs = runs._replace(always=False)
    return found


def _leaves(node: ast.stmt) -> bool:
    """Return whether nothing behind a statement runs: it leaves the block, or each of its branches does."""
    while isinstance(node, ast.If) and node.orelse and _leaves(node.body[-1]):
        node = node.orelse[-1]
    return isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue)


def _exits(node: ast.AST) -> bool:
    """Recognise ``sys.exit()`` and ``exit(0)``; not ``sys.exit("no data")``, by which a run fails."""
    call = _exit_call(node)
    status = call.args[0] if call and call.args else None
    fails = isinstance(status, ast.JoinedStr) or (isinstance(status, ast.Constant) and status.value)
    return call is not None and not fails


def fails(block: Sequence[ast.stmt], *, main: bool = False) -> bool:
    """Recognise a block that no good run takes: it ends in ``raise ValueError(kind)`` or ``sys.exit("no data")``, or
    of a ``main`` function in a return or an exit behind messages alone."""
    ends = [each for each in block[-1:] if isinstance(each, ast.Raise) or _exit_call(each)]
    explains = main and bool(calls := _called(block[:-1])) and calls <= _MESSAGES
    returns = explains and isinstance(block[-1], ast.Return) and not block[-1].value
    return returns or (bool(ends) and (explains or not _exits(ends[0])))


def conditions(node: ast.AST | None, holds: bool = True) -> Iterator[tuple[ast.expr, bool]]:
    """Yield (part, whether it holds) of each part that decides a test, or a check without which a statement fails."""
    match node:
        case ast.Assert(test=test):
            yield from conditions(test)
        case ast.If(test=test) if fails(node.body):
            yield from conditions(test, False)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield from conditions(inner, not holds)
        case ast.BoolOp(op=op, values=parts) if isinstance(op, ast.And) == holds:
            for part in parts:
                yield from conditions(part, holds)
        case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]):
            yield left, isinstance(op, ast.IsNot) == holds
        case ast.Compare(left=left, ops=[ast.NotIn()], comparators=others):
            yield ast.Compare(left, [ast.In()], others), not holds
        case ast.expr():
            yield node, holds


def _goes_on(handler: ast.ExceptHandler) -> bool:
    """Return whether a run may go on after an error; no error of the code is a KeyboardInterrupt."""
    leaves = any(isinstance(inner, ast.Return | ast.Continue | ast.Break) for inner in ast.walk(handler))
    return last_name(handler.type or handler) != "KeyboardInterrupt" and (leaves or not fails(handler.body))


def _exit_call(node: ast.AST) -> ast.Call | None:
    call = node.value if isinstance(node, ast.Expr) else node.exc if isinstance(node, ast.Raise) else None
    return call if isinstance(call, ast.Call) and last_name(call.func) in {*_EXITS, "SystemExit"} else None


def _statements_in(node: ast.stmt) -> Iterator[tuple[ast.AST, bool]]:
    """Yield each node in a compound statement, functions aside, and whether no loop of its own is around that."""
    if not isinstance(node, _COMPOUND):
        return
    pending: list[tuple[ast.AST, bool]] = [(node, True)]
    while pending:
        inner, outside = pending.pop()
        yield inner, outside
        if not isinstance(inner, FunctionNode | ast.ClassDef | ast.expr):
            outside = outside and not isinstance(inner, ast.For | ast.AsyncFor | ast.While)
            pending.extend((each, outside) for each in ast.iter_child_nodes(inner))


def _loops_for_certain(node: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Recognise ``while True`` and ``for epoch in range(…)``: a training is started for an epoch at least."""
    if isinstance(node, ast.While):
        return isinstance(node.test, ast.Constant) and bool(node.test.value)
    called = {last_name(each.func) for each in ast.walk(node.iter) if isinstance(each, ast.Call)}
    return not called.isdisjoint(("range", "trange"))


def _is_main_check(test: ast.expr) -> bool:
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    return {literal(side) or dotted(side) for side in (test.left, *test.comparators)} == {"__name__", "__main__"}


def _holds_on_gpus(test: ast.expr) -> bool:
    """Recognise ``torch.cuda.is_available()`` and ``"LOCAL_RANK" in os.environ``."""
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In):
        return literal(test.left) in ("LOCAL_RANK", "RANK", "WORLD_SIZE")
    return isinstance(test, ast.Call) and dotted(test.func).endswith("cuda.is_available")


def _suppresses(node: ast.expr) -> bool:
    """Recognise ``suppress(ImportError)`` and ``pytest.raises(NameError)``."""
    if not (isinstance(node, ast.Call) and last_name(node.func) in ("suppress", "raises")):
        return False
    return not {*_IMPORT_ERRORS, "NameError"}.isdisjoint(map(last_name, node.args))


#: Calls and decorators that prepare names and train nothing: ``logger = logging.getLogger(__name__)``.
_PREPARES = regex(
    r"(logging|warnings|typing|collections|dataclasses|functools|(os|sys)\.(path|environ))\.[\w.]+|(os\.)?getenv|Path"
    r"|TypeVar|namedtuple|dataclass|(lru_)?cache|contextmanager|(torch\.)?(no_grad|inference_mode)|tf\.function|jax\.jit"
    r"|torch\.(device|manual_seed|cuda\.is_available)|(click|typer)\.\w+|(app|cli|main)\.(callback|command|group)"
)


def only_defines(body: Sequence[ast.stmt]) -> bool:
    """Return whether statements define functions or classes and run none. False for constants: computing them may be
    the script's work.
    """
    names = [node for node in body if not isinstance(node, ast.Import | ast.ImportFrom)]
    mains = [node for node in names if isinstance(node, ast.If) and _is_main_check(node.test)]
    names = [*(each for node in mains for each in node.body), *(node for node in names if node not in mains)]
    calls: list[ast.AST] = []
    for node in names:
        if isinstance(node, FunctionNode | ast.ClassDef):
            calls += node.decorator_list
        elif not isinstance(node, _BINDING):
            return False
        else:
            calls += [part for part in ast.walk(node) if isinstance(part, ast.Call | ast.Await)]
    prepares = all(_PREPARES.fullmatch(dotted(getattr(each, "func", each))) for each in calls)
    return prepares and any(isinstance(node, FunctionNode | ast.ClassDef) for node in names)
