"""Kinds of values of seatrial.toml and of flags: each is read once from what people type.

The readers work at the edge alone, where a validation context names the folder that relative paths count from.
Elsewhere, in plan.json and in code, a value is what a reader made of it, and passes.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pydantic
from pydantic import BeforeValidator, ConfigDict, PlainSerializer
from pydantic import WithJsonSchema as Schema
from pydantic_core import CoreSchema

from seatrial.errors import UsageError
from seatrial.job import engine_grammar, units
from seatrial.job.engine_grammar import IMAGE, matching
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.value import Value
from seatrial.system.text import regex, shown, without_login

#: Schemas of typed values.
TEXT: dict[str, Any] = {"type": "string"}
OR_FALSE = {"const": False}
_ABOVE_ZERO = {"type": "number", "exclusiveMinimum": 0}


def text(*examples: str) -> dict[str, Any]:
    """Return the schema of text, with examples."""
    return {**TEXT, "examples": list(examples)}


class KeyTable(Value):
    """A table of seatrial.toml, and what a Job holds of it. Unknown keys and wrong types are errors.

    The file's keys are the fields' aliases; everywhere else a field goes by its name, which has the unit.
    """

    model_config = ConfigDict(strict=True)


def typed_keys(table: type[pydantic.BaseModel]) -> dict[str, str]:
    """Return a table's keys as the file spells them → the fields' names."""
    return {str(field.validation_alias or name): name for name, field in table.model_fields.items()}


_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
#: Source: Debian Policy, 5.6.1 and 5.6.12; with an architecture and a version as apt-get takes them.
_PACKAGE = r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?(=[A-Za-z0-9.+:~-]+)?"
_INDEX = r"(https?://([^\s/@]+@)?([^\s/@:\[\]]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?|file:)(/\S*)?"
#: It stands in a command of the build.
_URL = r"[a-z]+://[^\s\"'`$;&|<>\\]+"
#: Container names: docs.docker.com/reference/cli/docker/container/run; 63 because it is the hostname too (RFC 1123).
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"


class DataMount(Value):
    """A host folder for /data or /models."""

    model_config = ConfigDict(strict=True)

    source: Path
    read_only: bool


class Mount(Value):
    """A bind mount: absolute host path → absolute path in the container. ``str()`` is its text as typed."""

    source: Path
    target: str
    read_only: bool = False

    @classmethod
    def parse(cls, text: str) -> Mount | None:
        """Parse ``SOURCE:TARGET[:ro|rw]``, read-write by default; None for other text.

        A path with a colon in it cannot be mounted this way. Whether the paths are absolute is for the caller.
        """
        parts = text.split(":")
        mode = parts.pop() if parts[-1] in ("ro", "rw") else "rw"
        if len(parts) != 2 or not all(parts):
            return None
        return cls(source=Path(parts[0]), target=parts[1], read_only=mode == "ro")

    def __str__(self) -> str:
        return f"{self.source}:{self.target}" + (":ro" if self.read_only else "")


def changeable(mount: Mount, mounts: Iterable[Mount]) -> bool:
    """Return True if a container can change what a mount shows it: through the mount itself, or through another."""
    writable = [other.source for other in mounts if not other.read_only]
    return not mount.read_only or any(
        mount.source.is_relative_to(folder) or folder.is_relative_to(mount.source) for folder in writable
    )


_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}

#: A pattern that Python and JSON Schema read alike.
PATTERN = rf"({'|'.join(_OPERATORS)})\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"


def holds(condition: str, value: float) -> bool | None:
    """Return whether a value fulfils a condition such as ``>= 0.9``; None if the condition cannot be read."""
    match = re.fullmatch(PATTERN, condition.strip())
    return None if match is None else _OPERATORS[match[1]](value, float(match[2]))


class Typed:
    """Reads what people type, and describes it in the file's schema.

    Args:
        read: makes the value; raises ValueError.
        schema: of the typed text; None: the value's own.
    """

    def __init__(self, read: Callable[[Any], Any], schema: dict[str, Any] | None = None) -> None:
        self._validator = BeforeValidator(lambda value, info: value if info.context is None else read(value))
        self._schema = schema

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        return self._validator.__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(schema) if self._schema is None else {**self._schema}


class Matched(Typed):
    """Reads text that a whole pattern matches."""

    def __init__(self, pattern: str, what: str) -> None:
        super().__init__(matching(pattern, what), {**TEXT, "pattern": f"^{pattern}$"})


def _checked(check: Callable[[Any], Any]) -> pydantic.AfterValidator:
    """Make a validator like ``Typed``, for text that pydantic has found to be text."""
    return pydantic.AfterValidator(lambda value, info: value if info.context is None else check(value))


def _located(read: Callable[[Any, Path], Any]) -> BeforeValidator:
    """Make a validator like ``Typed``, with the folder that relative paths count from."""
    return BeforeValidator(lambda value, info: value if info.context is None else read(value, info.context["base"]))


def reads(parse: Callable[[str], Any], what: str) -> Callable[[Any], Any]:
    """Make a reader of one of our parsers; its UsageError becomes pydantic's ValueError. Numbers are read as text."""

    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"expected {what}, got {shown(value)}")
        try:
            return parse(str(value))
        except UsageError as error:
            raise ValueError(error.message) from error  # pydantic keeps both

    return read


read_size = reads(units.parse_bytes, 'a size such as "8GB"')
read_duration = reads(units.parse_seconds, 'a duration such as "10m"')
_gpus = reads(GpuRequest.parse, 'a GPU request such as 2 or "device=0,2"')


def _number(value: Any) -> float:
    """Return a number above zero, given as one or as text, as flags are. Raises ValueError."""
    with suppress(ValueError, OverflowError):
        is_number = re.fullmatch(r"[0-9.eE+-]+", str(value)) and not isinstance(value, bool)
        if is_number and 0 < (number := float(value)) < float("inf"):
            return number
    raise ValueError(f"expected a number above zero, got {shown(value)}")


def _at_least(least: float, what: str, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a reader of numbers from ``least`` on, Docker's lower limit. It raises ValueError."""

    def check(value: Any) -> Any:
        if (number := read(value)) < least:
            raise ValueError(f"expected at least {what}, got {shown(value)}")
        return number

    return check


def _percent(value: Any) -> float:
    with suppress(ValueError):
        if (number := _number(value)) <= 100:
            return number
    raise ValueError(f"expected a percentage above 0 up to 100, or false to skip the check; got {shown(value)}")


#: Parts of a regular expression that match one character: an escape, a class.
_ONE_LETTER = regex(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_MOST_OPTIONAL = 8


def read_pattern(value: Any) -> str:
    """Read a regular expression. Refuse repeated groups and many optional parts: a hostile line could take for ever."""
    try:
        pattern = re.compile(value if isinstance(value, str) else "")
    except re.error as error:
        raise ValueError(f"{shown(value)} is not a regular expression: {error}") from None
    plain = _ONE_LETTER.sub("x", pattern.pattern)
    forks = re.search(r"\)[*+{]|\(\?[a-zA-Z]*x", plain) or len(re.findall(r"(?<!\()\?", plain)) > _MOST_OPTIONAL
    if pattern.groups < 1 or forks:
        raise ValueError(f"expected a regular expression with one group such as 'loss of (\\S+)', got {shown(value)}")
    return str(value)


def _day(value: Any) -> str:
    """Read a day, as text or as TOML's own, or ``today``. Raises ValueError."""
    try:
        return "today" if value == "today" else date.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise ValueError(f"expected a day, such as 2021-09-03, or today, got {shown(value)}") from None


def _mirror(value: str) -> str:
    matching(_URL, "a URL")(value)
    if "@" in value.partition("://")[2].partition("/")[0]:
        advice = "write a mirror with a login as image.index_url, which is a secret of the build"
        raise ValueError(f"a login in this address would be kept in the image; {advice}")
    return value


def _path(value: Any, base: Path) -> Path:
    """Return an absolute path; a relative one counts from ``base``. Raises ValueError."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError(f"expected a path, got {shown(value)}")
    path = Path(value)
    if path.parts[:1] == ("~",):
        path = Path(os.path.expanduser("~")).joinpath(*path.parts[1:])  # noqa: PTH111  home() raises where there is none
    path = base / path
    try:
        path.exists()
    except (OSError, ValueError) as error:  # a name too long, a folder that may not be entered, a lone surrogate
        reason = getattr(error, "strerror", None) or "not a file name"
        raise ValueError(f"{shown(value)} cannot be used as a path: {reason}") from None
    return Path(path)


def _folder(*, read_only: bool) -> Callable[[Any, Path], DataMount]:
    """Make a validator of ``DIR``, ``DIR:ro`` and ``DIR:rw``; ``read_only`` holds for the first."""

    def read(value: Any, base: Path) -> DataMount:
        if isinstance(value, str) and value.endswith((":ro", ":rw")):
            return DataMount(source=_path(value[:-3], base), read_only=value.endswith(":ro"))
        return DataMount(source=_path(value, base), read_only=read_only)

    return read


def _mount(value: Any, base: Path) -> Mount:
    """Parse ``SOURCE:TARGET[:ro|rw]`` and make the source absolute. Raises ValueError."""
    mount = Mount.parse(value) if isinstance(value, str) else None
    if mount is None or not mount.target.startswith("/"):
        raise ValueError(f"expected SOURCE:/TARGET[:ro|rw], got {shown(value)}")
    return mount.changed(source=_path(mount.source, base))


def _variables(value: Any) -> Any:
    """Turn numbers into text; leave true and false to be refused, since nobody agrees how a shell spells them."""
    if not isinstance(value, dict):
        return value
    return {
        key: str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item
        for key, item in value.items()
    }


def one_or_more(example: str) -> Typed:
    """Read a list whose only entry may stand without brackets."""
    schema = {"anyOf": [text(example), {"type": "array", "items": TEXT}]}
    return Typed(lambda value: [value] if isinstance(value, str) else value, schema)


def or_false(read: Callable[[Any], Any], *schemas: dict[str, Any]) -> Typed:
    """Read a value, or false for none."""
    return Typed(lambda value: None if value is False else read(value), {"anyOf": [*schemas, OR_FALSE]})


T = TypeVar("T")
#: Any list, kept as a tuple.
Listed = Annotated[tuple[T, ...], pydantic.Strict(False)]
#: Written to plan.json as its text.
_AS_TEXT = PlainSerializer(str, when_used="json")

Size = Annotated[int, Typed(read_size, text("512m", "8GB", "2GiB"))]
Duration = Annotated[float, Typed(read_duration, {"anyOf": [text("30s", "1h30m"), _ABOVE_ZERO]})]
Memory = Annotated[int, Typed(_at_least(6 * 2**20, "6 MiB", read_size), text("512m", "8GB", "2GiB"))]
Cores = Annotated[float, Typed(_at_least(0.01, "0.01 cores", _number), _ABOVE_ZERO)]
Gpus = Annotated[
    GpuRequest,
    BeforeValidator(lambda value: value if isinstance(value, GpuRequest) else _gpus(value)),
    _AS_TEXT,
    Schema({"anyOf": [text("auto", "none", "all", "device=0,2"), _ABOVE_ZERO]}),
]
PathLike = Annotated[Path, _located(_path), Schema(TEXT)]
Data = Annotated[DataMount, _located(_folder(read_only=True)), Schema(text("./data", "./data:rw"))]
Models = Annotated[DataMount, _located(_folder(read_only=False)), Schema(text("./models"))]
MountText = Annotated[
    Mount,
    BeforeValidator(lambda value: Mount.parse(value) if isinstance(value, str) else value),  # of plan.json
    _located(_mount),
    _AS_TEXT,
    Schema(text("./cache:/cache:rw")),
]
#: Written to plan.json without a login.
_IN_PUBLIC = PlainSerializer(without_login, when_used="json")
FolderOrUrl = Annotated[
    str,
    _located(lambda value, base: value if isinstance(value, str) and "://" in value else str(_path(value, base))),
    _IN_PUBLIC,
    Schema(TEXT),
]
Index = Annotated[str, _checked(matching(_INDEX, "a URL such as https://host/simple")), _IN_PUBLIC, Schema(TEXT)]
Port = Annotated[str, Typed(engine_grammar.read_port, text("8080:80", "127.0.0.1:8888:8888"))]
Name = Annotated[str, Matched(NAME, "letters, digits, . _ -, at most 63")]
#: ``last`` is the newest run.
NewName = Annotated[str, Matched(f"(?!last$){NAME}", "letters, digits, . _ -, at most 63, and not last")]
Variable = Annotated[str, Matched(_VARIABLE, "a variable's name")]
#: A program's argument, or a variable's value.
Word = Annotated[str, _checked(matching(r"[^\0]*", "text without a null byte")), Schema(TEXT)]
Variables = Annotated[
    dict[Variable, Word], Typed(_variables, {"type": "object", "additionalProperties": {"type": ["string", "number"]}})
]
Condition = Annotated[str, Matched(PATTERN, 'a condition such as ">= 0.985"')]
Pattern = Annotated[str, Typed(read_pattern, text(r"psnr of (\S+) dB"))]
Image = Annotated[str, _checked(matching(IMAGE, "an image's name, such as ghcr.io/me/train:1")), Schema(TEXT)]
Network = Annotated[str, _checked(matching(engine_grammar.NETWORK, "a network, such as host")), Schema(TEXT)]
Device = Annotated[str, _checked(matching(engine_grammar.DEVICE, "a device, such as /dev/fuse")), Schema(TEXT)]
Ulimit = Annotated[str, _checked(engine_grammar.read_ulimit), Schema(text("nofile=1024:4096"))]
DebianPackage = Annotated[
    str, _checked(matching(_PACKAGE, "a Debian package's name")), Schema({**TEXT, "pattern": f"^{_PACKAGE}$"})
]
Mirror = Annotated[str, _checked(_mirror), Schema({**TEXT, "pattern": f"^{_URL}$"})]
Day = Annotated[str, Typed(_day, TEXT)]
Line = Annotated[str, _checked(matching(r"[^\x00-\x1f\x7f]+", "one line of text")), Schema({**TEXT, "minLength": 1})]
Interpreter = Annotated[str, Matched(r"(?!\d)[^\x00-\x1f\x7f]+", "an interpreter, such as /opt/conda/bin/python")]
Globs = Annotated[Listed[str], one_or_more("models/*.pth")]
Percent = Annotated[float | None, or_false(_percent, {**_ABOVE_ZERO, "maximum": 100})]
