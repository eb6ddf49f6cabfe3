"""YAML of a project or a machine: data as JSON has it, read in bounded time and memory.

Aliases and tags are refused: no tool writes them into what is read here, a few lines of aliases stand for
gigabytes, and tags are for objects. PyYAML is imported when there is something to read: most commands have none.
"""

from __future__ import annotations

from typing import Any

from seatrial.errors import ConfigError

#: libyaml's loader is ten times as fast as the one in Python, and takes about 1 s for a megabyte.
MAX_BYTES = 1_000_000

#: A spec or a kubeconfig has six levels.
_MOST_LEVELS = 50


def parse_yaml(text: str, name: str) -> Any:
    """The document's data. Raises ConfigError that begins with ``name:line``."""
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
        # What PyYAML's constructors raise for numbers of thousands of digits and for days that no month has.
        raise ConfigError(f"{name}: a value that is not a valid number or date: {error}", run=f"cat {name}") from error
    _refuse_half_characters(data, name)
    return data


def _refuse_more_than_data(text: str, name: str, loader: Any) -> None:
    """Before anything is built, from the stream of events. Raises ConfigError, YAMLError."""
    import yaml

    levels = 0
    event: Any
    for event in yaml.parse(text, Loader=loader):
        levels += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        problem = None
        if isinstance(event, yaml.AliasEvent):
            problem = f"the alias *{event.anchor}: aliases are not supported, write each value in place"
        elif levels > _MOST_LEVELS:
            problem = "nested too deep"
        elif getattr(event, "tag", None) not in (None, "!"):
            problem = f"the tag {event.tag}: only plain data is allowed"
        if problem:
            line = event.start_mark.line + 1
            raise ConfigError(f"{name}:{line}: {problem}", run=f"sed -n {line}p {name}")


def _refuse_half_characters(data: Any, name: str) -> None:
    """``"\\ud800"`` is half of a character, which nothing can print."""
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
