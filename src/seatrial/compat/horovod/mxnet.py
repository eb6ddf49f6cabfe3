"""Refused: MXNet's project ended in 2023."""

from .refused import refuse

refuse("horovod.mxnet", "name an image that has Horovod: seatrial run --image IMAGE train.py")
