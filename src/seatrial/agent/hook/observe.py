"""Put wrappers in the place of functions: the one way in which the hook looks at a framework.

A framework's file is a table of what it looks at, and the wrappers. What is looked at always is wrapped once; what is
looked at in windows is placed when a window opens, and everything is as it was when it closes.
"""

import functools
from typing import Any, Callable, Dict, Iterable, List, Tuple

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
    """Wrappers that are placed for a while: ``Placed()(owner, name, around)``, and ``restore``.

    What a script puts in the place of a wrapper stays. A wrapper that it puts back later is taken out, and found out
    as one, when wrappers are placed again.
    """

    def __init__(self) -> None:
        self._placed: List[Tuple[Any, str, Any, Any]] = []
        self._originals: Dict[int, Tuple[Any, Any]] = {}  # id of a wrapper → the wrapper, and what was there before

    def __call__(self, owner: Any, name: str, around: Callable[[str, Any], Any]) -> None:
        self._take_out(owner, name)
        own = vars(owner).get(name, _ABSENT)
        wrapper = around(name, getattr(owner, name))
        setattr(owner, name, wrapper)
        self._placed.append((owner, name, wrapper, own))

    def restore(self) -> None:
        """Give every owner its attribute back, the last one first, unless it has been given another."""
        while self._placed:
            owner, name, wrapper, own = self._placed.pop()
            if vars(owner).get(name, _ABSENT) is wrapper:
                _put(owner, name, own)
            else:
                self._originals[id(wrapper)] = wrapper, own

    def take_out(self, owners: Iterable[Any]) -> None:
        """Give back what a script has put back of ours since the last ``restore``."""
        for owner in owners if self._originals else ():
            for name in list(vars(owner)):
                self._take_out(owner, name)

    def _take_out(self, owner: Any, name: str) -> None:
        known = self._originals.get(id(vars(owner).get(name))) if self._originals else None
        if known is not None:
            _put(owner, name, known[1])


def _put(owner: Any, name: str, own: Any) -> None:
    if own is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, own)
