"""Strategies: files that are nearly right, and files that are nothing at all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

#: What a value of a file may become.
ODD_TEXTS = (
    "", " ", "\t", "\0", "é", "ﬀ", "\u2028", "\u202e", "\x1b[2J", "\r", "-", "--", "..", "/", "~", "#", "%", "*",
    "[", "]", "[z-a]", "{", "}", "(", ")", "\\", "'", '"', "'''", '"""', "$", "${", "${HOME}", "`", "&a", "*a",
    "!!python/name:os.system",
    "<<", "@", "==", "9" * 5000, "0x" + "f" * 5000, "1e999", "-1", "nan", "a" * 5000, "a." * 500,
    "../../etc/passwd", "/dev/zero",
    "((((((((((", "[" * 50, "[" * 2000, "{" * 2000, "(" * 2000, "- " * 2000, "a" + "+1" * 5000, " " * 5000, "\n" * 2000,
)  # fmt: skip

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 10**400, 0.5, 1e308, "", "x", "é", "\0", "9" * 5000, "a" * 5000, [], {}, [[]],
    [{}], {"": ""},
    {"a": {"b": {}}}, [None], ["x"], ["-r /etc/passwd"], ["a\n--index-url http://e"], "==", ">=1" * 500, "\x1b]0;x\x07",
)  # fmt: skip

#: YAML of nine lines that stands for 9⁹ texts.
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)

_WORD = re.compile(rb"[\w.+-]+|[^\w\s]|\s+")

raw_bytes = st.one_of(st.binary(max_size=400), st.text(max_size=400).map(lambda text: text.encode()))


@st.composite
def mutated(draw: st.DrawFn, sample: bytes) -> bytes:
    """The sample with one to four changes: lines dropped, doubled and swapped, words replaced, bytes cut and put in."""
    data = sample
    for _ in range(draw(st.integers(1, 4))):
        data = draw(st.sampled_from((_lines, _word, _cut, _insert, _swap)))(draw, data)
    return data


def nearly(*samples: str | bytes) -> st.SearchStrategy[bytes]:
    """One of the samples, changed; or, one time in eight, bytes of no kind."""
    whole = [sample.encode() if isinstance(sample, str) else sample for sample in samples]
    changed = st.sampled_from(whole).flatmap(mutated)
    return st.integers(0, 7).flatmap(lambda number: changed if number else raw_bytes)


def _lines(draw: st.DrawFn, data: bytes) -> bytes:
    lines = data.split(b"\n")
    place = draw(st.integers(0, len(lines) - 1))
    times = draw(st.sampled_from((0, 0, 2, 500)))
    return b"\n".join([*lines[:place], *[lines[place]] * times, *lines[place + 1 :]])[:400_000]


def _word(draw: st.DrawFn, data: bytes) -> bytes:
    words = list(_WORD.finditer(data))
    if not words:
        return _insert(draw, data)
    word = draw(st.sampled_from(words))
    return data[: word.start()] + draw(_filling()) + data[word.end() :]


def _cut(draw: st.DrawFn, data: bytes) -> bytes:
    start = draw(st.integers(0, len(data)))
    return data[:start] + data[start + draw(st.sampled_from((1, 3, 50, 100_000))) :]


def _insert(draw: st.DrawFn, data: bytes) -> bytes:
    place = draw(st.integers(0, len(data)))
    return data[:place] + draw(_filling()) + data[place:]


def _swap(draw: st.DrawFn, data: bytes) -> bytes:
    lines = data.split(b"\n")
    lines.insert(draw(st.integers(0, len(lines))), lines.pop(draw(st.integers(0, len(lines) - 1))))
    return b"\n".join(lines)


def _filling() -> st.SearchStrategy[bytes]:
    return st.one_of(
        st.sampled_from(ODD_TEXTS).map(lambda text: text.encode()),
        st.text(max_size=20).map(lambda text: text.encode()),
        st.binary(max_size=20),
    )


@st.composite
def changed_values(draw: st.DrawFn, sample: Any) -> Any:
    """The same structure with one to three values of another type, missing, or nested deep."""
    value = sample
    for _ in range(draw(st.integers(1, 3))):
        paths = list(_paths(value))
        if not paths:
            return value
        path = draw(st.sampled_from(paths))
        value = _replaced(value, path, draw(_odd_value()))
    return value


def _odd_value() -> st.SearchStrategy[Any]:
    deep = st.sampled_from((20, 90, 200)).map(_deep)
    return st.one_of(st.sampled_from(ODD_VALUES), st.text(max_size=12), deep)


def _deep(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if len(path) > 8:
        return
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*path, key)
        yield from _paths(inner, (*path, key))


def _replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _replaced(copy[path[0]], path[1:], new)
    return copy


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def as_toml(table: Any) -> bytes:
    """A table as TOML; the values inline. None has no spelling there and is left out."""
    if not isinstance(table, dict):
        return as_json(table)
    return "\n".join(f"{_key(key)} = {_inline(value)}" for key, value in table.items() if value is not None).encode()


def _key(key: Any) -> str:
    return json.dumps(str(key), ensure_ascii=False).replace("\x7f", "\\u007f")


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_inline(v)}" for key, v in value.items() if v is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(each) for each in value if each is not None) + "]"
    return _key(value) if isinstance(value, str) else json.dumps(value)
