"""The edges of a training script of torch's: the options of the loop, beside what any script has."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from seatrial.train import engine, precision
from seatrial.train.command_line import RESUME_DIR_VARIABLE as RESUME_DIR_VARIABLE  # for its readers, as the next
from seatrial.train.command_line import RUN_DIR_VARIABLE as RUN_DIR_VARIABLE
from seatrial.train.command_line import add_folder_options as add_folder_options
from seatrial.train.command_line import default_checkpoints as default_checkpoints
from seatrial.train.command_line import default_folder as default_folder
from seatrial.train.command_line import input_lines as input_lines
from seatrial.train.command_line import not_negative as not_negative
from seatrial.train.command_line import positive as positive
from seatrial.train.command_line import positive_float as positive_float
from seatrial.train.command_line import result_file as result_file
from seatrial.train.command_line import run as run
from seatrial.train.command_line import settle_places
from seatrial.train.errors import InputError
from seatrial.train.loop import Settings
from seatrial.train.saving.checkpoint import checkpoints
from seatrial.train.trackers import TRACKERS


def add_training_options(parser: argparse.ArgumentParser, *, epochs: int, batch: int, learning_rate: float) -> None:
    """The options of the loop, the same in every recipe, with this recipe's defaults."""
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
    parser.add_argument("--track", action="append", default=[], choices=tuple(TRACKERS), help="can be given again")


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, with what depends on others filled in. Raises InputError for what cannot go together."""
    arguments = parser.parse_args(argv)
    if arguments.data_parallel:
        gpus = torch.cuda.device_count()
        if gpus < 2:
            raise InputError(
                f"DataParallel uses several GPUs from one process; this machine has {gpus}",
                fix="omit --data-parallel; seatrial run --gpus 2 starts a rank for each GPU",
            )
        arguments.batch *= gpus  # as with a rank per GPU: --batch is what each gets
    if arguments.accumulation > arguments.batch:
        raise InputError(
            f"a batch of {arguments.batch} cannot be split into {arguments.accumulation} micro-batches",
            fix=f"--accumulation {arguments.batch} or less",
        )
    return settle_places(arguments, checkpoints)


def settings(arguments: argparse.Namespace) -> Settings:
    """The loop's settings out of the command line."""
    return Settings(
        epochs=arguments.epochs,
        seed=arguments.seed,
        engine="eager" if arguments.data_parallel else arguments.engine,  # its replicas cannot be captured
        checkpoints=arguments.checkpoints,
        keep=arguments.keep,
        every_steps=arguments.every_steps,
        resume=arguments.resume,
        patience=arguments.patience,
        hang_s=arguments.hang,
    )
