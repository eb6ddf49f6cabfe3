"""What a training script says when it cannot go on: one sentence, and the exit code it ends with.

    TrainError                exit 1   the training itself failed
    ├── DiskFullError                  a file could not be written; the old one is intact
    ├── DivergedError                  the loss is no longer a number
    └── InputError            exit 2   what was asked for cannot be done
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


#: Of another library's error; some print whole tensors in one line.
_MOST_CHARACTERS = 300

#: What stands before the remedy, as in the host's errors (findings/labels.py); a test compares.
FIX_LABEL = "fix"


class TrainError(Exception):
    """What failed, in one sentence, and the command or change that fixes it."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        """With the remedy: a script of the user's own shows its exceptions as Python does."""
        return f"{self.message}\n  {FIX_LABEL}: {self.fix}" if self.fix else self.message


class DiskFullError(TrainError):
    """A file could not be written; what was there before is intact."""


class DivergedError(TrainError):
    """The loss became NaN or infinite."""


class InputError(TrainError):
    """An option, file or combination that cannot be meant."""

    exit_code = EXIT_USAGE


class DataError(InputError):
    """Data that is missing, empty, truncated or of another format."""


class CheckpointError(InputError):
    """A checkpoint that cannot be read or belongs to another model."""


class ModelFileError(InputError):
    """A finished model's file that cannot be read, or belongs to another model."""


def first_line(error: BaseException) -> str:
    """What another library's error says first, for a sentence of ours; its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:_MOST_CHARACTERS]


def type_and_line(error: BaseException) -> str:
    """The same behind its type, which says more than some errors' words: ``KeyError: 'train'``."""
    kind = type(error).__name__
    return f"{kind}: {first_line(error)}" if str(error).strip() else kind
