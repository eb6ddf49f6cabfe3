"""Refused, with the way out."""

from ..refused import refuse

refuse("horovod.torch.elastic", "save checkpoints, and let lost ranks start again: seatrial run --restarts 3 train.py")
