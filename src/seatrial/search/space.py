"""Read the space of a search: what each setting may be, as typed behind ``--set`` or in ``[sweep.set]``.

    NAME=V1,V2,…                       a choice
    NAME=[log:]LOW..HIGH[:STEP]        real numbers; log: evenly over magnitudes
    NAME=int:[log:]LOW..HIGH[:STEP]    whole numbers

A value is text all the way: that is what a script gets, what the study keeps and what two trials are compared by.
"""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from seatrial.errors import UsageError, fallback

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

#: Name of a setting → value, as the target gets it.
Settings = dict[str, str]

_NAME = r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*"
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})(?::(?P<step>{_NUMBER}))?")
#: Names of settings that are whole numbers.
_COUNTED = re.compile(r"batch|size|epoch|step|layer|dim|width|hidden|units|seed|num|workers", re.IGNORECASE)
_PREFIXES = ("log:", "int:", "int:log:", "log:int:")
#: Digits of a real number for a script: rounding never gives two trials the same text.
_DIGITS = 6


def _example(name: str, *values: str) -> str:
    """Return a command that sets what was typed, each value once; values and a name of ours for other text."""
    kept = ",".join(filter(None, dict.fromkeys(values)))
    known = name if re.fullmatch(_NAME, name) else "batch_size"
    return f"seatrial sweep … --set {known}={kept or ('64,128' if _COUNTED.search(known) else '0.01,0.1')}"


@dataclass(frozen=True)
class OneOf:
    """One of a few values, of any kind."""

    name: str
    values: tuple[str, ...]
    is_finite = True

    def points(self) -> Sequence[str]:
        return self.values

    some = points

    @cached_property
    @fallback(None, on=ValueError)
    def _order(self) -> list[str] | None:
        """Sort a list of numbers, between which a better one may lie; return None for words and for two numbers."""
        ordered = sorted(self.values, key=float)
        return ordered if len(ordered) > 2 and "nan" not in self.values else None

    def distribution(self) -> BaseDistribution:
        """Return the values as Optuna describes them."""
        from optuna.distributions import CategoricalDistribution, IntDistribution

        return IntDistribution(0, len(self._order) - 1) if self._order else CategoricalDistribution(self.values)

    def text(self, value: Any) -> str:
        """Return a value of Optuna's as the script gets it."""
        return self._order[value] if self._order else str(value)

    def value(self, text: str) -> Any:
        return self._order.index(text) if self._order else text

    def __str__(self) -> str:
        return f"{self.name}={','.join(self.values)}"


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included.

    ``whole``: they, ``low``, ``high`` and ``step`` are whole. ``log``: evenly over magnitudes; no step then.
    """

    name: str
    low: float
    high: float
    step: float | None = None
    log: bool = False
    whole: bool = False
    typed: str = ""

    @property
    def is_finite(self) -> bool:
        return self.whole or self.step is not None

    def points(self) -> Sequence[str]:
        """Return every value. Only where the range is finite."""
        step = self.step or 1
        return [self.text(self.low + step * place) for place in range(int((self.high - self.low) / step + 1e-9) + 1)]

    def some(self) -> Sequence[str]:
        return self.text(self.low), self.text(self.high)

    def distribution(self) -> BaseDistribution:
        """Return the numbers as Optuna describes them."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if not self.whole:
            high = float(self.points()[-1]) if self.step else self.high
            return FloatDistribution(self.low, high, step=self.step, log=self.log)
        low, high, step = int(self.low), int(self.high), int(self.step or 1)
        return IntDistribution(low, low + (high - low) // step * step, step=step, log=self.log)

    def text(self, value: float) -> str:
        """Return a number as the script gets it."""
        return str(round(value)) if self.whole else f"{value:.{_DIGITS}g}"

    def value(self, text: str) -> float:
        """Return a script's number for Optuna, within the range: six printed digits may lie just outside."""
        value = min(max(float(text), self.low), self.high)
        return int(value) if self.whole else value

    def __str__(self) -> str:
        return f"{self.name}={self.typed}"


Dimension = OneOf | Range


@dataclass(frozen=True)
class Space:
    """Holds all that is searched over, in the order it was given."""

    dimensions: tuple[Dimension, ...]

    @property
    def names(self) -> list[str]:
        return [dimension.name for dimension in self.dimensions]

    @property
    def is_finite(self) -> bool:
        return all(dimension.is_finite for dimension in self.dimensions)

    @property
    def size(self) -> int:
        """Return the number of combinations, of a finite space."""
        return math.prod(len(dimension.points()) for dimension in self.dimensions)

    def values(self) -> dict[str, Sequence[str]]:
        """Return name → some of what it may be: all values of a choice, the ends of a range."""
        return {one.name: one.some() for one in self.dimensions}

    def combinations(self) -> Iterator[Settings]:
        """Yield every combination, the last setting changing fastest."""
        for values in itertools.product(*(dimension.points() for dimension in self.dimensions)):
            yield dict(zip(self.names, values, strict=True))

    def typed(self) -> list[str]:
        """Return the space as typed behind --set, for ``parse_space``."""
        return [str(dimension) for dimension in self.dimensions]


def parse_space(texts: Sequence[str]) -> Space:
    """Parse ``--set``. Raises UsageError for none, for text that is not NAME=SPEC, and for a name given twice."""
    if not texts:
        raise UsageError("No settings to try: add --set NAME=V1,V2", run=_example(""))
    dimensions = [parse_dimension(text) for text in texts]
    names = [dimension.name.replace("-", "_") for dimension in dimensions]
    for name in names:
        if names.count(name) > 1:
            specs = [text.partition("=")[2].split(",") for text, own in zip(texts, names, strict=True) if own == name]
            run = _example(name, *itertools.chain(*specs))
            raise UsageError(f"--set names {name} twice: write one --set for it", run=run)
    return Space(tuple(dimensions))


def from_table(table: Mapping[str, Any]) -> list[str]:
    """Return ``[sweep.set]`` of the project's file as it would be typed behind --set."""
    lists = {name: value if isinstance(value, list | tuple) else [value] for name, value in table.items()}
    return [f"{name}={','.join(map(_toml_text, values))}" for name, values in lists.items()]


def _toml_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_dimension(text: str) -> Dimension:
    """Parse NAME=SPEC. Raises UsageError for other text, an empty range, and a logarithm of zero."""
    name, equals, spec = text.partition("=")
    if text.startswith("--"):
        typed = text.lstrip("-")
        run = f"seatrial sweep … --set {typed}" if equals else "seatrial sweep --help"
        message = f"--set has no value: the option {name} follows it"
        raise UsageError(message, run=run, instead=(text, [typed]) if equals else None)
    if not equals or not re.fullmatch(_NAME, name) or not spec.strip():
        message, better = f"--set {text!r} is not NAME=VALUE,VALUE… or NAME=LOW..HIGH", _example(name)
        raise UsageError(message, run=better, instead=(text, [better.split()[-1]]))
    spec = spec.strip()
    prefix = next((each for each in sorted(_PREFIXES, key=len, reverse=True) if spec.startswith(each)), "")
    if "..." not in spec and (match := _RANGE.fullmatch(spec[len(prefix) :])) is not None:
        return _range(name, spec, "int" in prefix, "log" in prefix, match)
    if prefix:
        message = f"--set {text!r}: expected LOW..HIGH after {prefix}, two numbers separated by two dots"
        run = f"seatrial sweep … --set {name}={prefix}{'1..10' if 'int' in prefix else '1e-5..1e-1'}"
        raise UsageError(message, run=run)
    if re.search(r"[^./\s]\.\.", spec) and "/" not in spec and "," not in spec:
        problem = f"--set {text!r} is not a range: write LOW..HIGH, two numbers with two dots between them"
        raise UsageError(problem, run=f"seatrial sweep … --set {name}=0.1..1")
    values = tuple(value.strip() for value in spec.split(","))
    if "" in values:
        raise UsageError(f"--set {text!r} has an empty value between its commas", run=_example(name, *values))
    if len(set(values)) < len(values):
        raise UsageError(f"--set {text!r} names a value twice", run=_example(name, *values))
    return OneOf(name, values)


def _range(name: str, spec: str, whole: bool, log: bool, match: re.Match[str]) -> Range:
    low, high = float(match["low"]), float(match["high"])
    step = float(match["step"]) if match["step"] else None
    flag = f"--set {name}={spec}"
    if not all(math.isfinite(number) for number in (low, high, step or 0.0)):
        raise UsageError(f"{flag}: its numbers are too large", run=_example(name))
    if log and low <= 0:
        better = spec.replace(match["low"] + "..", ("1" if whole else "1e-6") + "..", 1) if high > 0 else "log:1e-6..1"
        cause, run = "the logarithm of zero is minus infinity", f"seatrial sweep … --set {name}={better}"
        raise UsageError(f"{flag}: a logarithmic range begins above zero, not at {match['low']}", cause=cause, run=run)
    if low >= high:
        turned = spec.replace(f"{match['low']}..{match['high']}", f"{match['high']}..{match['low']}")
        one = low == high
        message = f"{flag} is an empty range: " + ("both ends are the same" if one else f"{low:g} is above {high:g}")
        raise UsageError(message, run=f"seatrial sweep … --set {name}={match['low'] if one else turned}")
    if whole and not all(number.is_integer() for number in (low, high, step or 1.0)):
        raise UsageError(f"{flag}: int: takes whole numbers", run=f"seatrial sweep … --set {name}=int:1..8")
    if step is not None and (log or step <= 0 or step > high - low):
        why = "a logarithmic range has no step" if log else "its step is not above zero and within the range"
        raise UsageError(f"{flag}: {why}", run=f"seatrial sweep … --set {name}={spec.rpartition(':')[0]}")
    return Range(name, low, high, step, log, whole, spec)


def sample(space: Space, trials: Sequence[FrozenTrial], sampler: BaseSampler, direction: Any) -> Settings:
    """Return the settings that a sampler chooses after these trials, as the script gets them."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental arguments
        study = optuna.create_study(direction=direction, sampler=sampler)
        study.add_trials(trials)
        named = study.ask({one.name: one.distribution() for one in space.dimensions})
    return {one.name: one.text(named.params[one.name]) for one in space.dimensions}


def sampler_of(search: str, seed: int) -> BaseSampler:
    """Return Optuna's sampler for ``--search random`` or ``tpe``."""
    from optuna.samplers import RandomSampler, TPESampler

    if search == "random":
        return RandomSampler(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental arguments
        return TPESampler(seed=seed, multivariate=True, constant_liar=True)
