"""Our frozen classes are those of dataclasses, in all that code can see of them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from seatrial.system import records


def _classes(decorate: Callable[[type], type]) -> tuple[Any, Any]:
    @decorate
    class Point:
        """A point."""

        x: int
        name: str = "here"
        tags: dict[str, int] = dataclasses.field(default_factory=dict)
        secret: str = dataclasses.field(default="s", repr=False, compare=False)
        count: ClassVar[int] = 3

        @property
        def double(self) -> int:
            return self.x * 2

    @decorate
    class Odd:
        value: int

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "odd"

    return Point, Odd


OURS = _classes(lambda cls: records.dataclass(frozen=True)(cls))
THEIRS = _classes(dataclasses.dataclass(frozen=True))


@records.dataclass(frozen=True)
class Kept:
    """At the top of a module, for pickle."""

    a: tuple[int, ...]
    b: str | None = None


@pytest.mark.parametrize(("point", "odd"), [OURS, THEIRS])
def test_what_code_sees(point: Any, odd: Any) -> None:
    one = point(1, tags={})
    assert repr(one).endswith("Point(x=1, name='here', tags={})") and point.__match_args__[0] == "x"
    assert one == point(1, secret="other") and one != point(2) and one != 1
    assert dataclasses.replace(one, x=5).double == 10
    assert dataclasses.asdict(one) == {"x": 1, "name": "here", "tags": {}, "secret": "s"}
    assert [field.name for field in dataclasses.fields(point)] == ["x", "name", "tags", "secret"]
    assert copy.deepcopy(one) == one and copy.deepcopy(one).tags is not one.tags
    assert point.__dataclass_params__.frozen
    for name in ("x", "other"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(one, name, 2)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del one.x
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        point()
    with pytest.raises(TypeError, match="unhashable type: 'dict'"):
        hash(one)
    assert odd(1) == odd(2) and repr(odd(1)) == "odd" and hash(odd(1)) == hash(odd(1))


def test_equal_ones_are_one_key_and_come_back_from_pickle() -> None:
    assert len({Kept((1,)), Kept((1,)), Kept((2,))}) == 2
    assert pickle.loads(pickle.dumps(Kept((1,), "x"))) == Kept((1,), "x")


def test_it_is_inherited_from_as_any_is() -> None:
    @records.dataclass(frozen=True)
    class More(Kept):
        c: int = 0

    @dataclasses.dataclass(frozen=True)
    class Plain(Kept):
        c: int = 0

    for kind in (More, Plain):
        made = kind((1,), c=4)
        assert made != kind((1,), c=5) and repr(made).endswith("(a=(1,), b=None, c=4)")
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.c = 6  # type: ignore[misc]


def test_one_that_holds_itself_is_shown() -> None:
    held: list[object] = []
    held.append(Kept(held))  # type: ignore[arg-type]
    assert repr(held[0]) == "Kept(a=[...], b=None)"


def test_only_frozen_ones_are_made() -> None:
    with pytest.raises(TypeError, match="from dataclasses import dataclass"):
        records.dataclass(frozen=False)
