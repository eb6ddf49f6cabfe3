"""Put wrappers in the place of functions: the one way in which the hook looks at a framework.

A framework's file is a table of the functions that it looks at, and their wrappers. Some are wrapped once and for
all; others are wrapped when a window opens and restored when it closes.
"""

import functools
import os
import sys
from threading import get_ident
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

#: The owner had no attribute of its own under the name: it inherits one.
_ABSENT = object()


def wrap(owner: Any, name: str, around: Callable[[Any], Any]) -> Any:
    """Replace ``owner.name`` by ``around(original)``, with the original's name and text. Returns the original.

    Nothing is replaced, and None returned, without such an attribute.
    """
    original = getattr(owner, name, None)
    if original is None:
        return None
    wrapper = around(original)
    try:
        functools.update_wrapper(wrapper, original)
    except (AttributeError, TypeError):
        pass
    setattr(owner, name, wrapper)
    return original


def accompanied(
    act: Callable[[Any, Any, Any], None], failed: Callable[[Exception], None], *, before: bool = False
) -> Callable[[Any], Any]:
    """Return what ``wrap`` takes for a method whose calls ``act`` accompanies, with the object, args and kwargs.

    Args:
        failed: gets an error of ``act``, which is never the script's.
        before: it is called ahead of the method, else behind it.
    """

    def around(original: Any) -> Any:
        def wrapper(this: Any, *args: Any, **kwargs: Any) -> Any:
            if before:
                safely(failed, act, this, args, kwargs)
                return original(this, *args, **kwargs)
            result = original(this, *args, **kwargs)
            safely(failed, act, this, args, kwargs)
            return result

        return wrapper

    return around


def safely(failed: Callable[[Exception], None], act: Callable[..., None], *args: Any) -> None:
    """Call ``act``; an error goes to ``failed``."""
    try:
        act(*args)
    except Exception as error:  # noqa: BLE001  never the script's trouble
        failed(error)


def compiling_check(torch: Any) -> Callable[[], bool]:
    """Return a function that torch.compile's tracer takes for True, and that is False otherwise."""
    places = (("compiler", "is_dynamo_compiling"), ("compiler", "is_compiling"), ("_utils", "is_compiling"))
    for module, name in places:
        found = getattr(getattr(torch, module, None), name, None)
        if found is not None:
            return found  # type: ignore[no-any-return]
    return lambda: False


class Placed:
    """Wrappers that are placed for a while: ``Placed()(owner, name, around)``, and ``restore``.

    What a script puts in the place of a wrapper stays. A wrapper that it puts back later is taken out, and found out
    as one, when wrappers are placed again.
    """

    def __init__(self) -> None:
        self._placed: List[Tuple[Any, str, Any, Any]] = []
        self.originals: Dict[int, Tuple[Any, Any]] = {}  # id of a wrapper → the wrapper, and what was there before

    def __call__(self, owner: Any, name: str, around: Callable[[str, Any], Any]) -> None:
        self._take_out(owner, name)
        own = vars(owner).get(name, _ABSENT)
        wrapper = around(name, getattr(owner, name))
        setattr(owner, name, wrapper)
        self._placed.append((owner, name, wrapper, own))

    def restore(self) -> None:
        """Restore every owner's attribute, the last one first, unless it has another by now."""
        while self._placed:
            owner, name, wrapper, own = self._placed.pop()
            if vars(owner).get(name, _ABSENT) is wrapper:
                _put(owner, name, own)
            else:
                self.originals[id(wrapper)] = wrapper, own

    def take_out(self, owners: Iterable[Any]) -> None:
        """Restore the attributes in whose place a script has put a wrapper of ours since the last ``restore``."""
        for owner in owners if self.originals else ():
            for name in list(vars(owner)):
                self._take_out(owner, name)

    def _take_out(self, owner: Any, name: str) -> None:
        known = self.originals.get(id(vars(owner).get(name))) if self.originals else None
        if known is not None:
            _put(owner, name, known[1])


def _put(owner: Any, name: str, own: Any) -> None:
    if own is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, own)


#: Most events of one line in a step. Then the line is silent, and its time counts for the last line that still reports.
_MOST_EVENTS = 64
#: A function that spends this share of its time on the line that calls the next one leaves the steps to that one.
_NEARLY_ALL = 0.9
#: An identifier that no kind of tool has for itself. Source: docs.python.org, sys.monitoring.
_TOOL = 4
_LIBRARIES = (os.path.dirname(os.__file__) + os.sep, "<")


class ScriptLines:
    """Time by line of the script, calls included, in the function that makes the steps; from Python 3.12 on, if no
    other tool monitors.

    Args:
        clock: seconds of what is to be divided; None for now.
        passed_by: prefixes of the names of files that are not part of the script.

    Attributes:
        spent: a file and a line → seconds.
    """

    def __init__(self, clock: Callable[[], Optional[float]], passed_by: Tuple[str, ...]) -> None:
        self._clock, self._passed_by = clock, (*passed_by, *_LIBRARIES)
        self._monitoring: Any = getattr(sys, "monitoring", None)
        self.spent: Dict[Tuple[str, int], float] = {}
        self._functions: Dict[Any, SimpleNamespace] = {}  # those running now, by their code, outermost first
        self._at_s, self._steps, self._thread, self._open = 0.0, 0, 0, False

    def open(self) -> None:
        """Begin in the calling thread, with the functions that run there."""
        monitoring = self._monitoring
        self.spent = {}
        if monitoring is None or any(monitoring.get_tool(each) is not None for each in range(6)):
            return
        self._open, self._thread, self._at_s, self._steps = True, get_ident(), self._clock() or 0.0, 0
        self._functions = {}
        frame: Any = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if not name.startswith(self._passed_by) and "-packages" + os.sep not in name:  # the script's
                line = frame.f_lineno  # of the step, and of now; ``steps``: those in which it reached another line
                function = SimpleNamespace(steps_at=line, now=line, spent={}, events={}, steps=0)
                self._functions = {frame.f_code: function, **self._functions}
            frame = frame.f_back
        monitoring.use_tool_id(_TOOL, "seatrial")
        monitoring.register_callback(_TOOL, monitoring.events.LINE, self._line)
        self._look(monitoring.events.LINE)

    def step(self) -> None:
        """Look again at the lines that ran often, as a step has ended."""
        if self._open:
            self._passes()
            self._steps += 1
            for each in self._functions.values():
                each.steps += bool(each.events)
                each.events = {}
            self._look(0)
            self._look(self._monitoring.events.LINE)

    def close(self) -> None:
        """End, and find the function that makes the steps: the outermost that reaches other lines in most steps."""
        if not self._open:
            return
        self._passes()
        self._open = False
        self._look(0)
        self._monitoring.register_callback(_TOOL, self._monitoring.events.LINE, None)
        self._monitoring.free_tool_id(_TOOL)
        for code, each in self._functions.items():
            if each.steps * 2 >= self._steps and each.spent:
                self.spent = {(code.co_filename, line): spent for line, spent in each.spent.items()}
                if each.spent.get(each.steps_at, 0.0) < _NEARLY_ALL * sum(each.spent.values()):
                    break
        self._functions = {}

    def _look(self, events: int) -> None:
        for code in self._functions:
            self._monitoring.set_local_events(_TOOL, code, events)

    def _line(self, code: Any, number: int) -> Any:
        function = self._functions.get(code)
        if function is None or get_ident() != self._thread or not self._passes():
            return None
        function.now = number
        function.events[number] = events = function.events.get(number, 0) + 1
        return self._monitoring.DISABLE if events >= _MOST_EVENTS else None

    def _passes(self) -> bool:
        """Add the time since the last event to each function's line; return False while the clock has no time."""
        now_s = self._clock()
        if now_s is not None:
            for each in self._functions.values():
                each.spent[each.now] = each.spent.get(each.now, 0.0) + now_s - self._at_s
            self._at_s = now_s
        return now_s is not None
