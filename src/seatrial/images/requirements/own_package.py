"""``-e .`` of a requirements file: what the project itself depends on. Its modules are importable without pip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from seatrial.images.requirements.declared import Declared
from seatrial.images.requirements.pyproject import declared
from seatrial.images.requirements.requirements_files import canonical_name, parsed
from seatrial.images.requirements.setup_cfg import read_setup_cfg
from seatrial.images.requirements.setup_py import read_setup
from seatrial.system.project_files import is_there

#: Extras that name each other.
_MOST_STEPS = 100


def own_dependencies(project: Path, extras: Iterable[str]) -> tuple[Declared, tuple[str, ...]]:
    """(what the project's files list literally, with that of the extras; what is not there, as pip warns of it).

    Raises ConfigError: a file that cannot be read.
    """
    setups = list(_setups(project))
    name = next((setup.name for setup in setups if setup.name), None)
    found = [line for setup in setups for line in setup.lines]
    pending = [canonicalize_name(extra) for extra in extras]
    taken: set[str] = set()
    warnings = []
    while pending and len(taken) < _MOST_STEPS:
        extra = pending.pop(0)
        if extra in taken:
            continue
        taken.add(extra)
        listed = [setup.extras[extra] for setup in setups if setup.extras and extra in setup.extras]
        if not listed and setups and all(setup.extras is not None for setup in setups):
            have = sorted({each for setup in setups for each in setup.extras or ()})
            warnings.append(f"the project has no extra {extra!r}, only {', '.join(have) or 'none'}")
        for line in (line for lines in listed for line in lines):
            requirement = parsed(line)
            if requirement is not None and name and canonical_name(line) == name:  # project[other] in an extra
                pending += map(canonicalize_name, requirement.extras)
            else:
                found.append(line)
    python = SpecifierSet()
    for setup in setups:
        python &= setup.python
    return Declared(tuple(dict.fromkeys(found)), python), tuple(warnings)


def _setups(project: Path) -> Iterator[Declared]:
    """pyproject.toml's list, or else those of setup.py and setup.cfg, which setuptools reads together."""
    if is_there(file := project / "pyproject.toml") and (setup := declared(file)) is not None:
        yield setup
        return
    for name, read in (("setup.py", read_setup), ("setup.cfg", read_setup_cfg)):
        if is_there(file := project / name) and (setup := read(file)) is not None:
            yield setup
