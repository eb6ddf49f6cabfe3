"""The edges of any training script, whatever computes in it: folders, numbers, errors as one sentence.

Imports no framework: scripts of torch's take it through ``train/script.py``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from seatrial.train import early_start
from seatrial.train.errors import TrainError

RUN_DIR_VARIABLE = "SEATRIAL_RUN_DIR"
RESUME_DIR_VARIABLE = "SEATRIAL_RESUME_DIR"


def default_folder(name: str) -> Path:
    """What seatrial names in SEATRIAL_NAME_DIR, /NAME inside a container, ./NAME elsewhere."""
    if told := os.environ.get(f"SEATRIAL_{name.upper()}_DIR"):
        return Path(told)
    inside = Path("/") / name
    return inside if inside.is_dir() else Path(name)


def data_folder(argv: Sequence[str]) -> Path:
    """What ``--data`` says, or its default, without looking at the other options."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data", type=Path, default=default_folder("data"))
    return Path(parser.parse_known_args(argv)[0].data)


def input_lines() -> list[str]:
    """Lines of the run folder's input.txt where seatrial has put one, else of standard input if that is no terminal."""
    run_dir = os.environ.get(RUN_DIR_VARIABLE)
    if run_dir and (handed := Path(run_dir) / "input.txt").is_file():
        return handed.read_text(encoding="utf-8", errors="replace").splitlines()
    return [] if sys.stdin.isatty() else sys.stdin.read().splitlines()


def result_file(name: str) -> Path | None:
    """Where a measurement leaves its results: a file of the run's folder, or nowhere outside of a run."""
    run_dir = os.environ.get(RUN_DIR_VARIABLE)
    return Path(run_dir) / name if run_dir else None


def default_checkpoints(models: Path) -> Path:
    """Where checkpoints go: the run's folder when there is one, else beside the models."""
    run_dir = os.environ.get(RUN_DIR_VARIABLE)
    return Path(run_dir) / "checkpoints" if run_dir else models / "checkpoints"


def positive(text: str) -> int:
    """argparse type: a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text}")
    return int(text)


def positive_float(text: str) -> float:
    """argparse type: a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text}")
    return number


def not_negative(text: str) -> float:
    """argparse type: a number of at least 0."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, not {text}")
    return number


def add_folder_options(parser: argparse.ArgumentParser) -> None:
    """--data --models --checkpoints --resume: the same in every recipe."""
    parser.usage = "%(prog)s [OPTION …]      (--help lists the options)"  # a mistake is told in two lines, not twelve
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
        help="resume from the newest checkpoint in this folder (or this file); default: --checkpoints",
    )


def settle_places(arguments: argparse.Namespace, found: Callable[[Path], Sequence[Path]]) -> argparse.Namespace:
    """The arguments with ``checkpoints`` filled in, and ``resume`` None where there is nothing to go on from.

    Args:
        found: the checkpoints of a folder.
    """
    arguments.checkpoints = arguments.checkpoints or default_checkpoints(arguments.models)
    if arguments.resume == Path():
        arguments.resume = arguments.checkpoints
    if _begins_anew(arguments.resume, found):
        if os.environ.get("RANK", "0") == "0":
            print("the run to resume from saved no checkpoint: training starts from scratch", file=sys.stderr)
        arguments.resume = None
    return arguments


def _begins_anew(place: Path | None, found: Callable[[Path], Sequence[Path]]) -> bool:
    """Whether seatrial has named an earlier run that ended before its first checkpoint.

    A folder that a person has named is another matter: without a checkpoint in it, it is the wrong one.
    """
    told = os.environ.get(RESUME_DIR_VARIABLE)
    return place is not None and told is not None and place == Path(told) and not found(place)


def run(main: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> NoReturn:
    """Call ``main`` with the command line and exit with its code; TrainError prints one sentence."""
    early_start.imported()
    try:
        code = main(sys.argv[1:] if argv is None else argv)
    except TrainError as error:
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    sys.stdout.flush()
    sys.exit(code)
