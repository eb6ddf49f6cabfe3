"""The edges of a training script: its usual options, SIGTERM, and errors as one sentence instead of a traceback."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from seatrial.train.errors import TrainError

RUN_DIR_VARIABLE = "SEATRIAL_RUN_DIR"


class StopRequest:
    """Remembers a SIGTERM, so that the loop ends at a step's end and saves. Use as a context manager."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: signal._HANDLER = signal.SIG_DFL

    def __enter__(self) -> StopRequest:
        self._previous = signal.signal(signal.SIGTERM, self._remember)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGTERM, self._previous)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


def default_folder(name: str) -> Path:
    """/NAME inside a container of seatrial, ./NAME elsewhere."""
    inside = Path("/") / name
    return inside if inside.is_dir() else Path(name)


def default_checkpoints(models: Path) -> Path:
    """Where checkpoints go: the run's folder when there is one, else beside the models."""
    run_dir = os.environ.get(RUN_DIR_VARIABLE)
    return Path(run_dir) / "checkpoints" if run_dir else models / "checkpoints"


def positive(text: str) -> int:
    """argparse type: a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return number


def positive_float(text: str) -> float:
    """argparse type: a number above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return number


def add_folder_options(parser: argparse.ArgumentParser) -> None:
    """--data --models --checkpoints --resume: the same in every recipe."""
    parser.add_argument("--data", type=Path, default=default_folder("data"), metavar="DIR")
    parser.add_argument("--models", type=Path, default=default_folder("models"), metavar="DIR")
    parser.add_argument(
        "--checkpoints", type=Path, metavar="DIR", help="default: the run's folder, or MODELS/checkpoints"
    )
    parser.add_argument(
        "--resume",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="PATH",
        help="go on from the newest checkpoint of this folder (or this file); alone: of --checkpoints",
    )


def settle_folders(arguments: argparse.Namespace) -> None:
    """Fill in the folders that depend on others."""
    arguments.checkpoints = arguments.checkpoints or default_checkpoints(arguments.models)
    if arguments.resume == Path():
        arguments.resume = arguments.checkpoints


def run(main: Callable[[Sequence[str]], int]) -> None:
    """Call ``main`` with the command line and exit with its code; TrainError prints one sentence."""
    try:
        code = main(sys.argv[1:])
    except TrainError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.fix:
            print(f"  try: {error.fix}", file=sys.stderr)
        code = error.exit_code
    sys.stdout.flush()
    sys.exit(code)
