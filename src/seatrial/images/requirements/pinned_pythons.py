"""The Pythons that all pins have wheels for, or why there is none: known before anything is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from seatrial.errors import ConfigError
from seatrial.images.requirements.imports import elsewhere
from seatrial.images.requirements.index_sources import OF_TORCH, index_sources, torch_sources
from seatrial.images.requirements.pins import Pin, Way, has_wheel, pins_of, size_bytes, ways
from seatrial.images.requirements.pip_format import Requirements
from seatrial.job.model import ImageOptions, Job
from seatrial.job.plan import Choice
from seatrial.stack.facts import Framework, wheels
from seatrial.stack.resolve import PYTHONS
from seatrial.system.package_index import MISSING_FRESH_S, Answer, PackageIndex, merge
from seatrial.system.package_page import IndexFile, releases_of_files
from seatrial.system.package_source import Source

#: Packages of the tables, whose Pythons are known without an index.
_FRAMEWORKS: Mapping[str, Framework] = {"torch": "torch", "tensorflow": "tensorflow", "jax": "jax"}
_OLDEST = min(PYTHONS, key=Version)

#: A wheel is unpacked to about three times its size (torch 2.13, numpy, scipy).
_UNPACKED = 3

_Ways = Mapping[str, Way | None]


@dataclass(frozen=True)
class PinnedPythons:
    """What the pins leave of the Pythons.

    Attributes:
        barred: Python → which pin it has no wheel of, as a sentence without an end.
    """

    barred: Mapping[str, str] = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()
    pins: tuple[Pin, ...] = ()
    answers: Mapping[str, Answer] = field(default_factory=dict)

    def packages_bytes(self, python: str) -> int:
        """Unpacked size of the pinned packages whose files' sizes are known, frameworks aside."""
        sizes = (size_bytes(pin, self.answers.get(pin.name), python) for pin in self.pins)
        return sum(size or 0 for size in sizes) * _UNPACKED


@dataclass(frozen=True)
class IndexDoor:
    """How indexes are asked: the cache and network, and the variables that pip reads."""

    index: PackageIndex
    environ: Mapping[str, str]


def index_door(job: Job, cache_folder: Path, environ: Mapping[str, str]) -> IndexDoor:
    """How this machine asks package indexes: with the authorities that the build gets, or that pip is told of."""
    bundle = job.project / job.image.ca_bundle if job.image.ca_bundle else environ.get("PIP_CERT")
    index = PackageIndex(cache_folder / "index", authorities=Path(bundle) if bundle else None)
    return IndexDoor(index, environ)


def pinned_pythons(
    found: Requirements,
    place: str,
    options: ImageOptions,
    door: IndexDoor | None,
    python: SpecifierSet,
    own_wheels: Iterable[str] = (),
) -> PinnedPythons:
    """Look the pins up and say which Pythons have them all.

    Args:
        place: the file that the requirements are from.
        own_wheels: names of wheels that the build gets besides.
        door: None: no index is asked, and the tables alone tell.
        python: what the project asks for.

    Raises ConfigError: no release of a pin exists, none has a wheel for a Python that seatrial supports, or two pins
    have no Python in common.
    """
    pins = pins_of(found, place)
    asked = [pin for pin in pins if pin.is_bounded and not _in_tables(pin)]
    answers, troubles = _ask(asked, found, options, door)
    for name, releases in releases_of_files(map(IndexFile, own_wheels), {pin.name for pin in asked}).items():
        merge(answers.setdefault(name, Answer(complete=False)).releases, releases)
    for pin in asked:
        _refuse_missing(pin, answers.get(pin.name))
    known = {pin: _of_table(pin) if _in_tables(pin) else ways(pin, answers.get(pin.name)) for pin in pins}
    table = {pin: found_ways for pin, found_ways in known.items() if found_ways is not None}
    for pin, found_ways in table.items():
        if not any(found_ways[python] for python in PYTHONS if pin.applies(python)):
            raise _nowhere(pin, answers.get(pin.name))
    candidates = [each for each in PYTHONS if python.contains(f"{each}.99")] or list(PYTHONS)
    costs = {each: _cost(each, table) for each in candidates}
    open_ones = [each for each in candidates if costs[each] is not None]
    if not open_ones:
        if len(candidates) == len(PYTHONS):
            raise _disjoint(table)
        return PinnedPythons(_barred(table, frozenset()), pins=pins, answers=answers)
    least = min(cost for cost in costs.values() if cost is not None)
    best = frozenset(each for each in open_ones if costs[each] == least)
    unknown = [pin.line for pin, found_ways in known.items() if found_ways is None and pin.is_bounded]
    return PinnedPythons(
        _barred(table, best),
        _choices(table, best, answers),
        (*_compiled(table, best, answers), *_not_checked(unknown, troubles)),
        pins,
        answers,
    )


def _ask(
    pins: Iterable[Pin], found: Requirements, options: ImageOptions, door: IndexDoor | None
) -> tuple[dict[str, Answer], list[str]]:
    """(project → what the indexes have of it, why one did not answer)."""
    if door is None or not (usual := index_sources(options, found, door.environ)):
        return {}, []
    sources: dict[str, tuple[Source, ...]] = {"": usual}
    for pin in pins:
        if pin.local and pin.name in OF_TORCH:
            sources[pin.name] = (*usual, *torch_sources(pin.local, options.torch_index))
    names = list(dict.fromkeys(pin.name for pin in pins))
    answers = door.index.ask(names, sources)
    again = [pin.name for pin in pins if not any(map(pin.matches, answers[pin.name].releases))]
    again = [name for name in dict.fromkeys(again) if answers[name].complete and answers[name].age_s > MISSING_FRESH_S]
    if again:
        answers |= door.index.ask(again, sources, MISSING_FRESH_S)
    troubles = [answer.trouble for answer in answers.values() if answer.trouble]
    return answers, list(dict.fromkeys(troubles))


def _in_tables(pin: Pin) -> bool:
    framework = _FRAMEWORKS.get(pin.name)
    return framework is not None and any(pin.public.contains(wheel.version) for wheel in wheels(framework))


def _of_table(pin: Pin) -> _Ways:
    rows = [wheel.python for wheel in wheels(_FRAMEWORKS[pin.name]) if pin.public.contains(wheel.version)]
    fits = {python for python in PYTHONS for low, high in rows if Version(low) <= Version(python) <= Version(high)}
    return {python: "wheel" if python in fits else None for python in PYTHONS}


def _cost(python: str, table: Mapping[Pin, _Ways]) -> int | None:
    """How many pins pip would have to compile; None where one cannot be had at all."""
    found = [each[python] for pin, each in table.items() if pin.applies(python)]
    return None if None in found else found.count("compiled")


def _barred(table: Mapping[Pin, _Ways], best: frozenset[str]) -> dict[str, str]:
    barred = {}
    for python in PYTHONS:
        if python not in best:
            worse = (pin for pin, found in table.items() if pin.applies(python) and found[python] in (None, "compiled"))
            if (pin := next(worse, None)) is not None:
                barred[python] = f"{pin.said} has wheels {_range(table[pin])}"
    return barred


def _range(found: _Ways) -> str:
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


def _refuse_missing(pin: Pin, answer: Answer | None) -> None:
    """Raises ConfigError: the index has no such release, or no such package."""
    if answer is None or not answer.complete or any(map(pin.matches, answer.releases)):
        return
    if not answer.releases:
        raise ConfigError(
            f"{pin.said}: the package index has no package {pin.name}",
            cause="the name is wrong, or it is on another index than those that are asked",
            run=f"pip index versions {pin.name}   # or name its index in seatrial.toml: [image] index_url",
        )
    if other := elsewhere(pin.name):
        raise ConfigError(
            f"{pin.said}: the package index has no such version",
            cause=f"{pin.name} on the index is another project",
            run=f"write {other} in {pin.place}",
        )
    near = _near(pin, _with_wheels(pin, answer, PYTHONS) or list(answer.releases))
    raise ConfigError(
        f"{pin.said}: the package index has no such version",
        cause=f"near it: {', '.join(near)}" if near else None,
        run=f"change the version, to {pin.name}=={near[0]} for example" if near else f"pip index versions {pin.name}",
    )


def _nowhere(pin: Pin, answer: Answer | None) -> ConfigError:
    """No wheel for any Python that the agent runs on, and nothing to build."""
    near = _near(pin, _with_wheels(pin, answer, PYTHONS))
    image = "tensorflow/tensorflow:1.15.5-gpu" if pin.name == "tensorflow" else "IMAGE"
    change = f"write {pin.name}=={near[0]}, or " if near else ""
    return ConfigError(
        f"{pin.said} has no wheel for Python {_OLDEST} or later, which seatrial needs",
        cause=f"the nearest versions that have one: {', '.join(near)}" if near else "its wheels are for older Pythons",
        run=f"{change}name an image that has it: seatrial run --image {image} …",
    )


def _with_wheels(pin: Pin, answer: Answer | None, pythons: Iterable[str]) -> list[str]:
    """Versions that have a wheel for one of these Pythons."""
    if answer is None:
        return []
    wanted = list(pythons)
    return [version for version, files in answer.releases.items() if has_wheel(files, wanted)]


def _near(pin: Pin, versions: list[str]) -> list[str]:
    """Up to three: the same release of another build, the next newer, the next older, the newest; finished if any."""
    wanted = next((Version(each.version.removesuffix(".*")) for each in pin.specifier), None)
    finished = sorted(each for each in map(Version, versions) if not each.is_prerelease)
    ordered = finished or sorted(map(Version, versions))
    if not ordered or wanted is None:
        return [str(each) for each in ordered[-1:]]
    older, newer = [each for each in ordered if each < wanted], [each for each in ordered if each > wanted]
    same = [each for each in ordered if each.public == wanted.public]
    return list(dict.fromkeys(map(str, [*same[:1], *newer[:1], *older[-1:], ordered[-1]])))[:3]


def _disjoint(table: Mapping[Pin, _Ways]) -> ConfigError:
    """Two pins that no Python has both of; where only three exclude each other, the first two are named."""
    limiting = [pin for pin, found in table.items() if None in found.values()]
    pairs = ((one, other) for place, one in enumerate(limiting) for other in limiting[place + 1 :])
    fallback = (limiting[0], limiting[-1])
    one, other = next(
        (pair for pair in pairs if not any(table[pair[0]][each] and table[pair[1]][each] for each in PYTHONS)), fallback
    )
    return ConfigError(
        f"{one.said} has wheels {_range(table[one])}, and {other.said} {_range(table[other])}: "
        "there is no Python for both",
        run=f"change one of the two versions in {one.place}",
    )


def _choices(table: Mapping[Pin, _Ways], best: frozenset[str], answers: Mapping[str, Answer]) -> tuple[Choice, ...]:
    built = [pin.line for pin, found in table.items() if "source" in {found[each] for each in best}]
    if not built:
        return ()
    reason = "the index has no wheel of them: pip builds them, which takes a compiler unless they are plain Python"
    return (Choice(what="from source", value=", ".join(built), reason=reason),)


def _to_one_of(pin: Pin, answers: Mapping[str, Answer], best: frozenset[str]) -> str:
    """``, to 1.23.2 for example``: a near release that has a wheel for one of these Pythons."""
    near = _near(pin, _with_wheels(pin, answers.get(pin.name), best))
    return f", to {near[0]} for example" if near else ""


def _compiled(table: Mapping[Pin, _Ways], best: frozenset[str], answers: Mapping[str, Answer]) -> Iterable[str]:
    for pin, found in table.items():
        if best and all(found[python] == "compiled" and pin.applies(python) for python in best):
            yield (
                f"{pin.said} has wheels {_range(found)}, and other packages need another Python: "
                f"pip compiles it, which often fails; change the version{_to_one_of(pin, answers, best)}"
            )


def _not_checked(unknown: list[str], troubles: list[str]) -> Iterable[str]:
    if unknown and troubles:
        listed = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        yield f"{troubles[0]}: whether the image's Python has {listed} was not checked"
