"""Examine the GPU-container chain link by link: what is broken first, why, and the command that fixes it."""

import sys

from seatrial import CallableModule

sys.modules[__name__].__class__ = CallableModule
