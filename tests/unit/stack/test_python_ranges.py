"""The Pythons of a release, from the table."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from seatrial.stack.python_ranges import brought, known_range


@pytest.mark.parametrize(
    ("package", "specifier", "pythons"),
    [
        ("numpy", "==1.17.4", "3.5 3.8"),
        ("numpy", "==1.17.2", "3.5 3.7"),  # the row below it
        ("numpy", "==1.26.4", "3.9 3.12"),
        ("numpy", "<1.20", "3.3 3.9"),
        ("numpy", ">=2.5", "3.12 3.14"),
        ("numpy", ">=1.26.2", "3.9 3.14"),  # 1.26.4 is above the row of 1.26.0
        ("numpy", "~=1.17.0", "3.5 3.8"),
        ("numpy", "==99.1", None),
        ("numpy", ">=99", None),
        ("numpy", "==0.1", None),
        ("scipy", "==1.4.1", "3.5 3.8"),
        ("torchvision", "==0.5.0", "3.5 3.8"),
        ("unheard-of", "==1.0", None),
    ],
)
def test_ranges(package: str, specifier: str, pythons: str | None) -> None:
    found = known_range(package, SpecifierSet(specifier))
    assert (" ".join(map(str, found)) if found else None) == pythons


@pytest.mark.parametrize(
    ("specifier", "needs"),
    [
        ("==4.15.0", "tokenizers<0.11,>=0.10.1"),
        ("==4.15.*", "tokenizers<0.11,>=0.10.1"),
        ("==4.1.*", "tokenizers==0.9.4"),
        ("==2.5.*", None),  # 2.5.0 and 2.5.1 need different ones
        ("==4.*", None),
        ("==4.40.0", None),
        (">=4.1", None),
    ],
)
def test_what_a_pinned_release_brings(specifier: str, needs: str | None) -> None:
    assert brought("transformers", SpecifierSet(specifier)) == needs
    assert brought("numpy", SpecifierSet(specifier)) is None
