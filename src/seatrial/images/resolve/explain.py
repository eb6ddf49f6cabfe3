"""Explain what uv found of a project's lines: which of them are bounded, at odds with each other, or not judged."""

from __future__ import annotations

import re
from collections.abc import Mapping

from packaging.utils import canonicalize_name

from seatrial.images.requirements.pip_format import Needs, Requirements, parsed
from seatrial.images.resolve.framework import PACKAGES, is_for, public
from seatrial.images.resolve.resolver import Unreachable, Unsatisfiable
from seatrial.stack.facts import wheels
from seatrial.stack.resolve import PYTHONS


def requiring(cause: str) -> set[str]:
    """Return the packages that, by uv's explanation, require a release that others exclude: ``x==1 depends on y<2``."""
    return set(map(canonicalize_name, re.findall(r"([A-Za-z][\w.-]*\w)(?:==\S+)? depends? on", cause)))


def wrong_guess(answer: Unsatisfiable, needs: Needs) -> str | None:
    named = set(map(canonicalize_name, re.findall(r"[A-Za-z][\w.-]*\w", answer.cause)))
    return next((name for name in needs.guessed if name in {answer.no_package or "", *named}), None)


def bounded(found: Requirements) -> dict[str, str]:
    """Return canonical name → line of the packages with a version, known releases of frameworks left out."""
    bounded: dict[str, str] = {}
    for line in (*found.constraints, *found.lines):
        requirement = parsed(line)
        if requirement is None or requirement.url or not any(is_for(line, python) for python in PYTHONS):
            continue
        name = canonicalize_name(requirement.name)
        framework = PACKAGES.get(name)
        specifier, _ = public(requirement)
        if framework == name and any(specifier.contains(wheel.version) for wheel in wheels(framework)):
            continue
        if any(each.operator != "!=" for each in specifier):
            bounded[name] = line.partition(" --")[0]
    return bounded


def unchecked(answer: Unreachable, python: str, bounded: Mapping[str, str]) -> tuple[str, ...]:
    """Warn that nothing was judged; name the first lines that exclude newer releases, which an old Python may need."""
    lines = [line for line in bounded.values() if re.search(r"[=~]=|<", line.replace(">=", ""))]
    listed = ", ".join(lines[:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")
    unknown = f"whether Python {python} has {listed}" if lines else "which releases fit together"
    return (f"{answer.reason}: {unknown} was not checked",)
