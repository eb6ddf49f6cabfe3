"""seatrial takes a training script into a GPU container and proves what the GPU did.

From Python: ``run``, ``start``, ``plan``, ``runs``, ``doctor``, ``Receipt`` and ``Run`` (seatrial.api; their types are
in ``__init__.pyi``). Nothing is imported before one of them is used: the command line starts in milliseconds, and
the agent runs on any Python >= 3.8.
"""

from types import ModuleType as _ModuleType

__version__ = "0.1.0"

_INTERFACE = ("Receipt", "Run", "doctor", "plan", "run", "runs", "start")


def __getattr__(name):  # type: ignore[no-untyped-def]
    """Return a part of the Python interface, loaded when it is first used."""
    if name in _INTERFACE:
        import importlib

        try:
            return getattr(importlib.import_module("seatrial.api"), name)
        except ModuleNotFoundError as error:  # in images: the training library and the recipes alone
            raise AttributeError(f"seatrial.{name} is on the host side only: {error}") from error
    raise AttributeError(f"module 'seatrial' has no attribute {name!r}")


def __dir__():  # type: ignore[no-untyped-def]
    return sorted([*globals(), *_INTERFACE])


class CallableModule(_ModuleType):
    """A package that can be called, so that ``seatrial.runs()`` and ``seatrial.runs.store`` both work.

    The Python interface has functions ``runs`` and ``doctor``; importing a module of the packages of these names puts
    the package in the function's place (docs/decisions.md, 0046).
    """

    def __call__(self, *arguments, **named):  # type: ignore[no-untyped-def]
        """Call the function of its name in ``seatrial.api``."""
        return __getattr__(self.__name__.rpartition(".")[2])(*arguments, **named)
