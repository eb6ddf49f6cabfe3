"""importing: what a verb imports, loaded without what an import of so much would cost beside itself."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

#: Which plug-ins pydantic leaves out. Source: pydantic.dev/docs, "Pydantic plugins".
_PYDANTIC_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


@contextmanager
def importing() -> Iterator[None]:
    """While this holds, imports make objects that stay, among which a collector would only look in vain.

    pydantic would look through every installed package for plug-ins of its own, and load those of other programs.
    """
    ours = _PYDANTIC_PLUGINS not in os.environ
    if ours:
        os.environ[_PYDANTIC_PLUGINS] = "__all__"
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # not looked through at the exit, either
        gc.enable()
        if ours:
            del os.environ[_PYDANTIC_PLUGINS]  # the target's own pydantic is its own affair
