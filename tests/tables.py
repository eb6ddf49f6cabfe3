"""Read the cases of a test from the TOML file next to it: a table for each test or constant."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@lru_cache
def _read(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def constant(test_file: str, name: str) -> Any:
    """Return a table with its lists as tuples."""
    found = _frozen(_read(Path(test_file).with_suffix(".toml"))[name])
    return {key: _frozen(value) for key, value in found.items()} if isinstance(found, dict) else found


def cases(*keys: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Parametrise a test with the cases in the table of its name; a key that a case lacks is None, ``id`` its name."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        table = _read(Path(test.__code__.co_filename).with_suffix(".toml"))[test.__name__]
        found = [tuple(_frozen(case.get(key)) for key in keys) for case in table]
        values = [case[0] for case in found] if len(keys) == 1 else found
        marked: Callable[..., None] = pytest.mark.parametrize(
            keys if len(keys) > 1 else keys[0], values, ids=[case.get("id") for case in table]
        )(test)
        return marked

    return decorate
