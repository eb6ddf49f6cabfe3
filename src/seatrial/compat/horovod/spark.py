"""Refused, with the way out."""

from .refused import refuse

refuse(
    "horovod.spark", "train with horovod.torch from files that Spark has written, then: seatrial run --gpus 2 train.py"
)
