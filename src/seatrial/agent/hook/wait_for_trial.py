"""A process of `seatrial tune` that was started ahead imports what it needs, and then waits to be told its trial.

It waits behind the last import of installed packages at the head of the file that imports torch, before any other line
of that file. What the hook does to torch is done when it has been told, as in a process that never waited.
"""

import ast
import builtins
import importlib.util
import json
import os
import sys
import time
from typing import Any, List, Optional

from .call_sites import CallSites

#: Between two looks whether there is a trial. The driver stops the process while another one is measured.
_LOOK_S = 0.01

#: Calls that may stand between imports: they change nothing but this process.
_HARMLESS_CALLS = (
    *("sys.path.append", "sys.path.insert", "warnings.filterwarnings", "warnings.simplefilter", "matplotlib.use"),
    *("os.environ.get", "os.environ.setdefault", "os.getenv", "logging.getLogger", "Path", "pathlib.Path"),
    *("os.path.abspath", "os.path.dirname", "os.path.join", "os.path.realpath", "os.getcwd", "str", "int"),
)


def begin(finder: Any, text: str) -> "WaitForTrial":
    """Prepare to wait.

    Args:
        finder: entry.py's, which keeps hooks back in ``finder.kept_back`` while that is a list.
        text: JSON of ``$SEATRIAL_HOLD``: ``folder`` of the trial's files, ``driver``: the process that starts trials.
    """
    asked = json.loads(text)
    return WaitForTrial(finder, str(asked["folder"]), int(asked["driver"]))


class WaitForTrial:
    """Where a process waits, and how it goes on.

    Attributes:
        frame_globals: of the file that imports torch, while it is still at its imports.
    """

    def __init__(self, finder: Any, folder: str, driver: int) -> None:
        self._finder, self._folder, self._driver = finder, folder, driver
        self._places = CallSites()
        self._import: Any = builtins.__import__
        self._ours: Any = self._importing
        self._body: List[Any] = []
        self.frame_globals: Any = None
        self.over = False
        builtins.__import__ = self._ours

    def torch_is_here(self) -> None:
        """torch has just been imported: wait here, or behind the imports that follow it."""
        frame: Any = sys._getframe(1)
        entry = frame.f_code.co_filename
        while frame is not None and (
            frame.f_code.co_filename == entry or not self._places.own(frame.f_code.co_filename)
        ):
            frame = frame.f_back
        if frame is None:  # a launcher: none of the script's own files has begun
            self._wait(clean=True)
        elif frame.f_code.co_name != "<module>" or not self._reads(frame):
            self._wait(clean=False)
        else:
            self.frame_globals = frame.f_globals  # _importing waits for its last import

    def _reads(self, frame: Any) -> bool:
        """Whether this file, and those that import it, did nothing but import so far."""
        try:
            with open(frame.f_code.co_filename, encoding="utf-8") as file:
                self._body = ast.parse(file.read()).body
        except (OSError, SyntaxError, ValueError):
            return False
        at, line = self._at(frame.f_lineno), frame.f_lineno
        imports = [each for each in ast.walk(self._body[at]) if isinstance(each, _IMPORTS)]
        if not any(each.lineno <= line <= (getattr(each, "end_lineno", None) or line) for each in imports):
            return False  # imported by name: no import statement of this file ends behind it
        return all(harmless(statement) for statement in self._body[:at])

    def _at(self, line: int) -> int:
        """Index of the statement that this line is of."""
        before = [index for index, statement in enumerate(self._body) if statement.lineno <= line]
        return before[-1] if before else 0

    def _importing(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:  # Python's own names
        try:
            module = self._import(name, globals, locals, fromlist, level)
        except BaseException:
            self._behind(sys._getframe(1), globals, "", None, ())
            raise
        self._behind(sys._getframe(1), globals, name, module, fromlist)
        return module

    def _behind(self, frame: Any, globals: Any, name: str, module: Any, fromlist: Any) -> None:
        if self.over or globals is not self.frame_globals:
            return
        try:
            waits = frame.f_code.co_name != "<module>" or self._is_last(self._at(frame.f_lineno), name)
            for each in fromlist or () if waits else ():  # a package may import what is asked of it only now
                getattr(module, each, None)
        except Exception:  # noqa: BLE001  whatever the file is made of
            waits = True
        if waits:
            self._wait(clean=True)

    def _is_last(self, at: int, name: str) -> bool:
        """Whether no import of an installed package follows the ``at``-th statement before anything else."""
        statement = self._body[at]
        if isinstance(statement, ast.Import) and name and statement.names[-1].name != name:
            return False
        for following in self._body[at + 1 :]:
            if isinstance(following, (ast.Import, ast.ImportFrom)):
                return not all(self._is_installed(top) for top in _tops(following))
            if not harmless(following) or any(isinstance(each, _IMPORTS) for each in ast.walk(following)):
                return True
        return True

    def _is_installed(self, top: Optional[str]) -> bool:
        if top is None:
            return False
        if top in sys.builtin_module_names or top in ("__future__",):
            return True
        spec = getattr(sys.modules.get(top), "__spec__", None) or importlib.util.find_spec(top)
        if spec is None:
            return False
        origin = spec.origin or next(iter(spec.submodule_search_locations or ()), None)
        return origin is not None and (origin in ("built-in", "frozen") or not self._places.own(str(origin)))

    def _wait(self, clean: bool) -> None:
        """Until the driver says what this process is to try; then do what was kept back."""
        if self.over:
            return
        self.over = True
        if builtins.__import__ is self._ours:
            builtins.__import__ = self._import
        path = os.path.join(self._folder, "release.json")
        _write(os.path.join(self._folder, "held.json"), {"clean": clean, "waits": not os.path.exists(path)})
        told = None
        while told is None:
            try:
                with open(path, encoding="utf-8") as file:
                    told = json.load(file)
            except FileNotFoundError:
                self._leave_if_alone()
                time.sleep(_LOOK_S)
        for variable, value in told.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value
        os.environ.pop("SEATRIAL_HOLD", None)
        kept_back, self._finder.kept_back = self._finder.kept_back, None
        for hook, module in kept_back or ():
            hook(module)

    def _leave_if_alone(self) -> None:
        """No trial will come when the driver is gone, or has taken the folder away."""
        try:
            os.kill(self._driver, 0)
            gone = not os.path.isdir(self._folder)
        except OSError:
            gone = True
        if gone:
            os._exit(0)


_IMPORTS = (ast.Import, ast.ImportFrom)


def harmless(statement: Any) -> bool:
    """Whether a statement may run beside another trial: imports, definitions, and what changes this process only."""
    if isinstance(statement, (*_IMPORTS, ast.FunctionDef, ast.AsyncFunctionDef, ast.Pass, ast.Raise)):
        return True
    if isinstance(statement, ast.ClassDef):
        return all(harmless(each) for each in statement.body)
    if isinstance(statement, (ast.If, ast.Try)):
        if not _calls_are_harmless(getattr(statement, "test", ast.Pass())):
            return False
        inner = [*statement.body, *statement.orelse, *getattr(statement, "finalbody", [])]
        inner += [each for handler in getattr(statement, "handlers", []) for each in handler.body]
        return all(harmless(each) for each in inner)
    if isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign)):
        return _calls_are_harmless(statement)
    return False


def _calls_are_harmless(tree: Any) -> bool:
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    return all(_dotted(each.func) in _HARMLESS_CALLS for each in calls)


def _dotted(function: Any) -> str:
    parts: List[str] = []
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    return ".".join([function.id, *reversed(parts)]) if isinstance(function, ast.Name) else ""


def _tops(statement: Any) -> List[Optional[str]]:
    """Packages that an import statement begins with; None for one beside the file."""
    if isinstance(statement, ast.ImportFrom):
        return [None if statement.level or not statement.module else statement.module.partition(".")[0]]
    return [alias.name.partition(".")[0] for alias in statement.names]


def _write(path: str, value: Any) -> None:
    try:
        with open(path + ".aside", "w", encoding="utf-8") as file:
            json.dump(value, file)
        os.replace(path + ".aside", path)
    except OSError:  # then nothing is started ahead
        pass
