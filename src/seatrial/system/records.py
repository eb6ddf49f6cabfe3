"""``@dataclass(frozen=True)`` for what a verb imports: the same, made in a quarter of the time.

Before Python 3.13 dataclasses compiles six methods of each class, 0.6 ms; a plan imports eighty such classes, a tenth
of its CPU. Here ``__init__`` alone is compiled, by dataclasses itself, and the five others are shared by all classes.
Fields, ``replace``, ``asdict`` and type checks are those of dataclasses.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool) -> Callable[[Any], Any]:
        """Raises TypeError for a class that is not to be frozen: dataclasses makes those well enough."""
        if not frozen:
            raise TypeError("from dataclasses import dataclass: here classes are frozen")
        return _frozen


def _frozen(cls: Any) -> Any:
    if any(dataclasses.is_dataclass(base) for base in cls.__mro__[1:]):  # seldom; its methods are about more fields
        return dataclasses.dataclass(frozen=True)(cls)
    own = vars(cls)
    hashes_itself = own.get("__hash__") is not None
    made: Any = dataclasses.dataclass(repr=False, eq=False)(cls)
    for name, method in _SHARED.items():
        if name not in own or (name == "__hash__" and not hashes_itself):
            setattr(made, name, method)
    made.__dataclass_params__.frozen = True  # for whoever inherits from it, or asks
    return made


@functools.cache
def _shown(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls) if field.repr)


@functools.cache
def _compared(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls) if field.compare)


def _values(record: Any) -> tuple[Any, ...]:
    return tuple([getattr(record, name) for name in _compared(record.__class__)])


@recursive_repr()
def _repr(self: Any) -> str:
    fields = (f"{name}={getattr(self, name)!r}" for name in _shown(self.__class__))
    return f"{type(self).__qualname__}({', '.join(fields)})"


def _eq(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _set(self: Any, name: str, value: object) -> None:
    """Once each, by ``__init__``."""
    if name in self.__dict__ or name not in self.__dataclass_fields__:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    self.__dict__[name] = value


def _delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


_SHARED: dict[str, Any] = {
    "__repr__": _repr, "__eq__": _eq, "__hash__": _hash, "__setattr__": _set, "__delattr__": _delete,
}  # fmt: skip
