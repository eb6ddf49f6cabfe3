"""Tables of a Job besides the general ones: serving, tuning, ``[tune]``, ``[sweep]`` and ``[notify]``."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictBool, ValidationInfo, create_model, model_validator
from pydantic import WithJsonSchema as Schema

from seatrial.common.tunables import TUNABLES, Tunable, in_words
from seatrial.errors import UsageError, fallback
from seatrial.job.flags import KEYS
from seatrial.job.keys import Duration, KeyTable, Line, Listed, Typed, one_or_more, text
from seatrial.system.text import shown

#: Port of the server in a container of its own network; published under the requested port.
CONTAINER_PORT = 8000

#: The variable with the token that requests must carry, if one is required; handed over as a secret.
TOKEN = "SEATRIAL_SERVE_TOKEN"


class Weights(KeyTable):
    """A file that the model is loaded from.

    Attributes:
        path: below the models folder.
        sha256: in hex, read on the host before the server started.
    """

    path: str
    sha256: str
    bytes: int


class Serving(KeyTable):
    """A model that is served.

    Attributes:
        kind: ``recipe``, or ``file`` (.pt2, ONNX, safetensors).
        model: the recipe's name; the file, below the models folder.
        name: in addresses: /v2/models/NAME.
        address, port: of this machine.
        options: further ones of ``python -m seatrial.serve``, as it takes them.
        of_run: ID of the run that made the model, where that is known.
        typed: what follows ``seatrial serve`` to start it again.
    """

    kind: Literal["recipe", "file"]
    model: str
    name: str
    address: str = "127.0.0.1"
    port: int = 8000
    options: tuple[str, ...] = ()
    weights: tuple[Weights, ...] = ()
    of_run: str | None = None
    typed: str = ""

    @property
    def suffix(self) -> str:
        """Return the suffix of a file in lower case, ``.onnx``; "" for anything else."""
        return "." + self.model.rpartition(".")[2].lower() if self.kind == "file" else ""

    @property
    def url(self) -> str:
        """Return the URL by which this machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address, self.address)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


class ScriptChanges(KeyTable):
    """Changes that are made to a torch script from outside. Source: common/tunables.py."""

    script: str | None = Field(default=None, description="The one script that the changes are for; default: any.")
    digest: str | None = Field(default=None, description="SHA-256 of the measured script; default: any.")
    gpu: str | None = Field(default=None, description="Model of the measured GPU, or none; default: any.")

    def set_ones(self) -> dict[str, Any]:
        """Return the settings that are set, as the hook reads them."""
        changes = self.model_dump(exclude=set(ScriptChanges.model_fields))
        return {key: value for key, value in changes.items() if value not in (None, False)}

    @property
    def words(self) -> str:
        """Return the settings in words: ``compile=default, workers=8``."""
        return in_words(self.set_ones())


def _field(tunable: Tunable) -> tuple[Any, Any]:
    kind, _, values = tunable.kind.partition(":")
    typed: Any = StrictBool
    if kind == "choice":
        typed = Literal[tuple(values.split(","))]
    elif kind == "count":
        least, _, most = values.partition("-")
        typed = Annotated[int, Field(ge=int(least), le=int(most) if most else None)]
    return typed | None, Field(default=None, description=tunable.help)


if TYPE_CHECKING:
    Changes = ScriptChanges
else:
    #: ``[tune]``: the script, and a key for each of TUNABLES.
    Changes = create_model(
        "Changes",
        __base__=ScriptChanges,
        __doc__=ScriptChanges.__doc__,
        __module__=__name__,
        **{each.key: _field(each) for each in TUNABLES},
    )


class Tuning(KeyTable):
    """The request of a tune.

    Attributes:
        steps, seconds: measured in each trial, at most. budget_s: for all trials.
        only: groups (tunables.GROUPS) that are tried; () for all. fit: batch sizes in place of changes.
    """

    steps: int = 60
    seconds: float = 20.0
    budget_s: float = 180.0
    only: tuple[str, ...] = ()
    fit: bool = False


def _settings(value: Any) -> Any:
    """Check that each setting is a SPEC, a value or a list of values. Raises ValueError."""
    if not isinstance(value, dict):
        return value
    for name, spec in value.items():
        for one in spec if isinstance(spec, list) and spec else [spec]:
            if not isinstance(one, str | int | float) or one == "":
                expected = 'values such as [32, 64] or a range such as "1..8"'
                raise ValueError(f"expected {expected} for {name}, got {shown(spec)}")
    return value


class SweepTable(KeyTable):
    """The space and method of a search."""

    search: str | None = Field(default=None, description="Engine: grid, random or tpe.")
    metric: str | None = Field(default=None, description="Objective: NAME:max or NAME:min.")
    metric_from: str | None = Field(default=None, description="Pattern on the output; its first group is the metric.")
    trials: int | None = Field(default=None, ge=1, description="Maximum number of trials.")
    budget_s: Duration | None = Field(default=None, validation_alias="budget", description="Time for the search.")
    parallel: Annotated[str | int | None, Schema({"anyOf": [{"type": "integer", "minimum": 1}, text("auto")]})] = Field(
        default=None, description="Trials at once; auto: as many as fit."
    )
    prune: str | None = Field(default=None, description="Stop trials that fall behind: asha, median or none.")
    seed: int | None = Field(default=None, description="Seed of the engine.")
    set: Annotated[dict[str, Any], Typed(_settings, {"type": "object"})] = Field(
        default={}, description="Settings: name = [values], or a range such as log:1e-5..1e-1."
    )


class Retiring(KeyTable):
    """A table that lost keys since 0.1."""

    retired: ClassVar[tuple[str, ...]]

    @model_validator(mode="before")
    @classmethod
    def _stored_by_an_older_version(cls, table: Any, info: ValidationInfo) -> Any:
        """Drop the retired keys of a stored plan; in seatrial.toml they are refused."""
        if info.context is None and isinstance(table, dict):
            return {key: value for key, value in table.items() if key not in cls.retired}
        return table


class Notify(Retiring):
    """The commands to run at the end. A plan has their programs alone: arguments may be secrets."""

    retired = ("desktop", "webhook")

    command: Annotated[Listed[Line], one_or_more("./notify.sh")] = Field(
        default=(), description="Shell commands run on this machine, in the project."
    )

    @property
    def requested(self) -> bool:
        return bool(self.command)

    @property
    def hidden(self) -> Notify:
        """Return what a plan shows of it: the program of each command."""
        return Notify(command=tuple(program_of(command) for command in self.command))

    @property
    def words(self) -> str:
        return ", ".join(self.command)


def from_flags(words: Collection[str]) -> dict[str, Any]:
    """Return ``--notify`` as a table of the file. Raises UsageError for a word that is not a command."""
    for word in words:
        if not isinstance(word, str):  # from Python
            raise UsageError(f"notify: {word!r} is not text", run='notify=["notify-send done"]')
        retired = "desktop" if word == "desktop" else "webhook" if word.startswith(("http://", "https://")) else ""
        if retired:
            what = "URL" if retired == "webhook" else word
            raise UsageError(f"--notify {what} was removed: {KEYS[f'notify.{retired}']}")
        if not word.strip() or (len(word.split()) == 1 and not shutil.which(word)):
            message = f"--notify {word!r}: command not found on this machine"
            raise UsageError(message, run="seatrial run … --notify 'notify-send done'")
    return {"command": list(words)} if words else {}


@fallback("a command", on=ValueError)  # an open quote, which the shell will report
def program_of(command: str) -> str:
    """Return ``curl …``: arguments and variables in front may be secrets."""
    words = shlex.split(command)
    if not words or "=" in words[0]:
        return "a command"
    return words[0] + (" …" if words[1:] else "")
