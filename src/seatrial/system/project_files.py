"""Read a project's small files, which a stranger may have written, as text, TOML or YAML in bounded time.

A link inside the project is followed, one that leads out of it is not: a file of the user's must not end up in an image
or a message because a project points at it. Nothing here waits: a FIFO and a device are refused before they are opened.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from seatrial.errors import ConfigError, UntrustedPathError, UsageError, fallback
from seatrial.system.files import status_of
from seatrial.system.nofollow import open_source, write_inside
from seatrial.system.text import as_typed, from_here, regex

#: Far above usual files, and read in milliseconds.
MAX_BYTES = 2_000_000

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
#: Names in a project's folder: its own file, a repository, and without either what makes it a package.
_OWN = ("seatrial.toml", ".git")
PACKAGING = ("pyproject.toml", "setup.py", "setup.cfg")


class _NotReadError(Exception):
    """A file is not read; the text follows the file's name in a sentence."""


def require_folder(project: Path) -> None:
    """Check that a project's folder is there. Raises UsageError."""
    if not project.is_dir():
        there = next(parent for parent in project.absolute().parents if parent.is_dir())
        raise UsageError(f"Project folder not found: {from_here(project)}", run=f"ls {as_typed(there)}")


def real_project(project: Path) -> Path:
    """Resolve the links in a project's path, once: what a link in its place leads to later is another project.

    Raises UsageError: it is not there, or leads out of a project around it through a link, which a script there may
    have made.
    """
    require_folder(project)
    real = Path(os.path.realpath(project))
    for above in Path(os.path.abspath(project)).parents:  # noqa: PTH100  # resolve() would follow that link
        if (above / ".seatrial").is_dir() and not real.is_relative_to(os.path.realpath(above)):
            cause = "It is a symlink, which any script that ran there could have created"
            run = f"cd {as_typed(real)}   # if that is the folder you mean"
            raise UsageError(f"The project {project} leads out of the project {above}, to {real}", cause=cause, run=run)
    return real


def project_root(folder: Path) -> Path:
    """Return the project of a folder: the nearest around it with seatrial.toml or .git, else with a package's files.

    Folders of homes, those above them and another user's files make no project: anyone can write into /tmp.
    """
    here = Path(os.path.realpath(folder))
    home = Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111  Path.home() raises where there is none
    packages = []
    for around in (here, *here.parents):
        if home.is_relative_to(around) or around == around.parent:
            break
        if is_project(around, here):
            return around
        packages += [around] if any(_is_own(around / name, here) for name in PACKAGING) else []
    return next(iter(packages), here)


def is_project(folder: Path, here: Path) -> bool:
    """Return True for a repository, and for a folder with a file of ours; ``here``: where one stands."""
    return any(_is_own(folder / name, here) for name in _OWN) or _has_table(folder / "pyproject.toml", here)


@fallback(False, on=(OSError, ValueError))
def _is_own(path: Path, folder: Path) -> bool:
    return path.lstat().st_uid in (os.getuid(), folder.stat().st_uid)


@fallback(False, on=ConfigError)
def _has_table(path: Path, folder: Path) -> bool:
    """Return True for a pyproject.toml that configures seatrial."""
    return _is_own(path, folder) and b"[tool.seatrial" in read_bytes(path, inside=path.parent)


def matching(folder: Path, pattern: str, most: int) -> list[Path]:
    """Return at most so many paths that a project's own pattern matches; none for one that Path.glob refuses."""
    pattern = re.sub(r"\*{2,}(?=[^/])|(?<=[^/*])\*{2,}", "*", pattern)  # "a**"
    with suppress(ValueError, IndexError, NotImplementedError):  # "" and "."; glob.iglob follows links in circles
        return sorted(islice(folder.glob(pattern), most))
    return []


def is_there(path: Path) -> bool:
    """Return whether something has this name, even a link that leads nowhere: reading it reports what is wrong."""
    return status_of(path) is not None


def read_bytes(
    path: Path, *, inside: Path | None, limit_bytes: int = MAX_BYTES, refusal: type[UsageError] = ConfigError
) -> bytes:
    """Read the whole file. Raises ``refusal`` naming it if it is not there, no regular file, too large, or outside.

    ``inside``: the project, which the file must lie in, links resolved; None: a file of the user or machine.
    """
    try:
        descriptor = _open(path, inside)
        with os.fdopen(descriptor, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = b"" if size > limit_bytes else file.read(limit_bytes + 1)
        if (size := max(size, len(data))) > limit_bytes:
            raise _NotReadError(f"is {size / 1e6:.3g} MB, and at most {limit_bytes / 1e6:.3g} MB are read")
    except _NotReadError as error:
        problem = str(error)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except ValueError:  # a null byte
        problem = "is not a valid file name"
    else:
        return data
    raise refusal(f"{shown_path(path, inside)} {problem}", run=f"ls -ld {as_typed(path)}")


def read_text(path: Path, *, inside: Path | None, limit_bytes: int = MAX_BYTES) -> str:
    """Read UTF-8, or UTF-16 of a Windows shell, without a byte order mark. Raises as ``read_bytes``."""
    data = read_bytes(path, inside=inside, limit_bytes=limit_bytes)
    try:
        marked = data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) and len(data) > len(BOM_UTF16_LE)
        return data.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{shown_path(path, inside)}:{line}: not UTF-8 text", run=f"file {as_typed(path)}") from None


def read_sources(paths: Iterable[Path], inside: Path, most_bytes: int) -> Iterator[str]:
    """Yield the text of each file that can be read; end when they are more than ``most_bytes`` together."""
    for path in paths:
        try:
            data = read_bytes(path, inside=inside, limit_bytes=min(MAX_BYTES, most_bytes))
        except ConfigError:  # not a source then
            continue
        most_bytes -= len(data)
        yield data.decode("utf-8", "replace")


def shown_path(path: Path, inside: Path | None) -> str:
    """Return a path for a sentence: relative to the project if it lies inside."""
    return str(path.relative_to(inside)) if inside is not None and path.is_relative_to(inside) else str(path)


def _open(path: Path, inside: Path | None) -> int:
    """Open the regular file and return its descriptor. Raises OSError, ValueError, _NotReadError."""
    real = Path(os.path.realpath(path, strict=True))
    if inside is not None and (not real.is_relative_to(root := inside.resolve()) or real == root):
        raise _NotReadError(f"points outside the project, to {real}: only files in the project are read")
    try:
        held = open_source(real)  # none of the folders above can become a link on the way
    except UntrustedPathError:
        raise _NotReadError("cannot be reached, or has changed just now") from None
    try:
        mode = os.fstat(held).st_mode
        if not stat.S_ISREG(mode):  # opening a device can have effects by itself
            kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "something else")
            raise _NotReadError(f"is {kind}, not a file")
        return os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(held)


# ----------------------------------------------------------------------------------------------------- TOML

#: tomllib takes about 1 s for one megabyte (3.11, one core of 2025), and so does libyaml; PyYAML's own takes 10 s.
MAX_PARSED_BYTES = 1_000_000
#: Parts of a dotted key; the parser's time grows with their square.
_MOST_PARTS = 32
_PART = r"""(?:(?<![\w-])[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*"""
_LONG_KEY = regex(f"(?:{_PART}){{{_MOST_PARTS}}}")


def read_toml(path: Path, *, inside: Path) -> dict[str, Any]:
    """Read the file's table. Raises ConfigError naming the file and, where there is one, the line."""
    return parse_toml(read_text(path, inside=inside, limit_bytes=MAX_PARSED_BYTES), path)


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Parse the text of the file at ``path`` into its table. Raises ConfigError."""
    if sys.version_info >= (3, 11):  # most commands read none
        import tomllib
    else:
        import tomli as tomllib
    if long_key := _LONG_KEY.search(text):
        line = text.count("\n", 0, long_key.start()) + 1
        raise _refused(path, f"a key of more than {_MOST_PARTS} parts (at line {line})")
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _refused(path, str(error)) from None
    except RecursionError:
        raise _refused(path, "nested too deep") from None
    except ValueError:  # an integer of thousands of digits
        raise _refused(path, "a number of thousands of digits") from None
    return table


def _refused(path: Path, problem: str) -> ConfigError:
    return ConfigError(f"{path.name}: {problem}", run=f"${{EDITOR:-vi}} {as_typed(path)}")


_HEADER = regex(r"^[ \t]*\[")


def save_table(project: Path, name: str, values: Mapping[str, Any], comment: str) -> Path:
    """Write a table into seatrial.toml, or ``[tool.seatrial.NAME]`` if pyproject.toml is the file; return the file.

    ``comment``: one line above the keys. Raises ConfigError if the rest of the file could not stay the same.
    """
    path, table = project / "seatrial.toml", name
    other = project / "pyproject.toml"
    if not path.exists() and other.exists() and "seatrial" in read_toml(other, inside=project).get("tool", {}):
        path, table = other, f"tool.seatrial.{name}"
    before = read_text(path, inside=project, limit_bytes=MAX_PARSED_BYTES) if path.exists() else ""
    after = _with_table(before, table, values, comment)
    expected = inner = parse_toml(before, path)
    *outer, last = table.split(".")
    for each in outer:
        inner = inner.setdefault(each, {})
    inner[last] = dict(values)
    if parse_toml(after, path) != expected:
        problem = f"{path.name}: [{table}] cannot be written without changing what else is there"
        cause = "it stands there in another form, such as an inline table"
        raise ConfigError(problem, cause=cause, run=f"${{EDITOR:-vi}} {as_typed(path)}")
    return write_inside(project, path.name, data=after.encode())


def _with_table(text: str, table: str, values: Mapping[str, Any], comment: str) -> str:
    """Put the table into ``text``, in the place of the one of its name, or at the end."""
    lines = text.splitlines()
    header = re.compile(rf"^[ \t]*\[[ \t]*{re.escape(table)}[ \t]*\][ \t]*(#.*)?$")
    begin = next((at for at, line in enumerate(lines) if header.match(line)), None)
    keys = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in sorted(values.items()))
    made = [f"[{table}]", f"# {comment}", *keys]
    if begin is None:
        return "\n".join([*lines, *([""] if lines and lines[-1].strip() else []), *made]) + "\n"
    end = next((at for at in range(begin + 1, len(lines)) if _HEADER.match(lines[at])), len(lines))
    while end > begin + 1 and (not lines[end - 1].strip() or (end < len(lines) and lines[end - 1].startswith("#"))):
        end -= 1  # what stands right above the next table is about that one
    return "\n".join([*lines[:begin], *made, *lines[end:]]) + "\n"


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, and any other value as the only one of a list."""
    return value if isinstance(value, list) else [value]


def as_table(table: Any, *keys: str) -> dict[str, Any]:
    """Return the table below these keys; empty where something else is there."""
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else {}


@cache
def own_table(path: Path) -> dict[str, Any]:
    """Return the table of a file that is part of this package."""
    return parse_toml(path.read_text("utf-8"), path)


def filled_in(path: Path, key: str, values: Mapping[str, object]) -> dict[str, Any]:
    """Return severity, message and fix of our own file's entry, with each ``{name}``, or one of them, replaced."""
    entry, value = own_table(path)[key], lambda match: str(values[match[1]])
    parts = ("severity", "message", "fix")
    return {name: values[name] if name in values else re.sub(r"\{([a-z_]+)\}", value, entry[name]) for name in parts}


# ----------------------------------------------------------------------------------------------------- YAML
# Only the types of JSON. Tags are refused: they make objects. A few lines of aliases can expand to gigabytes, so the
# expansion is counted before it is built, and each alias gets its own copy.

#: A spec or a kubeconfig has six levels.
_MOST_LEVELS = 50
#: Values with each alias in place; a manifest of a hundred pods has 10,000.
_MOST_VALUES = 200_000


def parse_yaml(text: str, name: str) -> Any:
    """Parse the document's data. Raises ConfigError that begins with ``name:line``."""
    import yaml  # most commands read none

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if len(text) > MAX_PARSED_BYTES:
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
