"""Errors of a training script: one sentence, and the exit code.

    TrainError                exit 1   the training itself failed
    ├── DiskFullError                  a file could not be written; the old one is intact
    ├── DivergedError                  the loss is not finite
    └── InputError            exit 2   the request cannot be done
        ├── DataError                  data that is missing, truncated or of another format
        ├── CheckpointError            a checkpoint that does not fit this model
        └── ModelFileError             a finished model's file that cannot be read or is of another model

Its own tree, apart from ``seatrial.errors``: a stranger's script may use one file of this library alone.
"""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
#: 128 + SIGTERM, as shells report it: 0 would read as success to an orchestrator.
EXIT_TERMINATED = 143


#: Characters kept of another library's error; some print whole tensors in one line.
_MOST_CHARACTERS = 300

#: Label of the fix, as in the host's errors (findings/finding.py); a test compares.
FIX_LABEL = "fix"


class TrainError(Exception):
    """A failure in one sentence, and the command or change that fixes it."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        """Add the remedy: a user's script shows its exceptions as Python does."""
        return f"{self.message}\n  {FIX_LABEL}: {self.fix}" if self.fix else self.message


class DiskFullError(TrainError):
    """A file could not be written; what was there before is intact."""


class DivergedError(TrainError):
    """The loss became NaN or infinite."""


class InputError(TrainError):
    """An invalid option, file or combination."""

    exit_code = EXIT_USAGE


class DataError(InputError):
    """Data that is missing, empty, truncated or of another format."""


class CheckpointError(InputError):
    """A checkpoint that cannot be read or belongs to another model."""


class ModelFileError(InputError):
    """A finished model's file that cannot be read, or belongs to another model."""


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, or its type if it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:_MOST_CHARACTERS]


def type_and_line(error: BaseException) -> str:
    """Return ``first_line`` after the type, without which some texts are unclear: ``KeyError: 'train'``."""
    kind = type(error).__name__
    return f"{kind}: {first_line(error)}" if str(error).strip() else kind
