"""Refused, with the way out."""

from .refused import refuse

refuse("horovod.runner", "seatrial starts the ranks: seatrial run --gpus 2 train.py")
