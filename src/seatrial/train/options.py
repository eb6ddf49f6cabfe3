"""Read the options of a training script and end it with an exit code: folders, numbers, settings of the loop.

torch is imported only where an option needs it, so that a recipe can read its folders before.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from seatrial.train import early_start
from seatrial.train.errors import InputError, TrainError

RUN_DIR_VARIABLE = "SEATRIAL_RUN_DIR"
RESUME_DIR_VARIABLE = "SEATRIAL_RESUME_DIR"


def default_folder(name: str) -> Path:
    """Return the folder in SEATRIAL_NAME_DIR, else /NAME inside a container, else ./NAME."""
    if named := os.environ.get(f"SEATRIAL_{name.upper()}_DIR"):
        return Path(named)
    inside = Path("/") / name
    return inside if inside.is_dir() else Path(name)


def data_folder(argv: Sequence[str]) -> Path:
    """Return the folder of ``--data``, or its default, and ignore the other options."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data", type=Path, default=default_folder("data"))
    return Path(parser.parse_known_args(argv)[0].data)


def input_lines() -> list[str]:
    """Return the lines of the run folder's input.txt if it exists, else of standard input unless a terminal."""
    if (given := in_run("input.txt")) and given.is_file():
        return given.read_text(encoding="utf-8", errors="replace").splitlines()
    return [] if sys.stdin.isatty() else sys.stdin.read().splitlines()


def in_run(name: str) -> Path | None:
    """Return the path of a file or folder in the run's folder, or None outside of a run."""
    run_dir = os.environ.get(RUN_DIR_VARIABLE)
    return Path(run_dir) / name if run_dir else None


def positive(text: str) -> int:
    """Read a whole number of at least 1, as argparse's type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text}")
    return int(text)


def positive_float(text: str) -> float:
    """Read a number above 0, as argparse's type."""
    number = not_negative(text, "above 0")
    if not number:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text}")
    return number


def not_negative(text: str, bound: str = "of at least 0") -> float:
    """Read a number of at least 0, as argparse's type."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number {bound}, not {text}")
    return number


def add_folder_options(parser: argparse.ArgumentParser) -> None:
    """Add --data, --models, --checkpoints and --resume, the same in every recipe."""
    parser.usage = "%(prog)s [OPTION …]      (--help lists the options)"  # an error takes two lines, not twelve
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


def settle_places(arguments: argparse.Namespace) -> argparse.Namespace:
    """Fill in ``checkpoints``, and set ``resume`` to None if there is nothing to resume from."""
    from seatrial.train.saving.checkpoint import checkpoints

    arguments.checkpoints = arguments.checkpoints or in_run("checkpoints") or arguments.models / "checkpoints"
    if arguments.resume == Path():
        arguments.resume = arguments.checkpoints
    named, place = os.environ.get(RESUME_DIR_VARIABLE), arguments.resume
    # If a person named a folder without checkpoints, that is an error; seatrial may name a run that has none yet.
    if place is not None and named is not None and place == Path(named) and not checkpoints(place):
        if os.environ.get("RANK", "0") == "0":
            print("the run to resume from saved no checkpoint: training starts from scratch", file=sys.stderr)
        arguments.resume = None
    return arguments


def add_training_options(parser: argparse.ArgumentParser, *, epochs: int, batch: int, learning_rate: float) -> None:
    """Add the options of the loop, the same in every recipe, with this recipe's defaults."""
    from seatrial.train import engine, precision, trackers

    parser.add_argument("--epochs", type=positive, default=epochs)
    parser.add_argument("--batch", type=positive, default=batch, help="batch size per GPU")
    parser.add_argument("--learning-rate", type=positive_float, default=learning_rate)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=engine.NAMES, default="auto")
    parser.add_argument("--precision", choices=precision.NAMES, default="auto")
    parser.add_argument("--accumulation", type=positive, default=1, help="micro-batches per step")
    parser.add_argument("--memory-fraction", type=positive_float, help="use at most this share of the GPU's memory")
    parser.add_argument("--data-parallel", action="store_true", help="nn.DataParallel instead of a rank per GPU; slow")
    parser.add_argument("--every-steps", type=positive, help="also checkpoint every N steps")
    parser.add_argument("--keep", type=positive, default=3, help="checkpoints to keep besides the best")
    parser.add_argument("--patience", type=positive, help="stop after N tests without a better test loss")
    parser.add_argument(
        "--hang", type=positive_float, default=300.0, metavar="SECONDS", help="report a rank stuck for this long"
    )
    parser.add_argument(
        "--track", action="append", default=[], choices=tuple(trackers.TRACKERS), help="can be given again"
    )


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments and fill in those that depend on others. Raises InputError for a contradiction."""
    import torch

    arguments = parser.parse_args(argv)
    if arguments.data_parallel:
        gpus = torch.cuda.device_count()
        if gpus < 2:
            fix = "omit --data-parallel; seatrial run --gpus 2 starts a rank for each GPU"
            raise InputError(f"DataParallel uses several GPUs from one process; this machine has {gpus}", fix=fix)
        arguments.batch *= gpus  # as with a rank per GPU: --batch is what each gets
    if arguments.accumulation > arguments.batch:
        problem = f"a batch of {arguments.batch} cannot be split into {arguments.accumulation} micro-batches"
        raise InputError(problem, fix=f"--accumulation {arguments.batch} or less")
    return settle_places(arguments)


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
