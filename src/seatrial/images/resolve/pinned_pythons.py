"""The Pythons that all pins have wheels for, or why there is none: known before anything is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from seatrial.errors import ConfigError
from seatrial.images.requirements.pip_format import Requirements
from seatrial.images.resolve.pins import Pin, Way, pins_of, table_ways
from seatrial.stack.facts import Framework, wheels
from seatrial.stack.resolve import PYTHONS

#: Packages of the tables, whose Pythons are known without an index.
_FRAMEWORKS: Mapping[str, Framework] = {"torch": "torch", "tensorflow": "tensorflow", "jax": "jax"}
_OLDEST = min(PYTHONS, key=Version)

Ways = Mapping[str, Way | None]


@dataclass(frozen=True)
class PinnedPythons:
    """Hold the Pythons that the pins leave.

    Attributes:
        barred: Python → which pin it has no wheel of, as a sentence without an end.
    """

    barred: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    pins: tuple[Pin, ...] = ()


def pinned_pythons(
    found: Requirements, place: str, python: SpecifierSet, learned: Mapping[Pin, Ways] | None = None
) -> PinnedPythons:
    """Find the Pythons that have all pins.

    Args:
        place: the file that the requirements are from.
        python: the Pythons that the project admits.
        learned: answers of the resolver, which count before the tables.

    Raises ConfigError: a pin has no wheel for a Python that seatrial supports, or two pins have no Python in common.
    """
    pins = pins_of(found, place)
    known = {pin: (learned or {}).get(pin) or (_of_table(pin) if in_tables(pin) else table_ways(pin)) for pin in pins}
    table = {pin: found_ways for pin, found_ways in known.items() if found_ways is not None}
    for pin, found_ways in table.items():
        if not any(found_ways[python] for python in PYTHONS if pin.applies(python)):
            raise _nowhere(pin)
    candidates = [each for each in PYTHONS if python.contains(f"{each}.99")] or list(PYTHONS)
    costs = {each: _cost(each, table) for each in candidates}
    open_ones = [each for each in candidates if costs[each] is not None]
    if not open_ones:
        if len(candidates) == len(PYTHONS):
            raise _disjoint(table)
        return PinnedPythons(_barred(table, frozenset()), pins=pins)
    least = min(cost for cost in costs.values() if cost is not None)
    best = frozenset(each for each in open_ones if costs[each] == least)
    return PinnedPythons(_barred(table, best), tuple(_compiled(table, best)), pins)


def in_tables(pin: Pin) -> bool:
    framework = _FRAMEWORKS.get(pin.name)
    return framework is not None and any(pin.public.contains(wheel.version) for wheel in wheels(framework))


def _of_table(pin: Pin) -> Ways:
    rows = [wheel.python for wheel in wheels(_FRAMEWORKS[pin.name]) if pin.public.contains(wheel.version)]
    fits = {python for python in PYTHONS for low, high in rows if Version(low) <= Version(python) <= Version(high)}
    return {python: "wheel" if python in fits else None for python in PYTHONS}


def _cost(python: str, table: Mapping[Pin, Ways]) -> int | None:
    """Count the pins that pip would have to compile; None if one cannot be installed at all."""
    found = [each[python] for pin, each in table.items() if pin.applies(python)]
    return None if None in found else found.count("compiled")


def _barred(table: Mapping[Pin, Ways], best: frozenset[str]) -> dict[str, str]:
    barred = {}
    for python in PYTHONS:
        if python not in best:
            worse = (pin for pin, found in table.items() if pin.applies(python) and found[python] in (None, "compiled"))
            if (pin := next(worse, None)) is not None:
                barred[python] = f"{pin.shown} has wheels {_range(table[pin])}"
    return barred


def _range(found: Ways) -> str:
    """``up to Python 3.8``, ``from Python 3.12 on``, ``for Python 3.9 to 3.11``."""
    every = sorted(found, key=Version)
    have = [python for python in every if found[python] == "wheel"]
    if not have:
        return "for no Python that seatrial supports"
    if have[0] == every[0]:
        return f"up to Python {have[-1]}"
    if have[-1] == every[-1]:
        return f"from Python {have[0]} on"
    return f"for Python {have[0]} to {have[-1]}" if len(have) > 1 else f"for Python {have[0]} alone"


def _nowhere(pin: Pin) -> ConfigError:
    """No wheel for any Python that the agent runs on, and nothing to build."""
    image = "tensorflow/tensorflow:1.15.5-gpu" if pin.name == "tensorflow" else "IMAGE"
    return ConfigError(
        f"{pin.shown} has no wheel for Python {_OLDEST} or later, which seatrial needs",
        cause="its wheels are for older Pythons",
        run=f"change its version, or name an image that has it: seatrial run --image {image} …",
    )


def _disjoint(table: Mapping[Pin, Ways]) -> ConfigError:
    """Two pins that no Python has both of; where only three exclude each other, the first two are named."""
    limiting = [pin for pin, found in table.items() if None in found.values()]
    pairs = ((one, other) for place, one in enumerate(limiting) for other in limiting[place + 1 :])
    fallback = (limiting[0], limiting[-1])
    one, other = next(
        (pair for pair in pairs if not any(table[pair[0]][each] and table[pair[1]][each] for each in PYTHONS)), fallback
    )
    return ConfigError(
        f"{one.shown} has wheels {_range(table[one])}, and {other.shown} {_range(table[other])}: "
        "there is no Python for both",
        run=f"change one of the two versions in {one.place}",
    )


def _compiled(table: Mapping[Pin, Ways], best: frozenset[str]) -> Iterable[str]:
    for pin, found in table.items():
        if best and all(found[python] == "compiled" and pin.applies(python) for python in best):
            yield (
                f"{pin.shown} has wheels {_range(found)}, and other packages need another Python: "
                "pip compiles it, which often fails; change the version"
            )
