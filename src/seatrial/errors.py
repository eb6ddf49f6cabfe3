"""Every error seatrial raises on purpose.

    SeatrialError                 exit 5   engine or environment, unless a branch has its own
    ├── UsageError                exit 2   an invalid request
    │   ├── ConfigError                    seatrial.toml: names file, key, what was expected and found
    │   ├── TargetError                    the script, module, recipe or image is not there
    │   ├── GpuRequestError                a GPU request that does not parse, or that the GPUs here cannot serve
    │   │   └── GpusHeldError                  runs hold them; they will be free again
    │   ├── DataError                      a data folder that is missing, empty or not what the recipe reads
    │   ├── TrustError                     the project's file requests what its user has not allowed
    │   ├── NameInUseError                 two live runs cannot share a name
    │   └── RunNotFoundError               no run of that ID or name in the store
    ├── GpuContractError          exit 3   requested GPUs are missing, unusable or unused
    │   ├── StackError                     no build of the framework works on these GPUs; the message has both sides
    │   └── CapacityError                  the cluster has too few GPUs; this machine is not the reason
    ├── TrialsFailError           exit 1   every trial of a search fails by itself
    └── EngineError               exit 5   Docker, Podman or this machine failed to do it
        ├── EngineUnavailableError         no engine, or one that does not answer
        ├── CommandError                   a command failed; keeps argv, exit code and stderr
        │   └── CommandTimeoutError            a command did not end in time and was killed
        ├── ImageError                     an image that cannot be pulled, read or built
        ├── DiskError                      no space, or no permission to write
        └── UntrustedPathError             a link, pipe or device where a container could have put one

A target that fails by itself is not an error of ours: the run ends with exit 1 and the receipt has its own code.
Criteria unmet under --strict are not an error either: exit 4.
`cli.main` alone prints these and exits; everything below raises.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
D = TypeVar("D")
T = TypeVar("T")

#: Longer sentences are cut in the middle: a file's content may be in them.
MAX_TEXT, _MOST_LINES = 2000, 20
#: Characters that steer a terminal, and lone surrogates, which cannot be printed.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

EXIT_DONE = 0
EXIT_TARGET_FAILED = 1
EXIT_USAGE = 2
EXIT_GPU_CONTRACT = 3
EXIT_CRITERIA = 4
EXIT_ENGINE = 5
#: 128 + SIGINT, as shells report it.
EXIT_INTERRUPTED = 130


class SeatrialError(Exception):
    """A failure in one sentence, with the likely cause and the next command to run.

    Args:
        message: one clear sentence, no trailing period needed.
        cause: why, probably; shown on its own line.
        run: the command to run next, exactly as it would be typed.
        edits: finds requirements that end this failure if they replace the project's own; [] for none.
    """

    exit_code = EXIT_ENGINE

    def __init__(
        self, message: str, *, cause: str | None = None, run: str | None = None, edits: Callable[[], list[str]] = list
    ) -> None:
        self.edits = edits
        self.message = printable(message)
        super().__init__(self.message)
        self.cause = None if cause is None else printable(cause)
        self.run = None if run is None else "\n".join(map(printable, run.split("\n", _MOST_LINES)))


def printable(text: str) -> str:
    """Return text with control characters as escapes, and cut: parts of it may be a stranger's."""
    if len(text) > MAX_TEXT:
        text = f"{text[: MAX_TEXT // 2]} … {text[-MAX_TEXT // 4 :]}"
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


class UsageError(SeatrialError):
    """The request is invalid.

    Args:
        instead: (typed word, words in its place): the command line has the same options in its advice then.
        first: a command that makes the target in its place, or goes to its folder.
    """

    exit_code = EXIT_USAGE

    def __init__(
        self,
        message: str,
        *,
        cause: str | None = None,
        run: str | None = None,
        edits: Callable[[], list[str]] = list,
        instead: tuple[str, Sequence[str]] | None = None,
        first: str | None = None,
    ) -> None:
        super().__init__(message, cause=cause, run=run, edits=edits)
        self.instead, self.first = instead, first


class ConfigError(UsageError):
    """A key of seatrial.toml that is unknown or has the wrong type."""


class TargetError(UsageError):
    """The script, module, recipe or image to run is not there."""


class GpuRequestError(UsageError):
    """A GPU request that does not parse, or cannot be served: a GPU twice, slices together, GPUs that runs hold."""


class GpusHeldError(GpuRequestError):
    """Enough GPUs are here, and runs hold them."""


class DataError(UsageError):
    """A data folder that is missing, empty, truncated or of another format."""


class TrustError(UsageError):
    """The project's file requests more than a container, and the user has not allowed it."""


class NameInUseError(UsageError):
    """Another live run has this name."""


class RunNotFoundError(UsageError):
    """No run of this ID or name in the store."""


class GpuContractError(SeatrialError):
    """Requested GPUs are missing, unusable or unused."""

    exit_code = EXIT_GPU_CONTRACT


class StackError(GpuContractError):
    """No build of the framework works on the GPUs or the driver that it is for."""


class CapacityError(GpuContractError):
    """The cluster has too few GPUs for the request."""


class TrialsFailError(SeatrialError):
    """Every trial of a search fails by itself."""

    exit_code = EXIT_TARGET_FAILED


class EngineError(SeatrialError):
    """Docker, Podman or this machine failed to do what was requested."""


class EngineUnavailableError(EngineError):
    """The requested engine is not installed or does not answer.

    Args:
        finding: the catalogue's entry for why.
    """

    def __init__(
        self, message: str, *, cause: str | None = None, run: str | None = None, finding: str = "engine-down"
    ) -> None:
        super().__init__(message, cause=cause, run=run)
        self.finding = finding


class CommandError(EngineError):
    """A command that failed.

    Attributes:
        argv: as it was run.
        exit_code_of_command: its exit code; negative for a signal.
        stderr: all of it, decoded with replacement.
    """

    def __init__(
        self, message: str, *, argv: Sequence[str], exit_code_of_command: int, stderr: str, run: str | None = None
    ) -> None:
        super().__init__(message, run=run)
        self.argv = list(argv)
        self.exit_code_of_command = exit_code_of_command
        self.stderr = stderr


class CommandTimeoutError(CommandError):
    """A command that did not end in its time and was killed."""


class ImageError(EngineError):
    """An image that cannot be pulled, read or built."""


class DiskError(EngineError):
    """No space left, or no permission to write."""


class UntrustedPathError(EngineError):
    """A link, a pipe, a device, too large a file, or content of another kind, where somebody else can write."""


@contextmanager
def os_errors(
    kind: type[SeatrialError], message: str, run: str | Callable[[OSError], str] | None = None
) -> Iterator[None]:
    """Raise an OSError within as an error of this kind, with the system's reason behind the message."""
    try:
        yield
    except OSError as error:
        run = run(error) if callable(run) else run
        raise kind(f"{message}: {error.strerror or error}", run=run) from error


def fallback(
    value: D, on: type[BaseException] | tuple[type[BaseException], ...]
) -> Callable[[Callable[P, T]], Callable[P, T | D]]:
    """Make a decorator whose function returns this value where it would raise one of these."""

    def decorate(function: Callable[P, T]) -> Callable[P, T | D]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T | D:
            try:
                return function(*args, **kwargs)
            except on:
                return value

        return call

    return decorate
