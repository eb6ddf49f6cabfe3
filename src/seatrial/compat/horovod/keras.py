"""Refused, with the way out."""

from .refused import refuse_tensorflow

refuse_tensorflow("horovod.keras")
