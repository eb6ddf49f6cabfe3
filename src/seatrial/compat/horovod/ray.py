"""Refused, with the way out."""

from .refused import refuse

refuse(
    "horovod.ray", "seatrial starts the ranks; call the training function itself, then: seatrial run --gpus 2 train.py"
)
