"""Packages that a list names as other systems have them: TensorFlow for GPUs, Windows and macOS is one on Linux.

``pip freeze`` on Windows also lists what is there alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from packaging.utils import canonicalize_name

from seatrial.images.requirements.requirements_files import Requirements, canonical_name, parsed

#: Packages that are empty by now, or have wheels for other systems or GPUs alone → what has the same on Linux. Where a
#: list pins several, the first of these decides.
#: Source: their pages on pypi.org.
_OTHER_NAMES = {
    "tensorflow-gpu": "tensorflow",
    "tensorflow-rocm": "tensorflow",
    "tensorflow-intel": "tensorflow",
    "tensorflow-macos": "tensorflow",
    "tensorflow-metal": None,
    "jax-metal": None,
    "pywin32": None,
    "pypiwin32": None,
    "pywinpty": None,
    "windows-curses": None,
    "winshell": None,
}

#: tensorflow-rocm 2.14.0.600 is TensorFlow 2.14.0 for ROCm 6.0.0.
_WITH_ROCM = re.compile(r"(\d+\.\d+\.\d+)\.\d+")


def for_linux(found: Requirements) -> tuple[Requirements, str | None]:
    """(the same as a container has it, what became of which; None: nothing)."""
    foreign = {line: _OTHER_NAMES[name] for line in found.lines if (name := _plain_name(line)) in _OTHER_NAMES}
    if not foreign:
        return found, None
    listed = {canonical_name(line) for line in found.lines}
    own_lines = {own: _merged(foreign, own) for own in foreign.values() if own and own not in listed}
    lines = [own_lines.get(foreign[line] or "", "") if line in foreign else line for line in found.lines]
    told = f"{' and '.join(foreign)}, for old releases or other systems than Linux, "
    named = sorted({own for own in foreign.values() if own})
    left_out = "are left out" if len(foreign) > 1 else "is left out"
    told += f"became {' and '.join(named)}" if named else left_out
    return replace(found, lines=tuple(dict.fromkeys(filter(None, lines)))), told


def _merged(foreign: Mapping[str, str | None], own: str) -> str:
    """One line in place of all that stand for this package: every extra, and the versions that count most."""
    asked = [each for line, name in foreign.items() if name == own and (each := parsed(line))]
    order = list(_OTHER_NAMES)
    first = min(asked, key=lambda each: (not each.specifier, order.index(canonicalize_name(each.name))))
    extras = sorted({extra for each in asked for extra in each.extras})
    versions = str(first.specifier)
    if canonicalize_name(first.name) == "tensorflow-rocm":
        versions = _WITH_ROCM.sub(r"\1", versions)
    return own + (f"[{','.join(extras)}]" if extras else "") + versions


def _plain_name(line: str) -> str | None:
    """The package's name; None where a marker, a hash or a URL hangs on the line, which then says itself when."""
    requirement = parsed(line)
    if requirement is None or requirement.url or requirement.marker or " --" in line:
        return None
    return canonical_name(line)
