"""JAX: what it tells of itself, and how often the script calls what it has compiled with ``jax.jit``.

Calls of compiled functions run in C++, and no Python is called for them; so what ``jax.jit`` gives to a line of the
script itself goes through a thin object that counts. What libraries compile for themselves is left alone. Most of such
functions are no training step, so no steps are made of them: the receipt has calls a second, the dispatch rate.

Source: jax.monitoring, and the names in jax/_src/dispatch.py.
"""

import functools
import os
import sys
import sysconfig
import types
from time import perf_counter
from typing import Any, Dict, List

from . import recorder as recorders

_COMPILED = "/jax/core/compile/backend_compile_duration"

#: Functions that the last line tells of, those with the most calls.
_MOST_FUNCTIONS = 3


def jax_is_here(monitoring: Any) -> None:
    """``monitoring`` is the module jax.monitoring, or the one behind it."""
    recorder = recorders.shared()
    seen: Dict[str, Any] = {"compiled": 0, "seconds": 0.0, "backends": []}

    def listen(event: str, seconds: float, **details: Any) -> None:
        if event == _COMPILED:
            seen["compiled"] += 1
            seen["seconds"] += seconds
            seen["backends"] = sorted(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None) or ())

    def facts() -> None:
        jax = sys.modules.get("jax")
        told: Dict[str, Any] = {"jax": str(getattr(jax, "__version__", ""))}
        told.update(jax_compiled=seen["compiled"], jax_compile_s=round(seen["seconds"], 3))
        if seen["backends"]:
            told["jax_backends"] = seen["backends"]
        calls = [each.told() for each in sorted(_CALLS.values(), key=Calls.order)[:_MOST_FUNCTIONS] if each.count]
        if calls:
            told["jax_calls"] = calls
        if "framework" not in recorder.facts:
            told.update(framework="jax", version=told["jax"])
        recorder.facts.update(told)

    try:
        monitoring.register_event_duration_secs_listener(listen)
        recorder.at_ends.append(facts)
    except Exception as error:  # noqa: BLE001  never the script's trouble
        recorder.stop(error)


class Calls:
    """How often one function of the script was called, and when first and last."""

    __slots__ = ("count", "first_s", "last_s", "name")

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0
        self.first_s = self.last_s = 0.0

    def order(self) -> int:
        return -self.count

    def told(self) -> Dict[str, Any]:
        """``seconds`` are from the end of the first call, which compiles, to the end of the last."""
        return {"name": self.name[:100], "calls": self.count, "seconds": round(self.last_s - self.first_s, 6)}


_CALLS: Dict[str, Calls] = {}


class Counted:
    """A compiled function, and a count of its calls. All else is the function's own."""

    def __init__(self, compiled: Any, calls: Calls) -> None:
        its_own = {"__doc__": getattr(compiled, "__doc__", None), "__module__": getattr(compiled, "__module__", None)}
        self.__dict__.update(its_own, _compiled=compiled, _calls=calls)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        result = self._compiled(*arguments, **named)
        calls = self._calls
        calls.last_s = perf_counter()
        calls.count += 1
        if calls.count == 1:
            calls.first_s = calls.last_s
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._compiled, name, value)

    def __reduce__(self) -> Any:
        return (_itself, (self._compiled,))

    def __repr__(self) -> str:
        return repr(self._compiled)

    # On the class, where runtime-checkable protocols look from Python 3.12: jax.export asks for both.

    def lower(self, *arguments: Any, **named: Any) -> Any:
        return self._compiled.lower(*arguments, **named)

    def trace(self, *arguments: Any, **named: Any) -> Any:
        return self._compiled.trace(*arguments, **named)


def _itself(compiled: Any) -> Any:
    """What a copy or a pickle of a counted function is: the function."""
    return compiled


def count_calls(jax: Any) -> None:
    """``jax`` has just been imported."""
    recorder = recorders.shared()
    try:
        original = jax.jit
        jax.jit = functools.wraps(original)(_counting(original, _foreign(jax)))
    except Exception as error:  # noqa: BLE001  never the script's trouble
        recorder.stop(error)


def _foreign(jax: Any) -> List[str]:
    """Folders whose files are no script's own."""
    paths = sysconfig.get_paths()
    its_own = os.path.dirname(jax.__file__) + os.sep  # wherever it is installed
    return [its_own, *(paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib") if paths.get(key))]


def _counting(original: Any, foreign: List[str]) -> Any:
    def jit(*arguments: Any, **named: Any) -> Any:
        made = original(*arguments, **named)
        file = sys._getframe(1).f_code.co_filename
        if "site-packages" in file or "dist-packages" in file or file.startswith(tuple(foreign)):
            return made
        if hasattr(made, "lower"):
            return _counted(made)
        if isinstance(made, (types.FunctionType, functools.partial)):  # jax.jit(static_argnums=0)
            return lambda function: _counted(made(function))
        return made

    return jit


def _counted(compiled: Any) -> Any:
    name = str(getattr(compiled, "__name__", "") or "function")
    return Counted(compiled, _CALLS.setdefault(name, Calls(name)))
