"""seatrial takes a training script into a GPU container and proves what the GPU did.

From Python: ``run``, ``start``, ``plan``, ``runs``, ``doctor``, ``Receipt`` and ``Run`` (seatrial.api; their types are
in ``__init__.pyi``). Nothing is imported until one of them is asked for: the command line starts in milliseconds, and
the agent runs on any Python >= 3.8.
"""

__version__ = "0.1.0"

_INTERFACE = ("Receipt", "Run", "doctor", "plan", "run", "runs", "start")


def __getattr__(name):  # type: ignore[no-untyped-def]
    """Of the Python interface, loaded when it is first asked for."""
    if name in _INTERFACE:
        import importlib

        try:
            return getattr(importlib.import_module("seatrial.api"), name)
        except ModuleNotFoundError as error:  # in images: the training library and the recipes alone
            raise AttributeError(f"seatrial.{name} is on the host side only: {error}") from error
    raise AttributeError(f"module 'seatrial' has no attribute {name!r}")


def __dir__():  # type: ignore[no-untyped-def]
    return sorted([*globals(), *_INTERFACE])
