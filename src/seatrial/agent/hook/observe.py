"""Put wrappers in the place of functions: the one way in which the hook looks at a framework.

A framework's file is a table of what it looks at, and the wrappers. What is looked at always is wrapped once; what is
looked at in windows is placed when a window opens, and everything is as it was when it closes.
"""

import functools
from typing import Any, Callable, List, Tuple

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


def is_compiling(torch: Any) -> Callable[[], bool]:
    """Return torch's function that is true while torch.compile traces; always false before torch 2.1."""
    return getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


class Placed:
    """Wrappers that are placed for a while: ``Placed()(owner, name, around)``, and ``restore``."""

    def __init__(self) -> None:
        self._placed: List[Tuple[Any, str, Any]] = []

    def __call__(self, owner: Any, name: str, around: Callable[[str, Any], Any]) -> None:
        own = vars(owner).get(name, _ABSENT)
        setattr(owner, name, around(name, getattr(owner, name)))
        self._placed.append((owner, name, own))

    def restore(self) -> None:
        """Give every owner its attribute back, the last one first."""
        while self._placed:
            owner, name, own = self._placed.pop()
            if own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
