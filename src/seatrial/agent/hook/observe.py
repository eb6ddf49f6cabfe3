"""Put wrappers in the place of functions: the one way in which the hook looks at a framework."""

import functools
from typing import Any, Callable


def wrap(owner: Any, name: str, around: Callable[[Any], Any]) -> None:
    """``owner.name`` becomes what ``around`` makes of it, with its name and text; where there is none, nothing."""
    original = getattr(owner, name, None)
    if original is None:
        return
    wrapper = around(original)
    try:
        functools.update_wrapper(wrapper, original)
    except (AttributeError, TypeError):
        pass
    setattr(owner, name, wrapper)
