"""YAML of a project or a machine: data as JSON has it, read in bounded time and memory.

Tags are refused: they are for objects. A few lines of aliases stand for gigabytes, so what they stand for is counted
before it is built, and each gets its own copy. PyYAML is imported when there is something to read: most commands have
none.
"""

from __future__ import annotations

from typing import Any

from seatrial.errors import ConfigError

#: libyaml's loader is ten times as fast as the one in Python, and takes about 1 s for a megabyte.
MAX_BYTES = 1_000_000

#: A spec or a kubeconfig has six levels.
_MOST_LEVELS = 50

#: Values with each alias in place; a manifest of a hundred pods has 10,000.
_MOST_VALUES = 200_000


def parse_yaml(text: str, name: str) -> Any:
    """Parse the document's data. Raises ConfigError that begins with ``name:line``."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if len(text) > MAX_BYTES:
            raise ConfigError(f"{name}: {len(text) / 1e6:.3g} MB is too large for YAML", run=f"ls -l {name}")
        _refuse_more_than_data(text, name, loader)
        data = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{name}:{line}: not YAML: {reason}", run=f"sed -n {line}p {name}") from error
    except (ValueError, OverflowError, LookupError, TypeError, AttributeError) as error:
        # PyYAML's constructors raise these for numbers of thousands of digits and for days that no month has.
        raise ConfigError(f"{name}: a value that is not a valid number or date: {error}", run=f"cat {name}") from error
    _refuse_half_characters(data, name)
    return _copied(data)


def _copied(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _copied(value) for key, value in data.items()}
    return [_copied(value) for value in data] if isinstance(data, list) else data


def _refuse_more_than_data(text: str, name: str, loader: Any) -> None:
    """Refuse more than plain data from the stream of events, before it is built. Raises ConfigError, YAMLError."""
    import yaml

    values = 0
    known: dict[str, tuple[int, int]] = {}  # anchor → its values, and levels of them
    outer: list[tuple[str | None, int, int]] = [(None, 0, 0)]  # anchor, values before, levels inside
    event: Any
    for event in yaml.parse(text, Loader=loader):
        problem, more, levels = None, 0, 0
        if isinstance(event, yaml.AliasEvent):
            more, levels = known.get(str(event.anchor), (0, 0))
            problem = None if more else f"the alias *{event.anchor}: no value has this anchor before it"
        elif isinstance(event, yaml.CollectionStartEvent):
            outer.append((event.anchor, values, 0))
            more = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before, inside = outer.pop()
            levels = inside + 1
            known.update({anchor: (values - before, levels)} if anchor else {})
        elif isinstance(event, yaml.ScalarEvent):
            more = 1
            known.update({event.anchor: (1, 0)} if event.anchor else {})
        values += more
        outer[-1] = (*outer[-1][:2], max(outer[-1][2], levels))
        if values > _MOST_VALUES:
            problem = "its aliases stand for too many values"
        elif len(outer) - 1 + levels > _MOST_LEVELS:
            problem = "nested too deep"
        elif getattr(event, "tag", None) not in (None, "!"):
            problem = f"the tag {event.tag}: only plain data is allowed"
        if problem:
            line = event.start_mark.line + 1
            raise ConfigError(f"{name}:{line}: {problem}", run=f"sed -n {line}p {name}")


def _refuse_half_characters(data: Any, name: str) -> None:
    """Refuse text such as ``"\\ud800"``, half of a character, which nothing can print. Raises ConfigError."""
    pending = [data]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ConfigError(f"{name}: an escape that is half a surrogate pair: {value!a:.80}") from None
        elif isinstance(value, dict):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set)):
            pending += value
