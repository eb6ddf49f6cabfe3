"""What of a module runs: the code that is reached for certain, and the code that may never be.

Code runs for certain at the top of a module, and in a function that such code calls, outside of any condition. What
follows an early ``return`` may never be reached.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from seatrial.job.reading.signs import texts_of

#: Errors by which a missing package shows, or a module that this Python cannot read.
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "SyntaxError", "Exception", "BaseException"}
_EXITS = {"exit", "_exit", "quit"}

#: Kinds of nodes that show nothing: a tree has one of them for every name.
_SILENT = frozenset(
    kind
    for family in (ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop)
    for kind in family.__subclasses__()
)

#: Kinds with nothing below them that could run.
_LEAVES = frozenset((ast.Name, ast.Constant, ast.Import, ast.ImportFrom, ast.Global, ast.Pass))

#: Nodes some of whose parts may not run, or hold statements.
_BRANCHING = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.BoolOp, ast.IfExp, ast.If, ast.Try),
    *(ast.Match, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith),
)

#: Statements, and parts of them, that hold statements.
_HOLDING = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.Try, ast.ExceptHandler, ast.Match),
    *(ast.match_case, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith),
)

#: Of a module's top, where folders for sys.path are looked for.
_MOST_STATEMENTS, _LONGEST_PATH = 200, 200

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_Block: TypeAlias = list[ast.stmt]
#: Whether an import names what is there in any case: a standard module, or one of the project's.
Provided: TypeAlias = Callable[[ast.Import | ast.ImportFrom], bool]


class Seen(NamedTuple):
    """A node of the source.

    Attributes:
        certain: it runs whenever its block does. needed: so, and no ``except ImportError`` stands around it.
    """

    node: ast.AST
    certain: bool
    needed: bool


class Flow:
    """One module: its top, its functions and its methods, each walked in the order in which it is written.

    Attributes:
        functions: name, or ``Class.name``, → the function; nested ones, too, where no other has the name.
        bases: class → the names of its bases.
    """

    def __init__(self, tree: ast.Module, *, main: bool, provided: Provided) -> None:
        self._tree = tree
        self._main = main
        self._provided = provided
        self.functions: dict[str, FunctionNode] = {}
        self.bases: dict[str, tuple[str, ...]] = {}
        for node in _compound(tree):
            if isinstance(node, ast.ClassDef):
                self.bases[node.name] = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
                for method in node.body:
                    if isinstance(method, FunctionNode):
                        self.functions.setdefault(f"{node.name}.{method.name}", method)
            elif isinstance(node, FunctionNode):
                self.functions.setdefault(node.name, node)

    def top(self) -> Iterator[Seen]:
        """What importing the module runs; of a script also what stands under ``if __name__ == "__main__"``."""
        return self._walk(self._tree.body)

    def inside(self, function: str) -> Iterator[Seen]:
        """What calling a function runs."""
        return self._walk(self.functions[function].body)

    def joined_texts(self) -> list[str]:
        """Text of what the module's top assigns, and of calls there: ``lib_path = join(here, "lib")`` → ``lib``."""
        simple = (node for node in self._tree.body[:_MOST_STATEMENTS] if isinstance(node, ast.Assign | ast.Expr))
        return [text for node in simple for text in texts_of(node.value) if len(text) < _LONGEST_PATH]

    def _walk(self, block: _Block) -> Iterator[Seen]:
        pending = _block(block, True, True)
        pending.reverse()
        while pending:  # no recursion: a chain of a thousand `elif` is one node inside the other
            seen = pending.pop()
            yield seen
            if type(seen.node) not in _LEAVES:
                pending.extend(reversed(self._children(seen)))

    def _children(self, seen: Seen) -> list[Seen]:
        node, certain, needed = seen
        if not isinstance(node, _BRANCHING):
            return [Seen(each, certain, needed) for each in _inside(node)]
        if isinstance(node, FunctionNode):
            return _each([*node.decorator_list, *node.args.defaults], certain, needed)
        if isinstance(node, ast.ClassDef):
            return _each([*node.decorator_list, *node.bases], certain, needed) + _block(node.body, certain, needed)
        if isinstance(node, ast.Lambda):
            return _each([node.body], False, False)
        if isinstance(node, ast.BoolOp):
            return _each(node.values[:1], certain, needed) + _each(node.values[1:], False, False)
        if isinstance(node, ast.IfExp):
            return _each([node.test], certain, needed) + _each([node.body, node.orelse], False, False)
        if isinstance(node, ast.If):
            return self._if(node, certain, needed)
        if isinstance(node, ast.Try):
            return self._try(node, certain, needed)
        if isinstance(node, ast.Match):
            bodies = [inner for case in node.cases for inner in _block(case.body, False, False)]
            return [*_each([node.subject], certain, needed), *bodies]
        if isinstance(node, ast.With) and any(_suppresses(item.context_expr) for item in node.items):
            needed = False
        head: list[ast.expr] = [node.iter] if isinstance(node, ast.For | ast.AsyncFor) else []
        head += [node.test] if isinstance(node, ast.While) else []
        head += [item.context_expr for item in node.items] if isinstance(node, ast.With | ast.AsyncWith) else []
        blocks = [node.body, getattr(node, "orelse", [])]
        return _each(head, certain, needed) + [each for block in blocks for each in _block(block, certain, needed)]

    def _if(self, node: ast.If, certain: bool, needed: bool) -> list[Seen]:
        if _is_main_check(node.test):
            return _block(node.body if self._main else node.orelse, certain, needed)
        if _ends_with(node.test, "TYPE_CHECKING"):
            return _block(node.orelse, certain, needed)
        test = [Seen(node.test, certain, needed)]
        return test + _block(node.body, False, False) + _block(node.orelse, False, False)

    def _try(self, node: ast.Try, certain: bool, needed: bool) -> list[Seen]:
        """Imports that may fail are optional; what stands in for them is needed, unless they are there in any case."""
        caught = [handler for handler in node.handlers if _catches_import_error(handler)]
        optional = any(not _gives_up(handler.body) for handler in caught)
        tried = [each for each in node.body if isinstance(each, ast.Import | ast.ImportFrom)]
        stands_in = optional and any(not self._provided(each) for each in tried)
        children = _block(node.body, certain, needed and not optional)
        for handler in node.handlers:
            children += _block(handler.body, False, needed and stands_in and handler in caught)
        return (
            children + _block(node.orelse, certain, needed and not optional) + _block(node.finalbody, certain, needed)
        )


def _compound(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement that holds others, in the order of ast.walk."""
    pending: deque[ast.AST] = deque([tree])
    while pending:
        node = pending.popleft()
        yield node
        pending.extend(each for each in ast.iter_child_nodes(node) if isinstance(each, _HOLDING))


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """As ast.iter_child_nodes, which takes twice as long, without those that show nothing."""
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            yield from (each for each in value if isinstance(each, ast.AST) and type(each) not in _SILENT)
        elif isinstance(value, ast.AST) and type(value) not in _SILENT:
            yield value


def _each(nodes: Sequence[ast.expr], certain: bool, needed: bool) -> list[Seen]:
    return [Seen(node, certain, needed) for node in nodes]


def _block(block: _Block, certain: bool, needed: bool) -> list[Seen]:
    """Its statements; those behind one that may return are not certain."""
    found = []
    for node in block:
        found.append(Seen(node, certain, needed))
        if certain and _may_return(node):
            certain = needed = False
    return found


def _may_return(node: ast.stmt) -> bool:
    """A compound statement with a ``return`` in it, those of functions inside it aside."""
    if not isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try | ast.Match):
        return False
    pending: list[ast.AST] = [node]
    while pending:
        inner = pending.pop()
        if isinstance(inner, ast.Return):
            return True
        if not isinstance(inner, FunctionNode | ast.ClassDef | ast.expr):
            pending.extend(ast.iter_child_nodes(inner))
    return False


def _is_main_check(test: ast.expr) -> bool:
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = [test.left, *test.comparators]
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides) and any(
        isinstance(side, ast.Constant) and side.value == "__main__" for side in sides
    )


def _ends_with(node: ast.expr, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(_ends_with(each, name) for each in types for name in _IMPORT_ERRORS)


def _suppresses(node: ast.expr) -> bool:
    """``with suppress(ImportError):``"""
    if not (isinstance(node, ast.Call) and _ends_with(node.func, "suppress")):
        return False
    return any(_ends_with(each, name) for each in node.args for name in _IMPORT_ERRORS)


def _gives_up(block: _Block) -> bool:
    """It ends in ``raise`` or an exit: what was tried is needed after all."""
    last = block[-1]
    if isinstance(last, ast.Raise):
        return True
    call = last.value if isinstance(last, ast.Expr) else None
    return isinstance(call, ast.Call) and any(_ends_with(call.func, name) for name in _EXITS)
